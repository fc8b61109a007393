"""How many pictures a second a trained model answers: a plain loop, batches, and the loader alone.

    python benchmarks/predict.py FOLDER --model linglo_nano

So `saccade predict`, `detect`, `segment` and `upscale` read pictures, whichever the model is for;
what they draw is not in it. All take turns over the same pictures. The loader alone is what batches
could reach with a model that costs nothing.
"""

import argparse
import os
import time

import torch

from saccade.data.picture import rgb
from saccade.engine import session
from saccade.infer.batches import predictions
from saccade.infer.files import paths_of


class Free(torch.nn.Module):
    """A model that costs nothing."""

    def forward(self, image, size):
        return {"logits": image[:, 0, 0, :1]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", nargs="+")
    parser.add_argument("--model", default="linglo_nano")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    a = parser.parse_args()
    loaded = session.open_model(a.model)
    transform, task = loaded.transform(), loaded.task
    paths = paths_of(a.folder, loaded.definition.command)
    paths = (paths * -(-a.count // len(paths)))[: a.count]

    def loop():
        for path in paths:
            photo = rgb(path, str(path))
            image = transform(photo)[None]
            size = torch.tensor([image.shape[2:]])
            with torch.no_grad():
                task.predict(task(image, size), [(photo.height, photo.width)])

    def batches(net, predict):
        for _ in predictions(paths, net, transform, predict, torch.device("cpu"), a.batch):
            pass

    ways = {
        "loop": loop,
        f"batches of {a.batch}": lambda: batches(task, task.predict),
        "the loader alone": lambda: batches(Free(), lambda output, sizes: sizes),
    }
    best = dict.fromkeys(ways, 0.0)
    for _ in range(a.rounds):
        for name, call in ways.items():
            start = time.perf_counter()
            call()
            best[name] = max(best[name], len(paths) / (time.perf_counter() - start))
    print(f"{len(paths)} pictures, {a.model}, {torch.get_num_threads()} of {os.cpu_count()} cores")
    for name, speed in best.items():
        print(f"  {name:<20}{speed:7.0f} images/s  {speed / best['loop']:.2f}x")


if __name__ == "__main__":
    main()

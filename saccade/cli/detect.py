"""`detect`: boxes drawn onto pictures, and written as COCO results."""

import json as js
from pathlib import Path
from typing import Annotated

from saccade.cli.command import Device, File, ModelName, Pictures, Value
from saccade.cli.console import note, say


def detect(
    files: Pictures,
    *,
    model: ModelName | None = None,
    out: Annotated[Path, Value("FOLDER", "files")] = Path("detected"),
    score: float = 0.3,
    annotations: File | None = None,
    json: bool = False,
    device: Device | None = None,
) -> None:
    """Find things in pictures: boxes drawn onto copies, and a COCO result file.

    Args:
        files: pictures, folders of pictures (frames of a video), or patterns such as "photos/*.jpg"
        model: a run's folder or a saved model; the newest detector of runs/ if not given
        out: folder for the drawn pictures and results.json
        score: how sure the model must be of a box, 0 to 1
        annotations: a COCO json whose image ids the results take, by the names of the files
        json: print the results instead, and draw nothing
        device: cpu or cuda; the best there is if not given
    """
    from saccade.cli.learn import newest
    from saccade.infer.detect import Detector, Numbers
    from saccade.infer.draw import drawn
    from saccade.infer.predict import free, pictures

    if not 0 <= score <= 1:
        raise ValueError(f"detect: a score lies in 0..1, got {score:g}; try 0.3")
    paths = [path for word in files for path in pictures(word, "detect", out)]
    detector, numbers = Detector(model or newest("detect"), device), Numbers(annotations)
    sources, taken = {path.resolve() for path in paths}, set()
    results, named, unread = [], {}, 0
    try:
        for place, (path, photo, found, said) in enumerate(detector.over(paths, score), 1):
            if photo is None or found is None:
                unread += 1
                note(said, "yellow")
                continue
            image = numbers.of(path, place)
            named[image] = str(path)
            results += detector.coco(image, found)
            if json:
                continue
            out.mkdir(parents=True, exist_ok=True)
            target = out / f"{free(path.stem, taken)}.png"
            if target.resolve() in sources:  # nobody's picture is drawn over
                target = out / f"{free(f'{path.stem}_boxes', taken)}.png"
            drawn(photo, found, detector.classes).save(target)
            counts = ", ".join(_counted([detector.classes[i] for i in found.labels.tolist()]))
            say(f"{path}: {counts or 'nothing'} -> {target}")
    finally:  # what was found is kept, also of a job that is broken off
        if json:
            print(js.dumps(results))
        elif named:
            (out / "results.json").write_text(js.dumps(results))
            (out / "images.json").write_text(js.dumps(named, indent=1))
            say(f"{len(results)} boxes in {len(named)} pictures: {out / 'results.json'}")
    if unread:
        raise SystemExit(1)


def _counted(names: list[str]) -> list[str]:
    """`2 dog_head, 1 cat_head`, the most frequent first."""
    found = {name: names.count(name) for name in names}
    return [f"{count} {name}" for name, count in sorted(found.items(), key=lambda p: -p[1])]

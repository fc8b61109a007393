"""Write a model card: the model's purpose, its data, its training and its results.

It is made from the files of a run. Paths on this machine are private: the card has only the name of
the data set and the number of images.
"""

import json
import re
from pathlib import Path
from typing import Any

from saccade.engine.run import Run
from saccade.models import hub
from saccade.models.describe import timm_config
from saccade.models.saved import control
from saccade.recipes.group import path_fields
from saccade.report.summary import Summary, setting
from saccade.report.tables import is_number
from saccade.tasks.definition import TaskDefinition
from saccade.tasks.figures import formatted, label_of

LISTED = 40  # classes that are named


def card_text(
    net: Any, notes: dict[str, Any], definition: TaskDefinition, run: Run | None = None
) -> str:
    """The card of a trained model, in Markdown.

    Args:
        net: the network
        notes: what was saved beside its weights
        definition: its task
        run: the run that it comes from, if that is at hand
    """
    command = definition.command
    name = timm_config(net)["architecture"]
    house = "timm" if hub.of_timm(net) else "saccade"
    about = [
        "---", f"library_name: {house}", f"pipeline_tag: {definition.hub_tag}",
        f"tags: {json.dumps(sorted({'saccade', house}))}", "---", "", f"# {name}", "",
    ]  # fmt: skip
    millions = sum(p.numel() for p in net.parameters()) / 1e6
    about += [f"`{name}`, {millions:.2f} million parameters, trained with saccade.", ""]
    for part in (_figures(notes, run), _origin(notes, run), _classes(notes), _use(house, command)):
        about += [*part, ""] if part else []
    return "\n".join(about)


def words(text: str) -> str:
    """Text of one line that Markdown shows as it is; names of classes may hold markup."""
    return re.sub(r"([\\`\[\]<>|&])", r"\\\1", " ".join(text.split()))


def code(text: str) -> str:
    """The same as code."""
    return f"`{' '.join(text.replace('`', chr(39)).split())}`"


def _figures(notes: dict[str, Any], run: Run | None) -> list[str]:
    final = run.read_json("final.json").get("val") if run else None
    numbers = _numbers(final) or _numbers(notes.get("figures"))
    figures = {key: value for key, value in numbers.items() if key != "images"}
    if not figures:
        return []
    images = numbers.get("images")
    on = f" on {images:.0f} images" if images else ""
    rows = [
        f"| {words(label_of(key))} | {formatted(key, value)} |" for key, value in figures.items()
    ]
    return [f"| counted{on} that it did not learn from | |", "|---|---|", *rows]


def _numbers(figures: Any) -> dict[str, float]:
    """The entries of a stranger's figures that are numbers with plain names."""
    pairs = figures.items() if isinstance(figures, dict) else ()
    return {key: n for key, n in pairs if is_number(n) and not control(key)}


def _origin(notes: dict[str, Any], run: Run | None) -> list[str]:
    """Data and recipe."""
    if run is None:
        name = notes.get("recipe")
        return [f"- Recipe: {code(name)}"] if isinstance(name, str) and not control(name) else []
    counts = {part: _numbers(run.read_json("data.json").get(part)) for part in ("train", "val")}
    sizes = ", ".join(
        f"{count['images']} {part}" for part, count in counts.items() if "images" in count
    )
    data = words(Path(run.data).name)
    lines = [f"- Data: {data} ({sizes} images)", f"- Recipe: {code(run.name)}"]
    if run.lines():
        changes = Summary.of(run).changed
        recipe = run.recipe
        private = {
            f"{group}.{name}"
            for group in ("model", "task")
            for name in path_fields(getattr(recipe, group))
        }
        other = [f"{key}={setting(here)}" for key, (here, _) in changes.items()
                 if key not in private]  # fmt: skip
        lines += [f"- Changed in it: {code(' '.join(other))}"] if other else []
    environment = run.read_json("environment.json")
    versions = [f"{k} {environment[k]}" for k in ("saccade", "torch", "timm") if k in environment]
    return [*lines, f"- Versions: {words(', '.join(versions))}"] if versions else lines


def _classes(notes: dict[str, Any]) -> list[str]:
    names = list(notes.get("classes", ()))
    if not names:
        return []
    more = f", and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return [f"{len(names)} classes: {words(', '.join(names[:LISTED]))}{more}."]


def _use(house: str, command: str) -> list[str]:
    timm = [
        "import saccade, timm  # saccade makes its models known to timm", "",
        'model = timm.create_model("hf-hub:THIS/REPOSITORY", pretrained=True).eval()',
    ]  # fmt: skip
    own = ["import saccade", "", 'model = saccade.load("FOLDER")  # after `hf download`']
    lines = ["```python", *(timm if house == "timm" else own), "```"]
    if command:
        lines += ["", f"`saccade {command} PICTURES --model FOLDER` once `hf download` brought it."]
    return lines

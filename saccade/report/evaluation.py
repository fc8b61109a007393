"""An evaluation as files: figures, tables, drawings, a page, and what other programs read.

figures.json     the figures, on which data, and what could not be read
images.json      the images that were evaluated, by their ids
tables.json      figures of each class, confusion, precision over recall
report.html      a page with all of it, and the worst images beside the truth
results.json     boxes (or masks), in COCO's format of results
truth.json       what there was to find, as a COCO json with the ids of results.json
"""

import json
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from saccade import files
from saccade.engine import examples
from saccade.engine.run import Run
from saccade.engine.session import Evaluation
from saccade.report import page
from saccade.report.summary import finite
from saccade.report.tables import Tables
from saccade.report.write import Written, drawings, write_pictures
from saccade.tasks.figures import formatted, label_of


def write(evaluation: Evaluation, folder: str | Path, title: str) -> Written:
    """Write all that there is to say of an evaluation.

    Args:
        evaluation: what `session.evaluation` gave
        folder: where; older files of these names are replaced
        title: what was evaluated on what, in a few words

    Returns:
        the files, and a sentence for each that could not be made
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    metric, model = evaluation.metric, evaluation.model
    figures, plain = metric.compute(), metric.tables()
    plain["examples"] = examples.draw_examples(
        model.definition, model.task, model.transform(), evaluation.images, plain
    )
    tables = Tables(plain)
    about = {
        "about": title, "figures": figures, "unread": metric.unread, "warnings": metric.warnings,
    }  # fmt: skip
    paths = [
        files.write_json(folder / "figures.json", finite(about)),
        files.write_json(folder / "images.json", _images(evaluation)),
        files.write_json(folder / "tables.json", finite(plain)),
        *_coco(evaluation, folder),
    ]
    pictures, more, sentences = write_pictures(drawings(tables), folder)
    text = _page(title, figures, tables, pictures, [*sentences, *metric.warnings])
    page_path = files.write(folder / "report.html", text.encode())
    return Written([page_path, *paths, *more], sentences)


def _images(evaluation: Evaluation) -> dict[str, str]:
    """Names of the images by their ids; by their places where the set has no ids."""
    images = evaluation.images
    places = getattr(evaluation.metric, "indices", None)
    if not places:
        places = {i: i for i in range(len(images))}
    return {str(key): _name(images, places[key]) for key in sorted(places)}


def _name(images: Any, i: int) -> str:
    """An image's path in its set, as far as it has one."""
    path, root = Path(images.name(i)), getattr(images, "root", None)
    return str(path.relative_to(root)) if root and path.is_relative_to(root) else str(path)


def _coco(evaluation: Evaluation, folder: Path) -> list[Path]:
    """Predictions and truth for COCO's own tools, where a metric has them."""
    metric: Any = evaluation.metric
    if not hasattr(metric, "results"):
        return []
    truth = metric.annotations(lambda i: _name(evaluation.images, i))
    return [
        files.write(folder / "results.json", json.dumps(metric.results())),
        files.write(folder / "truth.json", json.dumps(truth)),
    ]


def _page(
    title: str,
    figures: Mapping[str, float],
    tables: Tables,
    pictures: Mapping[str, bytes],
    notes: list[str],
) -> str:
    rows = "".join(
        f"<tr><td>{escape(label_of(name))}</td><td>{escape(formatted(name, value))}</td></tr>"
        for name, value in figures.items()
    )
    first = next(iter(figures))
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="result"><b>{formatted(first, figures[first])}</b> '
        f"{escape(label_of(first))}</p>",
        *(f'<p class="soft">{escape(note)}</p>' for note in notes),
        page.section("Figures", f"<table><tbody>{rows}</tbody></table>"),
        *page.of_tables(tables, pictures),
    ]
    return page.document(title, parts)


def folder_of(model: str | Path, data: str | None, split: str) -> Path | None:
    """Where an evaluation is written if nobody says: in the run's folder, if it is one."""
    if not (Path(model) / "recipe.json").is_file():
        return None
    words = ["eval", *([] if split == "val" else [split])]
    if data is not None and Path(data).absolute() != Path(Run.open(model).data):
        words.append(Path(data).resolve().stem)
    return Path(model) / "_".join(words)

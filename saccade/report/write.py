"""Write a run's report into its folder: curves.png, report.html, and pictures of its task.

confusion.png    the confusion matrix, if the metric counts one
classes.png      the figure of each class, likewise
precision.png    precision over recall, where boxes are found
NAME.png         pictures that the metric drew itself, such as reconstruction.png

Reporter()(run)   after every evaluation; it takes little time and never stops a run
write(summary)    the whole report at once
"""

import gc
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from saccade import files
from saccade.engine.run import Run
from saccade.report import plots
from saccade.report.page import page
from saccade.report.summary import Summary
from saccade.report.tables import Tables

SHARE = 0.02  # the share of a run's time that its reports may take
UNDRAWN = "no pictures: matplotlib is not installed; pip install 'saccade[viz]'"


class Written(NamedTuple):
    """The files of a report, and a sentence for each that could not be made."""

    files: list[Path]
    sentences: list[str]


class Reporter:
    """Keeps a run's report up to date while it trains; `engine.session.train` takes one.

    Reports take a small share of a run's time: an evaluation that follows too soon after a report
    gets none, except the last.
    """

    def __init__(self) -> None:
        self.began, self.took = -math.inf, 0.0  # of the last report

    def __call__(self, run: Run) -> list[str]:
        """Write the report if it is due; sentences to print once the run has ended."""
        now = time.monotonic()
        try:
            summary = Summary.of(run)
            if not summary.finished and now - self.began < self.took / SHARE:
                return []
            sentences = write(summary).sentences
            gc.collect()  # figures hold reference cycles: free their memory now
            self.began, self.took = now, time.monotonic() - now
            return sentences if summary.finished else []
        except Exception as error:  # a report must never stop a run
            return [f"no report: {_why(error)}"]


def write(summary: Summary) -> Written:
    """Draw a run's pictures and write its page; a picture that fails is left out with a reason."""
    folder = summary.run.folder
    all_drawings = {"curves": lambda: plots.curves(summary), **drawings(summary.tables)}
    pictures, paths, sentences = write_pictures(all_drawings, folder)
    text = page(summary, pictures, sentences)
    return Written([files.write(folder / "report.html", text.encode()), *paths], sentences)


def write_pictures(
    drawings: Mapping[str, Callable[[], bytes]], folder: Path
) -> tuple[dict[str, bytes], list[Path], list[str]]:
    """Drawings as PNGs in a folder: what was drawn, the files, and a sentence for each failure."""
    pictures, paths, sentences = {}, [], []
    for name, make in drawings.items():
        try:
            pictures[name] = make()
            paths.append(files.write(folder / f"{name}.png", pictures[name]))
        except ImportError:
            sentences = [UNDRAWN]
        except Exception as error:
            sentences.append(f"no {name}.png: {_why(error)}")
    return pictures, paths, sentences


def drawings(tables: Tables) -> dict[str, Callable[[], bytes]]:
    """What can be drawn of the tables of an evaluation, by the names of the files."""
    drawings: dict[str, Callable[[], bytes]] = {}
    matrix, classes = tables.confusion
    if matrix:
        drawings["confusion"] = lambda: plots.confusion(matrix, classes)
    if tables.per_class:
        drawings["classes"] = lambda: plots.classes(tables.per_class)
    if tables.precision:
        drawings["precision"] = lambda: plots.precision(
            tables.precision, tables.precision_of_classes
        )
    for picture in tables.pictures:
        drawings.setdefault(picture.name, lambda png=picture.png: png)
    return drawings


def _why(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]

"""What a run leaves for people: curves.png and report.html in its folder, and what suits its task.

confusion.png         classes taken for others
classes.png           how well each class's pixels are found
reconstruction.png    images above what came back of them

Reporter()(run)   after every evaluation: cheap, and never able to stop a run
write(summary)    all of it, now
"""

import base64
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from saccade.engine.run import Run
from saccade.report import plots
from saccade.report.page import PICTURES, page
from saccade.report.summary import Summary

SHARE = 0.02  # of a run's time, which its reports may take
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
            self.began, self.took = now, time.monotonic() - now
            return sentences if summary.finished else []
        except Exception as error:  # a report must never stop a run
            return [f"no report: {_why(error)}"]


def write(summary: Summary) -> Written:
    """Draw a run's pictures and write its page anew; what fails is left out and said."""
    folder, pictures, files, sentences = summary.run.folder, {}, [], []
    for name, make in _pictures(summary).items():
        try:
            pictures[name] = make()
            files.append(_replace(folder / f"{name}.png", pictures[name]))
        except ImportError:
            sentences = [UNDRAWN]
        except Exception as error:
            sentences.append(f"no {name}.png: {_why(error)}")
    text = page(summary, pictures, sentences)
    return Written([_replace(folder / "report.html", text.encode()), *files], sentences)


def _pictures(summary: Summary) -> dict[str, Callable[[], bytes]]:
    made: dict[str, Callable[[], bytes]] = {"curves": lambda: plots.curves(summary)}
    matrix, classes = summary.table
    if matrix:
        made["confusion"] = lambda: plots.confusion(matrix, classes)
    rows = summary.kept.get("per_class")
    if rows:
        made["classes"] = lambda: plots.classes(rows)
    for name, letters in summary.kept.get("pictures", {}).items():
        if name in PICTURES:
            made[name] = lambda letters=letters: base64.b64decode(letters)
    return made


def _replace(path: Path, content: bytes) -> Path:
    """Whole or not at all."""
    part = path.with_name(path.name + ".part")
    part.write_bytes(content)
    os.replace(part, path)
    return path


def _why(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]

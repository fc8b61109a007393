"""Show a run's progress in a terminal: a bar, and a table with a row for each evaluation."""

import time
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from saccade.engine.run import Run
from saccade.tasks.figures import formatted

WIDTH = 6  # of a column, or as wide as its name


class Screen:
    """The bar and the table. Where the output is no terminal, only the table's rows are printed."""

    def __init__(self, console: Console):
        self.console = console
        self.bar = Progress(
            TextColumn("step"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[now]}"),
            TimeRemainingColumn(), TextColumn("left"), console=console, transient=True,
            disable=not console.is_terminal,
        )  # fmt: skip
        self.job: TaskID | None = None
        self.columns: list[str] = []
        self.loss = Mean()
        self.pace = Mean()
        self.last: float | None = None

    def began(self, run: Run, step: int, steps: int) -> None:
        self.job = self.bar.add_task("step", total=steps, completed=step, now="")
        self.bar.start()

    def stepped(self, step: int, terms: dict[str, float], rate: float, images: int) -> None:
        now = time.monotonic()
        if self.last is not None:
            self.pace.add(now - self.last, images)
        self.last = now
        self.loss.add(sum(terms.values()))
        if self.job is not None:
            status = (
                f"loss {self.loss.value:.3f}  rate {rate:.1e}  {self._per_second():.0f} images/s"
            )
            self.bar.update(self.job, completed=step, now=status)

    def evaluated(self, line: dict[str, Any], best: bool) -> None:
        figures = {k: v for k, v in line["val"].items() if k != "images"}
        cells = {
            "epoch": str(line["epoch"]),
            "train loss": f"{self.loss.value:.3f}",
            **{name: formatted(name, value, unit=False) for name, value in figures.items()},
            "images/s": f"{self._per_second():.0f}",
            "minutes": f"{line['seconds'] / 60:.1f}",
        }  # fmt: skip
        if not self.columns:
            self.columns = list(cells)
            head = "  ".join(f"{c:>{WIDTH}}" for c in cells)
            self.console.print(head, style="bold", soft_wrap=True)
        row = (f"{c:>{max(len(name), WIDTH)}}" for name, c in cells.items())
        self.console.print("  ".join(row) + " best" * best, highlight=False, soft_wrap=True)
        self.loss, self.pace, self.last = Mean(), Mean(), None

    def say(self, sentence: str) -> None:
        self.console.print(sentence, highlight=False, markup=False, soft_wrap=True)

    def __enter__(self) -> "Screen":
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def _per_second(self) -> float:
        return 1 / self.pace.value if self.pace.value else 0.0


class Mean:
    """A running mean of sums over counts."""

    def __init__(self) -> None:
        self.sum = 0.0
        self.count = 0

    def add(self, sum_: float, count: int = 1) -> None:
        self.sum += sum_
        self.count += count

    @property
    def value(self) -> float:
        return self.sum / self.count if self.count else 0.0

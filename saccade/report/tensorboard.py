"""A run in TensorBoard: its losses, rates and figures as scalars, the report's pictures."""

from typing import Any

import numpy as np

from saccade import files
from saccade.engine.run import Run
from saccade.report.tables import Tables, jpeg_image

PICTURES = 6  # of a kind
POINTS = 100  # of the training loss in an epoch, as steps.jsonl keeps them


class Log:
    """Scalars under RUN/tensorboard: the loss and the rate by step, figures by evaluation.

    They are a second view of steps.jsonl and report.jsonl: a run that goes on writes them anew from
    these files, which were cut back to its checkpoint. So no reader meets a point twice.
    """

    def __init__(self) -> None:
        try:
            from torch.utils.tensorboard.writer import SummaryWriter
        except ImportError as error:
            raise ImportError(
                "log: tensorboard is not installed; pip install 'saccade[log]'"
            ) from error
        self._open = SummaryWriter
        self.writer: SummaryWriter | None = None
        self.run: Run | None = None
        self.every = 1

    def began(self, run: Run, step: int, steps: int) -> None:
        folder = run.folder / "tensorboard"
        if not files.inside(folder, run.folder):
            raise ValueError(
                f"log: {str(folder)!r} is a link out of the run's folder, which is not followed; "
                f"remove the link"
            )
        for old in folder.glob("events.out.tfevents.*"):
            old.unlink()
        self.writer = self._open(str(folder))
        self.every = max(steps // run.recipe.schedule.epochs // POINTS, 1)
        for line in run.lines("steps.jsonl"):
            if line["step"] <= step:
                self._step(line["step"], line["loss"], line["rate"])
        for line in run.lines():
            if line["step"] <= step:
                self.evaluated(line, False)
        self.run = run

    def stepped(self, step: int, terms: dict[str, float], rate: float, images: int) -> None:
        if (step - 1) % self.every == 0:
            self._step(step, terms, rate)

    def evaluated(self, line: dict[str, Any], best: bool) -> None:
        if self.writer is not None:
            for name, value in line["val"].items():
                self.writer.add_scalar(f"val/{name}", value, line["step"])
            if best and self.run is not None:
                self._pictures(self.run, line["step"])
            self.writer.flush()

    def _pictures(self, run: Run, step: int) -> None:
        """Those of the report: the worst images, drawn boxes or regions beside the truth."""
        for title, rows in Tables(run.read_json("tables.json")).examples.items():
            for n, (_, jpeg) in enumerate(rows[:PICTURES], 1):
                pixels = np.asarray(jpeg_image(jpeg).convert("RGB"))
                name = f"{title.partition(':')[0]}/{n}"
                assert self.writer is not None
                self.writer.add_image(name, pixels, step, dataformats="HWC")

    def say(self, sentence: str) -> None: ...

    def __enter__(self) -> "Log":
        return self

    def __exit__(self, *_: object) -> None:
        if self.writer is not None:
            self.writer.close()

    def _step(self, step: int, terms: dict[str, float], rate: float) -> None:
        if self.writer is not None:
            self.writer.add_scalar("train/loss", sum(terms.values()), step)
            for name, value in terms.items() if len(terms) > 1 else ():
                self.writer.add_scalar(f"train/{name}", value, step)
            self.writer.add_scalar("train/rate", rate, step)

"""The rows of docs/records.md: what runs of one recipe reached, and at what cost.

    python benchmarks/records.py RUN [RUN ...]

Runs of one setting are one row, whatever their seeds. Accuracy is that of the last epoch, never of
the best evaluation, and again with the mean of each picture and its mirror (if the model that was
kept is the last one's). CPU seconds are those of the training process with its evaluations.
"""

import statistics
import sys
from pathlib import Path
from typing import Any

import torch

from saccade.engine import make, session
from saccade.report.comparison import find_runs, groups
from saccade.report.summary import Summary


@torch.no_grad()
def mirrored(folder: Path) -> float:
    """Top-1 with the mean of both sides' shares, of the run's best model."""
    one = session.open_model(folder)
    images = session.images_of(Summary.of(folder).run).val
    loader = make.unaugmented(
        one.definition, one.test, images, one.task.net, session.Group(device=torch.device("cpu")),
        256,
    )  # fmt: skip
    right = count = 0
    for parts in loader.epoch(0):
        for part in parts:
            net: Any = one.task.net
            shares = sum(net(x).softmax(1) for x in (part.image, part.image.flip(3)))
            right += int((shares.argmax(1) == part.target["label"]).sum())
            count += len(part.image)
    return 100 * right / count


def spread(values: list[float], digits: int = 2) -> str:
    text = f"{statistics.fmean(values):.{digits}f}"
    return text + (f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else "")


def main(words: list[str]) -> None:
    summaries, _ = find_runs(words)
    print("| model | parameters | epochs | top-1 | with mirror | CPU seconds | seeds |")
    print("|---|---:|---:|---:|---:|---:|---|")
    for group in groups(summaries):
        if not group.finished:
            continue
        last = [one.value(one.last) for one in group.runs]
        kept_last = all(one.best is one.last for one in group.runs)
        both = [mirrored(one.run.folder) for one in group.runs] if kept_last else []
        cpu = [one.last["cpu_seconds"] for one in group.runs]
        cells = (
            group.label, f"{group.runs[0].parameters():,}", group.runs[0].last["epoch"],
            spread(last), spread(both) if both else "", spread(cpu, 0),
            " ".join(map(str, group.seeds)),
        )  # fmt: skip
        print(f"| {' | '.join(map(str, cells))} |")


if __name__ == "__main__":
    main(sys.argv[1:])

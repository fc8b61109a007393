"""Compare an exported file with its model: differences of the outputs, and the task's figures."""

import math
from collections.abc import Generator, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from saccade.export.raw import Raw
from saccade.export.runners import Run, runner_of

CLOSE = 1e-4  # of the largest output


def apart(raw: Raw, run: Run, count: int = 4, seed: int = 0) -> float:
    """The largest difference to eager over random batches and sizes, over the largest output."""
    chance, worst = np.random.default_rng(seed), 0.0
    for _ in range(count):
        B, (H, W) = int(chance.integers(1, 4)), chance.integers(64, 180, 2).tolist()
        image = chance.standard_normal((B, 3, H, W), np.float32)
        expected, got = runner_of(raw)(image), run(image)
        for name, value in expected.items():
            if got[name].shape != value.shape:
                return math.inf
            scale = max(float(np.abs(value).max()), 1e-12)
            gap = float(np.abs(got[name] - value).max()) / scale
            worst = math.inf if math.isnan(gap) else max(worst, gap)
    return worst


def figures(task: Any, run: Run, batches: Iterable[Any]) -> dict[str, float]:
    """A task's own figures, counted on the outputs of an exported file."""
    metric = task.metric()

    def graph(image: Tensor) -> dict[str, Tensor]:
        outputs = run(np.ascontiguousarray(image.numpy()))
        return {name: torch.from_numpy(value) for name, value in outputs.items()}

    for part in batches:
        for image, size, target in _unpadded(part):
            output = task.through_graph(graph, image)
            metric.update({**output, "input": image, "size": size}, target)
    return metric.compute()


def _unpadded(part: Any) -> Generator[tuple[Tensor, Tensor, dict[str, Any]]]:
    """A batch as it is, or image by image if sizes differ: graphs take images without padding."""
    if (part.size == part.size[0]).all():
        yield part.image, part.size, part.target
        return
    for i, (H, W) in enumerate(part.size.tolist()):
        one = slice(i, i + 1)
        target = {name: values[one] for name, values in part.target.items()}
        yield part.image[one, :, :H, :W], part.size[one], target

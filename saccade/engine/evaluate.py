"""Count a task's figures over a set, each process over its own share of the images."""

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch

from saccade.data.loader import Loader
from saccade.engine import distributed
from saccade.engine.distributed import Group
from saccade.tasks.task import Metric, Task

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def precision(name: str, device: torch.device) -> AbstractContextManager:
    """Mixed precision as a recipe names it."""
    return torch.autocast(device.type, DTYPES.get(name), enabled=name in DTYPES)


class Stopped(Exception):  # noqa: N818  (no error: a person asked for it)
    """Somebody asked to stop."""


@torch.no_grad()
def evaluate(
    task: Task,
    images: Loader,
    group: Group,
    how: str = "fp32",
    asked: Callable[[], bool] | None = None,
) -> Metric:
    """The metric over all images, the same in every process.

    Padding would be seen by what looks at a whole image, such as key-only attention, and figures
    would depend on which images share a batch. So none is padded here.

    Raises `Stopped` in all of them once any is `asked` to.
    """
    task.eval()
    distributed.agreed(task, group)
    metric = task.metric()
    with distributed.gathered_up(task):
        for parts in images.epoch(0):
            if asked is not None and distributed.total(torch.tensor(float(asked())), group) > 0:
                raise Stopped
            for part in [alike for padded in parts for alike in padded.unpadded()]:
                part = part.to(group.device)
                with precision(how, group.device):
                    output = task(part.image.to(memory_format=torch.channels_last), part.size)
                metric.update(output, part.target)
    whole = task.metric()
    whole.unread = {}
    for state, bad in distributed.gathered((metric.state(), dict(images.bad)), group):
        whole.add(state)
        whole.unread |= bad
    return whole

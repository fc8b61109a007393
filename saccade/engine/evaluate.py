"""Evaluate a task on a data set, each process on its own share of the images."""

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
    should_stop: Callable[[], bool] | None = None,
) -> Metric:
    """The metric over all images, the same in every process.

    Images are not padded here: a layer that looks at the whole image, such as key-only attention,
    would see the padding, and figures would depend on which images share a batch.

    Args:
        task: what is evaluated
        images: the loader of the set
        group: the processes that share the images
        how: the precision, as a recipe names it
        should_stop: asked before each batch; once it is true in any process, all raise `Stopped`
    """
    task.eval()
    distributed.sync_buffers(task, group)
    metric = task.metric()
    with distributed.unsharded(task):
        for parts in images.epoch(0):
            if (
                should_stop is not None
                and distributed.all_reduce(torch.tensor(float(should_stop())), group) > 0
            ):
                raise Stopped
            for part in [alike for padded in parts for alike in padded.unpadded()]:
                part = part.to(group.device)
                with precision(how, group.device):
                    output = task(part.image.to(memory_format=torch.channels_last), part.size)
                metric.update(output, {**part.target, "index": part.index})
    whole = task.metric()
    whole.unread = {}
    for state, bad in distributed.all_gather((metric.state(), dict(images.bad)), group):
        whole.add(state)
        whole.unread |= bad
    return whole

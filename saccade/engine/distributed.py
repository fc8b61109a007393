"""One process or many, under torchrun: collective operations that one process may call too.

Nothing outside this file asks whether there are others; with one process every function here is
the identity.
"""

import os
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

T = TypeVar("T")
LOST = ("gloo", "Connection", "NCCL", "Socket", "timed out", "Timeout")
TIMEOUT = timedelta(seconds=45)  # without an answer, after which a rank counts as lost
COMPILING = timedelta(minutes=30)  # the same, where a step may stop to compile
DAY = timedelta(days=1)  # while the first works alone: fits a teacher, writes to a slow disk


@dataclass(frozen=True)
class Group:
    """This process among the others: its rank, their number, its device."""

    rank: int = 0
    world: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    slow: Any = None  # a group of the same processes that waits a day instead of seconds

    @property
    def first(self) -> bool:
        return self.rank == 0


def choose_device(device: str | None) -> str:
    """The device that was named, or the best there is."""
    return device or ("cuda" if torch.cuda.is_available() else "cpu")


@contextmanager
def process_group(device: str | None = None) -> Generator[Group]:
    """Join the processes that torchrun started; alone if it did not."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    kind = choose_device(device)
    here = torch.device(kind)
    if kind == "cuda":
        here = torch.device(kind, int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(here)
    if world == 1 and "MASTER_ADDR" not in os.environ:
        yield Group(device=here)
        return
    store, rank, world = next(dist.rendezvous("env://", timeout=TIMEOUT))
    # torchrun keeps its store when it restarts processes, with addresses of the ended ones in it.
    again = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    dist.init_process_group(
        "nccl" if kind == "cuda" else "gloo",
        store=dist.PrefixStore(f"start {again}", store),
        rank=rank,
        world_size=world,
        timeout=TIMEOUT,
    )
    try:
        slow = dist.new_group(backend="gloo", timeout=DAY)
        yield Group(dist.get_rank(), dist.get_world_size(), here, slow)
    finally:
        dist.destroy_process_group()


def wait_for_compilers(group: Group) -> None:
    """Let processes be silent for longer: each compiles by itself, and anew for other shapes."""
    if group.world > 1:
        dist.set_timeout(COMPILING)


@contextmanager
def explain_lost_process(group: Group, cure: str) -> Generator[None]:
    """Say in one sentence that another process is gone, where that is what an error means."""
    try:
        yield
    except (RuntimeError, dist.DistError) as error:
        if group.world == 1 or not any(words in str(error) for words in LOST):
            raise
        raise RuntimeError(
            f"process {group.rank} of {group.world} lost touch with the others, of which one has "
            f"ended or hangs; nothing saved is lost, go on with: {cure}"
        ) from error


def data_parallel(model: nn.Module, group: Group) -> nn.Module:
    """The model in DistributedDataParallel, where there are others."""
    if group.world == 1:
        return model
    ids = [group.device.index] if group.device.type == "cuda" else None
    return DistributedDataParallel(model, device_ids=ids)


def shard(model: nn.Module, group: Group) -> nn.Module:
    """The model with its parameters split over the processes, block by block (FSDP2)."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(group.device.type, (group.world,))
    wholes = (module for module in model.modules() if getattr(module, "whole", False))
    inside_wholes = {part for module in wholes for part in module.modules()}
    for module in reversed(list(model.modules())):  # the inside first
        if isinstance(module, nn.ModuleList) and module not in inside_wholes:
            for block in module:
                if any(p.requires_grad for p in block.parameters()):
                    fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


@contextmanager
def unsharded(model: nn.Module) -> Generator[None]:
    """Gather all parameters of a sharded model, for processes that go at their own pace."""
    shards: list[Any] = [m for m in model.modules() if callable(getattr(m, "unshard", None))]
    for module in shards:
        module.set_reshard_after_forward(False, recurse=False)
        module.unshard()
    try:
        yield
    finally:
        for i, module in enumerate(shards):
            module.set_reshard_after_forward(i > 0, recurse=False)  # the outermost keeps its own
            module.reshard()


def sync_buffers(model: nn.Module, group: Group) -> None:
    """Broadcast the first process's buffers, such as the running statistics of BatchNorm."""
    if group.world > 1:
        for buffer in model.buffers():
            dist.broadcast(buffer, src=0)


@contextmanager
def no_sync(model: nn.Module, enabled: bool) -> Generator[None]:
    """Add up gradients without an all_reduce, for all but the last part of a step."""
    if isinstance(model, DistributedDataParallel):
        with cast(AbstractContextManager, model.no_sync() if enabled else nullcontext()):
            yield
        return
    set_sync = getattr(model, "set_requires_gradient_sync", None)  # of FSDP2
    if callable(set_sync):
        set_sync(not enabled)
    yield


def all_reduce(values: torch.Tensor, group: Group) -> torch.Tensor:
    """The sum over all processes."""
    if group.world > 1:
        values = values.to(group.device)
        dist.all_reduce(values)
    return values


def broadcast(value: Any, group: Group) -> Any:
    """The first process's value, in every process."""
    if group.world == 1:
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0, group=group.slow)
    return box[0]


def first_does(act: Callable[[], T], group: Group) -> T:
    """Call a function in the first process; all get its result, or raise its error."""
    result: Any = None
    if group.first:
        try:
            result = act()
        except (ValueError, OSError) as error:  # let the others know before this one gives up
            if group.world == 1:
                raise
            result = error
    result = broadcast(result, group)
    if isinstance(result, Exception):
        raise result
    return result


def all_gather(value: Any, group: Group) -> list[Any]:
    """The values of all processes, in the order of ranks."""
    if group.world == 1:
        return [value]
    box: list[Any] = [None] * group.world
    dist.all_gather_object(box, value, group=group.slow)
    return box


def barrier(group: Group) -> None:
    """Wait until all processes have come here."""
    if group.world > 1:
        dist.barrier(group=group.slow)

"""One process or many, under torchrun: who am I, and what do the others say.

Nothing outside this file asks whether there are others; with one process every function here is
the identity.
"""

import os
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

SIGNS = ("gloo", "Connection", "NCCL", "Socket", "timed out", "Timeout")
PATIENCE = timedelta(seconds=45)  # a rank that is silent this long within a step is gone
LONG = timedelta(days=1)  # while one works for all: fits a teacher, writes to a slow disk


@dataclass(frozen=True)
class Group:
    """This process among the others."""

    rank: int = 0
    world: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    patient: Any = None  # the same processes, who wait for each other for long

    @property
    def first(self) -> bool:
        return self.rank == 0


def chosen(device: str | None) -> str:
    """The device asked for, or the best there is."""
    return device or ("cuda" if torch.cuda.is_available() else "cpu")


@contextmanager
def joined(device: str | None = None) -> Generator[Group]:
    """Join the processes that torchrun started; alone if it did not."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    kind = chosen(device)
    here = torch.device(kind)
    if kind == "cuda":
        here = torch.device(kind, int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(here)
    if world == 1 and "MASTER_ADDR" not in os.environ:
        yield Group(device=here)
        return
    store, rank, world = next(dist.rendezvous("env://", timeout=PATIENCE))
    # torchrun keeps its store when it starts processes again; those that are gone left addresses.
    again = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    dist.init_process_group(
        "nccl" if kind == "cuda" else "gloo",
        store=dist.PrefixStore(f"start {again}", store),
        rank=rank,
        world_size=world,
        timeout=PATIENCE,
    )
    try:
        patient = dist.new_group(backend="gloo", timeout=LONG)
        yield Group(dist.get_rank(), dist.get_world_size(), here, patient)
    finally:
        dist.destroy_process_group()


@contextmanager
def together(group: Group, cure: str) -> Generator[None]:
    """Say in one sentence that another process is gone, where that is what an error means."""
    try:
        yield
    except (RuntimeError, dist.DistError) as error:
        if group.world == 1 or not any(sign in str(error) for sign in SIGNS):
            raise
        raise RuntimeError(
            f"process {group.rank} of {group.world} lost touch with the others, of which one has "
            f"ended or hangs; nothing saved is lost, go on with: {cure}"
        ) from error


def copied(model: nn.Module, group: Group) -> nn.Module:
    """The model in DistributedDataParallel, where there are others."""
    if group.world == 1:
        return model
    ids = [group.device.index] if group.device.type == "cuda" else None
    return DistributedDataParallel(model, device_ids=ids)


def sharded(model: nn.Module, group: Group) -> nn.Module:
    """The model with its parameters split over the processes, block by block (FSDP2)."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(group.device.type, (group.world,))
    wholes = (module for module in model.modules() if getattr(module, "whole", False))
    kept = {part for module in wholes for part in module.modules()}
    for module in reversed(list(model.modules())):  # the inside first
        if isinstance(module, nn.ModuleList) and module not in kept:
            for block in module:
                if any(p.requires_grad for p in block.parameters()):
                    fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


@contextmanager
def gathered_up(model: nn.Module) -> Generator[None]:
    """All parameters of a split model here, for processes that do not go step by step together."""
    split: list[Any] = [m for m in model.modules() if callable(getattr(m, "unshard", None))]
    for module in split:
        module.set_reshard_after_forward(False, recurse=False)
        module.unshard()
    try:
        yield
    finally:
        for i, module in enumerate(split):
            module.set_reshard_after_forward(i > 0, recurse=False)  # the outermost keeps its own
            module.reshard()


def agreed(model: nn.Module, group: Group) -> None:
    """The first process's buffers for all: statistics that each has counted for itself."""
    if group.world > 1:
        for buffer in model.buffers():
            dist.broadcast(buffer, src=0)


@contextmanager
def quiet(model: nn.Module, last: bool) -> Generator[None]:
    """Add up gradients without telling the others, until the last part of a step."""
    if isinstance(model, DistributedDataParallel):
        with cast(AbstractContextManager, nullcontext() if last else model.no_sync()):
            yield
        return
    announce = getattr(model, "set_requires_gradient_sync", None)
    if callable(announce):
        announce(last)
    yield


def total(values: torch.Tensor, group: Group) -> torch.Tensor:
    """The sum over all processes."""
    if group.world > 1:
        values = values.to(group.device)
        dist.all_reduce(values)
    return values


def told(value: Any, group: Group) -> Any:
    """What the first process says, to all."""
    if group.world == 1:
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0, group=group.patient)
    return box[0]


def gathered(value: Any, group: Group) -> list[Any]:
    """What each process says, in the order of ranks."""
    if group.world == 1:
        return [value]
    box: list[Any] = [None] * group.world
    dist.all_gather_object(box, value, group=group.patient)
    return box


def wait(group: Group) -> None:
    if group.world > 1:
        dist.barrier(group=group.patient)

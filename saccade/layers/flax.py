"""Convert weights between Flax layers and ours: names and layouts of each parameter.

Flax stores a dense kernel as (in, out), a convolution's as (height, width, in, out); torch puts
outputs first. An `Entry` converts both ways, so that one table serves to read, to write and to
check shapes.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

Change = Callable[[Tensor], Tensor]


class Entry(NamedTuple):
    """The name of one of our parameters, and the conversions of its layout from and to Flax."""

    parameter: str
    to_ours: Change = lambda t: t
    to_theirs: Change = lambda t: t


Entries = dict[str, Entry]  # by Flax path, such as "to_v/kernel"


def linear(path: str, name: str, bias: bool) -> Entries:
    kernel = {f"{path}/kernel": Entry(f"{name}.weight", lambda t: t.mT, lambda t: t.mT)}
    return {**kernel, f"{path}/bias": Entry(f"{name}.bias")} if bias else kernel


def norm(path: str, name: str) -> Entries:
    return {f"{path}/scale": Entry(f"{name}.weight"), f"{path}/bias": Entry(f"{name}.bias")}


def conv(path: str, name: str) -> Entries:
    def to_ours(t: Tensor) -> Tensor:
        return t.permute(3, 2, 0, 1)

    def to_theirs(t: Tensor) -> Tensor:
        return t.permute(2, 3, 1, 0)

    return {f"{path}/kernel": Entry(f"{name}.weight", to_ours, to_theirs)}


def under(path: str, name: str, entries: Entries) -> Entries:
    """A part's entries with the names that they have in the whole module."""
    return {
        f"{path}/{key}": entry._replace(parameter=f"{name}.{entry.parameter}")
        for key, entry in entries.items()
    }


def shapes(module: nn.Module, entries: Entries) -> dict[str, tuple[int, ...]]:
    """The shapes that a Flax tree must have to fill the module."""

    def theirs(entry: Entry) -> tuple[int, ...]:
        blank = torch.empty_like(module.get_parameter(entry.parameter), device="meta")
        return tuple(entry.to_theirs(blank).shape)

    return {path: theirs(entry) for path, entry in entries.items()}


def first_difference(shapes: Mapping[str, tuple[int, ...]], tree: Mapping[str, Any]) -> str:
    """Where a flat tree first departs from the wanted shapes, in words; "" if nowhere."""
    for path, shape in shapes.items():
        if path not in tree:
            return f"it has no {path!r} (shape {shape})"
        if np.shape(tree[path]) != shape:
            return f"{path!r} has shape {np.shape(tree[path])}, where {shape} is needed"
    extra = next((path for path in tree if path not in shapes), None)
    return f"{extra!r} has no place" if extra is not None else ""


@torch.no_grad()
def load(module: nn.Module, entries: Entries, tree: Mapping[str, Any], source: str) -> None:
    """Fill a module from a flat tree, or say at which entry the tree is of something else."""
    problem = first_difference(shapes(module, entries), tree)
    if problem:
        raise ValueError(f"from_flax: {source} is of another model: {problem}")
    for path, entry in entries.items():
        theirs = torch.as_tensor(np.array(tree[path]))  # a copy: what is read may be read-only
        module.get_parameter(entry.parameter).copy_(entry.to_ours(theirs))


def dump(module: nn.Module, entries: Entries) -> dict[str, np.ndarray]:
    """The module's weights as a flat Flax tree."""
    return {
        path: entry.to_theirs(module.get_parameter(entry.parameter).detach().cpu())
        .contiguous()
        .numpy()
        for path, entry in entries.items()
    }

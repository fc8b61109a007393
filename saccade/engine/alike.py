"""Check that the plain values and tensors of a checkpoint fit the run that loads them.

A checksum says that a file is unchanged, not who wrote it. So what is loaded into an optimiser or a
schedule is first compared with what it holds now: torch and timm accept any state, and a step with
sums of another shape would read memory outside of them.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

LARGEST = 1 << 63  # whole numbers


def check_alike(own: Any, read: Any, path: str) -> None:
    """Refuse values of another type, and tensors of another shape or dtype, than the run has.

    Args:
        own: what the run has: numbers, texts, tensors, and dicts, lists and tuples of them
        read: what a checkpoint has in its place; keys that only one of the two has are ignored
        path: what it is, for the sentence
    """
    if isinstance(own, Tensor):
        fits = isinstance(read, Tensor) and read.shape == own.shape and read.dtype == own.dtype
        inner = []
    elif isinstance(own, Mapping):
        fits = isinstance(read, Mapping)
        inner = [(own[key], read[key], key) for key in own if fits and key in read]
    elif isinstance(own, list | tuple):
        fits = isinstance(read, list | tuple) and len(read) == len(own)
        inner = [(a, b, i) for i, (a, b) in enumerate(zip(own, read, strict=False))] if fits else []
    elif isinstance(own, str):
        fits, inner = isinstance(read, str), []
    else:
        fits, inner = read is None or _is_number(read), []
    if not fits:
        raise TypeError(f"its {path} is {_short(read)}, where {_short(own)} should be")
    for a, b, key in inner:
        check_alike(a, b, f"{path}.{key}")


def _is_number(value: Any) -> bool:
    return isinstance(value, float) or (isinstance(value, int) and abs(value) < LARGEST)


def check_optimiser(optimiser: torch.optim.Optimizer, read: Any) -> None:
    """Refuse the state of another optimiser: other groups, or sums of other shapes."""
    own = optimiser.state_dict()
    if not isinstance(read, Mapping) or not {"state", "param_groups"} <= read.keys():
        raise TypeError(f"its optimiser is {_short(read)}")
    groups, states = read["param_groups"], read["state"]
    check_alike(own["param_groups"], groups, "optimiser's groups")
    if [group.get("params") for group in groups] != [g["params"] for g in own["param_groups"]]:
        raise TypeError("its optimiser's groups hold other parameters")
    if not isinstance(states, Mapping):
        raise TypeError(f"its optimiser's sums are {_short(states)}")
    parameters = [p for group in optimiser.param_groups for p in group["params"]]
    numbers = [number for group in own["param_groups"] for number in group["params"]]
    shapes = {number: p.shape for number, p in zip(numbers, parameters, strict=True)}
    for number, sums in states.items():
        if number not in shapes or not isinstance(sums, Mapping) or not sums:
            raise TypeError(f"its optimiser's sums of parameter {_short(number)} do not fit")
        for name, value in sums.items():
            if name == "use_muon" and isinstance(value, bool):  # timm's note beside its sums
                continue
            fits = isinstance(value, Tensor) and value.dtype.is_floating_point
            if not fits or value.shape not in (shapes[number], ()):
                raise TypeError(f"its optimiser's {_short(name)} of parameter {number} do not fit")


def _short(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of {tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"
    if isinstance(value, Mapping | list | tuple):
        return f"a {type(value).__name__} of {len(value)}"
    return repr(value)[:40]

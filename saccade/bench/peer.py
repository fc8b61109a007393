"""One candidate of a comparison: a function or module, and the arguments of its call."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from saccade.bench.clock import Call

Inputs = tuple[Tensor | None, ...]


class Shape(NamedTuple):
    """A batch of maps, and the heads that share its channels."""

    B: int
    H: int
    W: int
    C: int
    heads: int

    @classmethod
    def read(cls, text: str) -> "Shape":
        """From "4,56,64,8" (batch, side, channels, heads), or with sides "4,56x40,64,8"."""
        try:
            batch, sides, *rest = text.replace(" ", "").split(",")
            H, W = (sides if "x" in sides else f"{sides}x{sides}").split("x")
            shape = cls(*map(int, (batch, H, W, *rest)))
        except (ValueError, TypeError):
            raise ValueError(
                f"bench: a shape is batch,side,channels,heads such as 4,56,64,8 or 4,56x40,64,8, "
                f"got {text!r}"
            ) from None
        if min(shape) < 1:
            raise ValueError(f"bench: a shape is made of positive numbers, got {text!r}")
        if shape.C % shape.heads:
            raise ValueError(
                f"bench: heads must divide the channels, got {shape.C} channels and "
                f"{shape.heads} heads in {text!r}"
            )
        return shape

    def __str__(self) -> str:
        return f"{self.B} x {self.H} x {self.W} x {self.C}, {self.heads} heads"


class Work(NamedTuple):
    """The least work of a call: operations, and bytes to read and to write."""

    flops: int
    bytes: int


@dataclass(frozen=True)
class Peer:
    """One thing to measure.

    work    what it has to do, counted on a run if not given: peers that compute one function by
            different ways are all measured by the work of the function
    needs   bytes that it takes at most, roughly, where that may be too many
    absent  why it cannot run here; it is left out then, with this reason
    ready   it is compiled, or must not be
    """

    f: Callable[..., Tensor]
    inputs: Inputs
    work: Work | None = None
    needs: int = 0
    absent: str = ""
    ready: bool = False

    def call(self, train: bool = False, compiled: bool = False) -> Call:
        """A forward pass, or with the gradients of everything that asks for them."""
        f = compiled_quietly(self.f) if compiled and not self.ready else self.f
        if not train:
            return torch.inference_mode()(lambda: f(*self.inputs))
        leaves = tensors_with_gradients(self.f, self.inputs)
        gradient: list[Tensor] = []  # of the output, made in the first call: not part of the others

        def step() -> Sequence[Tensor]:
            y = f(*self.inputs)
            if not gradient:
                gradient.append(torch.randn_like(y))
            return torch.autograd.grad(y, leaves, gradient[0], allow_unused=True)

        return step

    def work_of(self, train: bool = False) -> Work:
        """The work: as given, else by the FLOP formulas that torch and we have registered."""
        return count(self.f, self.inputs, train) if self.work is None else self.work


def compiled_quietly(f: Callable[..., Tensor], **options: Any) -> Callable[..., Tensor]:
    """torch.compile, which else says on every machine without CUDA that there is none."""
    logging.getLogger("torch.utils.cpp_extension").setLevel("ERROR")
    return torch.compile(f, **options)


def tensors_with_gradients(f: Callable, inputs: Inputs) -> list[Tensor]:
    """The inputs and parameters with `requires_grad`."""
    own = list(f.parameters()) if isinstance(f, nn.Module) else []
    return [t for t in (*inputs, *own) if t is not None and t.requires_grad]


def count(f: Callable[..., Tensor], inputs: Inputs, train: bool) -> Work:
    """Run forward once to count: products by their formulas; inputs, parameters, output as bytes.

    A product has two in its backward (torch's own formulas for that go wrong where a convolution
    has groups). A forward pass reads inputs and writes the output; the backward reads both (the
    output's gradient, that is) and writes a gradient for whatever asks for one.
    """
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        y = f(*(None if t is None else t.detach() for t in inputs))
    own = list(f.parameters()) if isinstance(f, nn.Module) else []
    flops = counter.get_total_flops()
    bytes_moved = y.nbytes + sum(t.nbytes for t in (*inputs, *own) if t is not None)
    if not train:
        return Work(flops, bytes_moved)
    return Work(
        3 * flops, 2 * bytes_moved + sum(t.nbytes for t in tensors_with_gradients(f, inputs))
    )


def on_meta(inputs: Inputs) -> Inputs:
    """Stand-ins without data, on which counting is free."""
    return tuple(
        None if t is None else t.detach().to("meta").requires_grad_(t.requires_grad) for t in inputs
    )

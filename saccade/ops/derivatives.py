"""Derivatives that every operator takes from its plain form, and torch.vmap of any operator."""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


def second(
    plain: Callable[..., Tensor],
    grad: Tensor,
    inputs: Sequence[Tensor | None],
    weights: Sequence[Tensor | None],
) -> list[Tensor | None]:
    """The derivatives of sum(weights * gradients(grad, inputs)) by grad and by each input.

    `gradients(grad, inputs)` is the backward of `plain`; an input that is None has no derivative.
    """
    present = [i for i, x in enumerate(inputs) if x is not None]

    def filled(values: Sequence[Any]) -> list[Any]:
        whole: list[Any] = [None] * len(inputs)
        for i, x in zip(present, values, strict=True):
            whole[i] = x
        return whole

    def gradients(g: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
        return torch.func.vjp(lambda *xs: plain(*filled(xs)), *values)[1](g)

    values, pull, *_ = torch.func.vjp(gradients, grad, *(inputs[i] for i in present))
    cotangents = [weights[i] for i in present]
    cotangents = [
        torch.zeros_like(v) if c is None else c for v, c in zip(values, cotangents, strict=True)
    ]
    of_grad, *of_inputs = pull(tuple(cotangents))
    return [of_grad, *filled(of_inputs)]


@contextmanager
def autograd_inside() -> Generator[None]:
    """Let autograd see what happens inside an operator, which torch otherwise hides from it."""
    hidden = torch._C._dispatch_tls_is_dispatch_key_excluded
    hide = torch._C._dispatch_tls_set_dispatch_key_excluded
    kinds = torch._C.DispatchKey
    keys = (kinds.AutogradFunctionality, kinds.AutogradOther, kinds.ADInplaceOrView)
    before = [hidden(key) for key in keys]
    try:
        for key in keys:
            hide(key, False)
        with torch.enable_grad():
            yield
    finally:
        for key, was in zip(keys, before, strict=True):
            hide(key, was)


def sample_by_sample(call: Callable) -> Callable:
    """torch.vmap of an operator: each sample by itself."""

    def rule(info: Any, axes: tuple, *args: Any) -> tuple[Any, Any]:
        def sample(i: int) -> Any:
            pairs = zip(args, axes, strict=True)
            return call(*(x if axis is None else x.select(axis, i) for x, axis in pairs))

        if not info.batch_size:
            raise ValueError(f"{call}: torch.vmap over no samples; give it at least one")
        results = [sample(i) for i in range(info.batch_size)]
        if isinstance(results[0], Tensor):
            return torch.stack(results), 0
        stacked = tuple(torch.stack(parts) for parts in zip(*results, strict=True))
        return stacked, (0,) * len(stacked)

    return rule

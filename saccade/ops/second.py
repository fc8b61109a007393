"""What a fused operator leaves to its plain form: second derivatives, and torch.func."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.autograd import forward_ad


def second(
    plain: Callable[..., Tensor],
    grad: Tensor,
    inputs: Sequence[Tensor | None],
    weights: Sequence[Tensor | None],
) -> list[Tensor | None]:
    """The derivative of sum of weights * gradients(grad, inputs), by grad and by each input.

    `gradients` are those of `plain` at `inputs`, weighed with `grad`; an absent input has none.
    """
    there = [i for i, x in enumerate(inputs) if x is not None]
    present = [inputs[i] for i in there]

    def gradients(g: Tensor, *present: Tensor) -> tuple[Tensor, ...]:
        def y(*present: Tensor) -> Tensor:
            whole: list[Tensor | None] = [None] * len(inputs)
            for i, x in zip(there, present, strict=True):
                whole[i] = x
            return plain(*whole)

        return torch.func.vjp(y, *present)[1](g)

    values, pull, *_ = torch.func.vjp(gradients, grad, *present)
    chosen = [weights[i] for i in there]
    chosen = [torch.zeros_like(v) if c is None else c for v, c in zip(values, chosen, strict=True)]
    of_grad, *of_present = pull(tuple(chosen))
    whole: list[Tensor | None] = [None] * len(inputs)
    for i, x in zip(there, of_present, strict=True):
        whole[i] = x
    return [of_grad, *whole]


def transformed() -> bool:
    """Within torch.func (vmap, jacrev, ...) or forward-mode derivatives.

    A compiled graph has already resolved both.
    """
    if torch.compiler.is_compiling():
        return False
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0

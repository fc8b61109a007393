"""Every kernel of this machine against its equation in float64, and its speed beside its peers.

`saccade bench --self-test` prints what a maintainer needs to know of a machine that they do not
have: which kernels there are, whether each computes its operator, forward and backward, over random
configurations, and how fast they are beside FlexAttention and scaled_dot_product_attention.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import torch
from torch import Tensor

from saccade.bench import operators
from saccade.bench.peer import Peer, Shape
from saccade.ops import branches as _branches  # noqa: F401
from saccade.ops import feed, linear, linglo, qna, residual, sasa, sasa_block  # noqa: F401 (declare)
from saccade.ops.operator import OPERATORS, Kernel, Operator, use_backend

# The largest deviation, in units of the largest entry of a result.
TOLERANCE = {
    torch.float64: 1e-9,
    torch.float32: 2e-4,
    torch.float16: 1e-2,
    torch.bfloat16: 4e-2,
}
TRIES = 50  # for a configuration that a kernel takes


@dataclass(frozen=True)
class Finding:
    """What came of one kernel in one dtype."""

    operator: str
    form: str
    dtype: str
    configurations: int
    error: float  # the largest, in units of the tolerance
    wrong: str = ""  # the first configuration that is beyond it, or failed

    @property
    def fine(self) -> bool:
        return not self.wrong


class Draw:
    """Random sizes and tensors."""

    def __init__(self, seed: int, device: str):
        self.random = Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.device = device

    def whole(self, least: int, most: int) -> int:
        return self.random.randint(least, most)

    def one_of(self, *choices: Any) -> Any:
        return self.random.choice(choices)

    def tensor(self, *shape: int, scale: float = 1.0) -> Tensor:
        return (torch.randn(shape, generator=self.generator) * scale).to(self.device)

    def matrix(self, outputs: int, inputs: int) -> Tensor:
        return self.tensor(outputs, inputs, scale=inputs**-0.5)


# -- inputs of each operator ----------------------------------------------------------------------


def _local_attention(draw: Draw) -> tuple[Any, ...]:
    heads, d, k = draw.whole(1, 3), 2 * draw.whole(1, 16), draw.one_of(3, 5, 7, 7, 9)
    size = draw.whole(1, 2), heads * d, draw.whole(1, 15), draw.whole(1, 15)
    q, key, v = (draw.tensor(*size, scale=s) for s in (d**-0.25, d**-0.25, 1))
    tables = [draw.tensor(draw.one_of(1, heads), k, d // 2, scale=0.5)]
    tables.append(draw.tensor(*tables[0].shape, scale=0.5))
    row, col = draw.one_of(tables, tables, (None, None))
    content = row is None or draw.one_of(True, True, False)
    return q, key if content else None, v, row, col, heads, k, draw.one_of("zero", "mask")


def _tables(draw: Draw, k: int, L: int, heads: int) -> tuple[Tensor, Tensor]:
    return draw.tensor(k, k, L, heads), draw.tensor(k, k, L, heads)


def _aggregate(draw: Draw) -> tuple[Any, ...]:
    L, heads, d, k = draw.whole(1, 3), draw.whole(1, 5), draw.one_of(4, 8, 16), draw.whole(2, 7)
    B, H, W = draw.whole(1, 2), draw.whole(k, 15), draw.whole(k, 15)
    s, v = draw.tensor(B, H, W, L, heads), draw.tensor(B, H, W, heads, d)
    rpe, ws = _tables(draw, k, L, heads)
    return s, v, rpe, draw.one_of(ws, None), draw.whole(1, 2), k // 2, True


def _attend(draw: Draw) -> tuple[Any, ...]:
    L, heads, d, k = draw.whole(1, 3), draw.whole(1, 4), draw.one_of(4, 8), draw.one_of(3, 5, 7)
    C, V = draw.whole(4, 40), heads * d
    x = draw.tensor(draw.whole(1, 2), draw.whole(k, 15), draw.whole(k, 15), C)
    rpe, ws = _tables(draw, k, L, heads)
    weight, mix = draw.matrix(V + L * heads, C), draw.matrix(draw.whole(4, 40), V)
    biases = draw.tensor(len(weight)), draw.tensor(len(mix))
    return x, weight, biases[0], rpe, ws, mix, biases[1], draw.whole(1, 2), k // 2


def _key_only_letters(draw: Draw, C: int, heads: int) -> tuple[Tensor, ...]:
    def pair() -> tuple[Tensor, Tensor]:
        return draw.matrix(C, C), draw.tensor(C, scale=0.3)

    return *pair(), *pair(), draw.matrix(heads, C), *pair(), *pair()


def _key_only(draw: Draw) -> tuple[Any, ...]:
    heads = draw.whole(1, 4)
    C = heads * draw.whole(2, 12)
    return draw.tensor(draw.whole(1, 3), draw.whole(2, 90), C), *_key_only_letters(draw, C, heads)


def _map(draw: Draw, C: int) -> Tensor:
    return draw.tensor(draw.whole(1, 2), draw.whole(8, 15), draw.whole(8, 15), C)


def _norm(draw: Draw, C: int) -> tuple[Tensor, Tensor]:
    return 1 + draw.tensor(C, scale=0.2), draw.tensor(C, scale=0.3)


def _feed_letters(draw: Draw, C: int, D: int) -> tuple[Any, ...]:
    J = 16 * draw.whole(1, 4)
    taps = draw.one_of((draw.tensor(J, 1, 3, 3, scale=0.3), draw.tensor(J)), (None, None))
    return draw.matrix(J, C), draw.tensor(J), *taps, draw.matrix(D, J), draw.tensor(D)


def _feed_forward(draw: Draw) -> tuple[Any, ...]:
    C = draw.whole(2, 40)
    return _map(draw, C), *_feed_letters(draw, C, draw.whole(2, 40)), draw.one_of(True, False)


def _feed_residual(draw: Draw) -> tuple[Any, ...]:
    C = draw.whole(4, 40)
    letters = _feed_letters(draw, C, C)
    return _map(draw, C), *_norm(draw, C), *letters, draw.one_of(True, False), 1e-6


def _key_only_residual(draw: Draw) -> tuple[Any, ...]:
    heads = draw.whole(1, 4)
    C = heads * draw.whole(2, 12)
    return _map(draw, C), *_norm(draw, C), *_key_only_letters(draw, C, heads), 1e-6


def _feed_branches(draw: Draw) -> tuple[Any, ...]:
    C, D, J, n = draw.whole(2, 30), draw.whole(2, 30), 16 * draw.whole(1, 3), draw.whole(1, 4)
    k = draw.tensor(n, J, 1, 3, 3, scale=0.3)
    gamma, beta = 1 + draw.tensor(n, J, scale=0.2), draw.tensor(n, J, scale=0.3)
    w1, w2 = (draw.matrix(J, C), draw.tensor(J)), (draw.matrix(D, J), draw.tensor(D))
    return _map(draw, C), *w1, k, gamma, beta, *w2, 1e-5, draw.one_of(True, False), False


def _linear(draw: Draw) -> tuple[Any, ...]:
    D, C = draw.whole(1, 60), draw.whole(1, 60)
    x = draw.tensor(draw.whole(1, 3), draw.whole(64, 200), C)
    return x, draw.matrix(D, C), draw.one_of(draw.tensor(D), None)


def _blocks(draw: Draw) -> tuple[Any, ...]:
    heads, C = draw.whole(1, 4), draw.whole(1, 8)
    D = heads * 8 * draw.whole(1, 2)
    x = draw.tensor(draw.whole(1, 2), C, draw.whole(1, 18), draw.whole(1, 18))
    values = torch.stack([draw.matrix(D, C) for _ in range(16)])
    tables = draw.tensor(7, D // heads // 2), draw.tensor(7, D // heads // 2)
    row, col = draw.one_of(tables, (None, None))
    return (
        x,
        draw.matrix(D, C),
        draw.matrix(D, C),
        values,
        row,
        col,
        heads,
        draw.one_of(True, False),
    )


def _maximum(draw: Draw) -> tuple[Any, ...]:
    *tensors, heads, mask = _blocks(draw)
    return *tensors, *_norm(draw, len(tensors[1])), heads, mask


INPUTS: dict[str, Callable[[Draw], tuple[Any, ...]]] = {
    "local_attention": _local_attention,
    "aggregate": _aggregate,
    "attend": _attend,
    "key_only": _key_only,
    "key_only_residual": _key_only_residual,
    "feed_forward": _feed_forward,
    "feed_residual": _feed_residual,
    "feed_branches": _feed_branches,
    "linear": _linear,
    "attend_blocks": _blocks,
    "maximum_of_blocks": _maximum,
}


# -- numbers --------------------------------------------------------------------------------------


def verify(
    device: str = "cpu",
    configurations: int = 5,
    seed: int = 0,
    only: Callable[[str, str], bool] = lambda operator, form: True,
) -> Iterator[Finding]:
    """Compare every kernel that can be called here with its equation in float64.

    Args:
        device: where tensors lie
        configurations: random ones, of each kernel in each dtype
        seed: other ones
        only: which kernels, by the names of operator and form
    """
    for operator in OPERATORS.values():
        for form, kernel in operator.kernels.items():
            here = kernel.device in (None, device) and kernel.ready()
            if here and operator.name in INPUTS and only(operator.name, form):
                for dtype in _dtypes(kernel, device):
                    yield _verified(operator, form, dtype, device, configurations, seed)


def _dtypes(kernel: Kernel, device: str) -> tuple[torch.dtype, ...]:
    half = (torch.float16,) if device == "cuda" else ()
    return kernel.dtypes or (torch.float32, torch.bfloat16, *half)


def _verified(
    operator: Operator, form: str, dtype: torch.dtype, device: str, configurations: int, seed: int
) -> Finding:
    draw, worst = Draw(seed, device), 0.0
    finding = Finding(operator.name, form, str(dtype).removeprefix("torch."), 0, 0.0)
    for count in range(1, configurations + 1):
        inputs = _inputs_for(operator, operator.kernels[form], dtype, draw)
        if inputs is None:
            return replace(finding, wrong=f"takes none of {TRIES} random configurations")
        try:
            error = _error(operator, form, inputs) / TOLERANCE[dtype]
        except Exception as failure:  # whatever a compiler or a driver may say
            reason = str(failure).strip().partition("\n")[0]
            return replace(finding, wrong=f"{type(failure).__name__}: {reason}; {_shapes(inputs)}")
        worst = max(worst, error)
        finding = replace(finding, configurations=count, error=worst)
        if not error <= 1:
            return replace(finding, error=error, wrong=_shapes(inputs))
    return finding


def _inputs_for(
    operator: Operator, kernel: Kernel, dtype: torch.dtype, draw: Draw
) -> tuple[Any, ...] | None:
    """Inputs that the kernel takes; leaves, where it has a backward."""
    train = kernel.backward is not None
    for _ in range(TRIES):
        inputs = INPUTS[operator.name](draw)
        inputs = tuple(
            x.to(dtype).requires_grad_(train) if isinstance(x, Tensor) else x for x in inputs
        )
        if operator.fits(kernel, inputs):
            return inputs
    return None


def _error(operator: Operator, form: str, inputs: tuple[Any, ...]) -> float:
    """The largest deviation of the output and the gradients, in units of the largest entry."""
    exact = tuple(
        x.detach().double().requires_grad_(x.requires_grad) if isinstance(x, Tensor) else x
        for x in inputs
    )
    with use_backend("plain"):
        want = _results(operator, next(iter(operator.plain)), exact)
    got = _results(operator, form, inputs)
    # A gradient may be zero up to the rounding of the others.
    largest = max((t.abs().max().item() for t in want[1:]), default=0.0)
    units = [max(t.abs().max().item(), 0.1 * largest * (i > 0)) for i, t in enumerate(want)]
    return max(
        ((a.double() - b).abs().max() / max(unit, 1e-30)).item()
        for a, b, unit in zip(got, want, units, strict=True)
    )


def _results(operator: Operator, form: str, inputs: tuple[Any, ...]) -> list[Tensor]:
    y = operator(*inputs, backend=form)
    leaves = [x for x in inputs if isinstance(x, Tensor) and x.requires_grad]
    if not leaves:
        return [y]
    g = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y)
    return [y, *torch.autograd.grad(y, leaves, g, materialize_grads=True)]


def _shapes(inputs: tuple[Any, ...]) -> str:
    return ", ".join(str([*x.shape]) if isinstance(x, Tensor) else str(x) for x in inputs)


# -- speed ----------------------------------------------------------------------------------------


def peers(device: str, train: bool) -> dict[str, dict[str, Peer]]:
    """The operators of the three papers beside general attention, and what they compute."""
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    shape = Shape(32, 56, 56, 64, 8) if device == "cuda" else Shape(1, 28, 28, 64, 8)
    how: dict[str, Any] = {"train": train, "dtype": dtype, "device": device}
    kinds = {"sasa": ["flex", "global", "unfold"], "qna": ["global"], "linglo": ["global"]}
    names = {"flex": "FlexAttention", "global": "SDPA, whole map", "unfold": "unfold"}
    return {
        f"{word}, {shape}": {
            names.get(name, name): peer
            for name, peer in operators.peers(word, others, shape, **how).items()
        }
        for word, others in kinds.items()
    }

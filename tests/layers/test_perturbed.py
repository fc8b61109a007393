"""Layers with odd parts, at random: right or refused, never a wrong number.

A case draws a layer, does something odd to one or two of its parts (another dtype or device, odd
strides, other modules in their place) and gives it an odd input. Three computations then speak:

    exact    the equation as calls of the sub-modules, everything in float64
    plain    the same calls in the dtypes that are there, which is what a plain nn.Module would do
    layer    the layer itself

Where the layer answers, its output and gradients equal `exact`. Where it refuses, it says so by a
ValueError, RuntimeError or TypeError; and it may only refuse where `plain` raises too, or where
parts do not fit together (`MAY_REFUSE`).
"""

import random
from contextlib import nullcontext
from functools import partial
from itertools import product

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

from saccade.layers.block import FeedForward
from saccade.layers.conv import Conv1x1, Conv3x3
from saccade.layers.dot import DotProductAttention
from saccade.layers.linglo import KeyOnlyAttention
from saccade.layers.position import RPCPE
from saccade.layers.qna import LearnedQueryAttention, LearnedQueryUpsampling
from saccade.layers.sasa import StandAloneAttention
from saccade.layers.sasa_stem import AttentionStem
from saccade.layers.window import WindowAttention
from tests.layers import by_calls
from tests.layers.by_calls import Layer

pytestmark = pytest.mark.usefixtures("untyped")  # what counts is what a user's process does

CLEAR = (ValueError, RuntimeError, TypeError)
TOLERANCE = {torch.float64: 1e-8, torch.float32: 5e-4, torch.float16: 3e-2, torch.bfloat16: 1.5e-1}


# -- layers at random -----------------------------------------------------------------------------


def key_only(rng):
    heads, d = rng.choice((1, 2, 4)), rng.choice((1, 3, 4, 8, 16))
    return Layer(partial(KeyOnlyAttention, heads * d, heads), by_calls.key_only, heads * d)


def learned_queries(rng):
    heads, d, dim = rng.choice((1, 2, 4)), rng.choice((1, 2, 4, 8, 16)), rng.choice((3, 8, 16))
    options = {
        "window": rng.choice((1, 3, 3, 5)), "stride": rng.choice((1, 1, 2, 3)),
        "queries": rng.randint(1, 4), "width": heads * d, "bias": rng.random() < 0.5,
        "normalize": rng.random() < 0.8, "scale": rng.random() < 0.7,
        "out_dim": rng.choice((None, 5)),
    }  # fmt: skip
    make = partial(LearnedQueryAttention, dim, heads, **options)
    return Layer(make, by_calls.learned_queries, dim)


def learned_upsampling(rng):
    heads, d, dim = rng.choice((1, 2)), rng.choice((1, 4, 8)), rng.choice((3, 8))
    options = {"factor": rng.randint(1, 3), "width": heads * d, "bias": rng.random() < 0.5}
    make = partial(LearnedQueryUpsampling, dim, heads, **options)
    return Layer(make, by_calls.learned_upsampling, dim)


def stand_alone(rng):
    position = rng.choice(("relative", "relative", "none"))
    heads = rng.choice((1, 2, 4))
    d = rng.choice((2, 4, 8, 16) if position == "relative" else (1, 3, 8))
    options = {
        "heads": heads, "window": rng.choice((1, 3, 3, 5, 7)), "stride": rng.choice((1, 1, 2)),
        "border": rng.choice(("zero", "mask")), "content": rng.random() < 0.8,
        "position": position, "shared": rng.random() < 0.5, "scale": rng.random() < 0.3,
    }  # fmt: skip
    dim = rng.choice((4, 8, heads * d))
    make = partial(StandAloneAttention, dim, heads * d, **options)
    return Layer(make, by_calls.stand_alone, dim, False)


def attention_stem(rng):
    heads, values = rng.choice((1, 2)), rng.choice(("mixture", "mixture", "pointwise", "conv"))
    options = {
        "heads": heads, "values": values, "border": rng.choice(("zero", "mask")),
        "position": rng.choice(("relative", "none")),
    }  # fmt: skip
    make = partial(AttentionStem, 3, heads * rng.choice((2, 16, 32)), **options)
    return Layer(make, partial(by_calls.attention_stem, values=values), 3, False)


def position(rng):
    dim, norm, skip = rng.choice((1, 5, 16)), rng.random() < 0.4, rng.random() < 0.6
    make = partial(RPCPE, dim, rng.randint(1, 4), skip=skip, norm=norm)
    return Layer(make, by_calls.position, dim, False)


def feed_forward(rng):
    dim, hidden = rng.choice((3, 8, 16)), rng.choice((7, 16, 32))
    branches, tanh = rng.choice((0, 0, 2)), rng.choice(("none", "tanh"))

    def make():
        encode = RPCPE(hidden, branches) if branches else None
        return FeedForward(dim, hidden, encode, act=partial(nn.GELU, approximate=tanh))

    return Layer(make, by_calls.feed_forward, dim)


def window_attention(rng):
    heads, d = rng.choice((1, 2, 4)), rng.choice((1, 4, 8))
    make = partial(WindowAttention, heads * d, heads, rng.randint(1, 4))
    return Layer(make, by_calls.window_attention, heads * d)


def dot_product(rng):
    heads, d = rng.choice((1, 2, 4)), rng.choice((1, 4, 8))
    return Layer(partial(DotProductAttention, heads * d, heads), by_calls.dot_product, heads * d)


def convolution(rng):
    kind, dim, out = rng.choice((Conv1x1, Conv3x3)), rng.choice((3, 8)), rng.choice((4, 16))
    stride, bias = rng.choice((1, 1, 2)), rng.random() < 0.5
    make = lambda: nn.Sequential(kind(dim, out, stride, bias))  # noqa: E731
    return Layer(make, by_calls.convolution, dim, False)


FAMILIES = (
    key_only, key_only, learned_queries, learned_queries, learned_upsampling, stand_alone,
    stand_alone, attention_stem, position, feed_forward, window_attention, dot_product, convolution,
)  # fmt: skip


# -- what is done to a projection -----------------------------------------------------------------


def replaced(layer, part, module):
    parent, _, leaf = part.rpartition(".")
    setattr(layer.get_submodule(parent), leaf, module)


def spread(t):
    """The same numbers, every second one of a longer memory, with large ones between them."""
    memory = torch.full((*t.shape[:-1], 2 * t.shape[-1]), 1e30).to(t)
    memory[..., ::2] = t
    return memory[..., ::2]


def shifted(t):
    """The same numbers, from the third place of a memory on."""
    memory = torch.full((t.numel() + 5,), 1e30).to(t)
    inside = memory[3 : 3 + t.numel()].view(t.shape)
    inside.copy_(t)
    return inside


def transposed(t):
    last = t.ndim - 1
    return t.transpose(0, last).contiguous().transpose(0, last)


def repeated(t):
    return t[:1].expand_as(t) if t.numel() else t


STRIDES = (spread, shifted, transposed, repeated)


def cast(layer, part, rng):
    layer.get_submodule(part).to(rng.choice((torch.bfloat16, torch.float16, torch.float64)))


def moved(layer, part, rng):
    layer.get_submodule(part).to("meta")


def strided_weight(layer, part, rng):
    module = layer.get_submodule(part)
    module.weight = nn.Parameter(rng.choice(STRIDES)(module.weight.detach()))


def strided_bias(layer, part, rng):
    module, how = layer.get_submodule(part), rng.choice((spread, shifted, repeated))
    bias = torch.linspace(-1, 1, len(module.weight)).to(module.weight)
    module.bias = nn.Parameter(how(bias))


def without_bias(layer, part, rng):
    layer.get_submodule(part).bias = None


def attribute_as_weight(layer, part, rng):
    """As torch's older parametrisations leave it: a tensor that is no parameter."""
    module = layer.get_submodule(part)
    weight = module.weight.detach()
    del module.weight
    module.weight = weight * 1.5


def subclassed(layer, part, rng):
    module = layer.get_submodule(part)
    kind = type(module)
    module.__class__ = type("Louder", (kind,), {"forward": lambda m, x: 1.5 * kind.forward(m, x)})


def patched(layer, part, rng):
    module = layer.get_submodule(part)
    forward = type(module).forward
    module.forward = lambda x: 1.5 * forward(module, x)


def in_sequence(layer, part, rng):
    replaced(layer, part, nn.Sequential(layer.get_submodule(part), nn.GELU()))


def as_identity(layer, part, rng):
    weight = layer.get_submodule(part).weight
    if weight.shape[0] == weight.shape[1] and weight[0, 0].numel() == 1:
        replaced(layer, part, nn.Identity())


def hooked(layer, part, rng):
    layer.get_submodule(part).register_forward_hook(lambda m, x, y: y * 1.5)


def hooked_before(layer, part, rng):
    layer.get_submodule(part).register_forward_pre_hook(lambda m, x: (x[0] * 1.5,))


def pruned(layer, part, rng):
    prune.l1_unstructured(layer.get_submodule(part), "weight", amount=0.5)


def weight_normed(layer, part, rng):
    parametrizations.weight_norm(layer.get_submodule(part))


def frozen(layer, part, rng):
    layer.get_submodule(part).requires_grad_(False)


def tied(layer, part, rng):
    """Another part of the same shape becomes the very same module."""
    module = layer.get_submodule(part)
    for other, m in layer.named_modules():
        if other != part and type(m) is type(module) and m.weight.shape == module.weight.shape:
            return replaced(layer, other, module)
    return None


def narrowed(layer, part, rng):
    """Fewer outputs than the rest of the layer expects."""
    module = layer.get_submodule(part)
    rows = max(1, len(module.weight) // 2)
    module.weight = nn.Parameter(module.weight.detach()[:rows].clone())
    if module.bias is not None:
        module.bias = nn.Parameter(module.bias.detach()[:rows].clone())


def short_bias(layer, part, rng):
    module = layer.get_submodule(part)
    module.bias = nn.Parameter(torch.ones(max(1, len(module.weight) - 1)).to(module.weight))


ON_PROJECTIONS = (
    cast, cast, moved, strided_weight, strided_weight, strided_bias, without_bias, subclassed,
    attribute_as_weight, patched, in_sequence, as_identity, hooked, hooked_before, pruned,
    weight_normed, frozen, tied, narrowed, short_bias,
)  # fmt: skip


# -- what is done to a layer's own parameters -----------------------------------------------------


def owned(layer, name):
    parent, _, leaf = name.rpartition(".")
    module = layer.get_submodule(parent)
    return module, leaf, getattr(module, leaf).detach()


def cast_table(layer, name, rng):
    module, leaf, table = owned(layer, name)
    dtype = rng.choice((torch.bfloat16, torch.float16, torch.float64))
    setattr(module, leaf, nn.Parameter(table.to(dtype)))


def moved_table(layer, name, rng):
    module, leaf, table = owned(layer, name)
    setattr(module, leaf, nn.Parameter(table.to("meta")))


def strided_table(layer, name, rng):
    module, leaf, table = owned(layer, name)
    setattr(module, leaf, nn.Parameter(rng.choice(STRIDES)(table)))


def short_table(layer, name, rng):
    module, leaf, table = owned(layer, name)
    axis = rng.randrange(table.ndim)
    if table.shape[axis] > 1:
        table = table.narrow(axis, 0, table.shape[axis] - 1).clone()
    setattr(module, leaf, nn.Parameter(table))


ON_TABLES = (cast_table, moved_table, strided_table, strided_table, short_table)

MAY_REFUSE = {cast, moved, narrowed, short_bias, cast_table, moved_table, short_table}
ON_META = {moved, moved_table}


# -- inputs at random -----------------------------------------------------------------------------


def laid_out(x, rng):
    """The same numbers in another memory."""
    layout = rng.choice(("contiguous", "spread", "shifted", "transposed", "negated", "repeated"))
    if layout == "negated" and x.dtype in (torch.float32, torch.float64) and x.numel():
        return torch.complex(torch.zeros_like(x), -x).conj().imag, layout  # stored with a minus
    forms = {"spread": spread, "shifted": shifted, "transposed": transposed, "repeated": repeated}
    return forms[layout](x) if layout in forms else x.contiguous(), layout


class Case:
    """All that is drawn for one number."""

    def __init__(self, number):
        rng = self.rng = random.Random(number)
        family = rng.choice(FAMILIES)
        self.number, self.layer = number, family(rng)
        self.dtype = rng.choice(
            (torch.float32,) * 5 + (torch.bfloat16, torch.float16, torch.float64)
        )
        self.train, self.grad = rng.random() < 0.4, rng.random() < 0.6
        self.autocast = self.dtype == torch.float32 and rng.random() < 0.1
        self.size = rng.choice((0, 1, 2, 2, 3)), rng.randint(1, 14), rng.randint(1, 14)
        model = self.layer.built(number)
        projections = [n for n, m in model.named_modules() if isinstance(m, nn.Linear | nn.Conv2d)]
        tables = [n for n, _ in model.named_parameters() if n.rpartition(".")[0] not in projections]
        self.changes = []
        for _ in range(rng.choice((1, 1, 2))):
            on_tables = tables and rng.random() < 0.3
            change = rng.choice(ON_TABLES if on_tables else ON_PROJECTIONS)
            part = rng.choice(tables if on_tables else projections)
            self.changes.append((change, part, rng.random()))
            if not on_tables:
                projections.remove(part)  # a part is changed once
            if not projections:
                break
        x = self.layer.image(*self.size, seed=number).to(self.dtype)
        self.x, self.layout = laid_out(x, rng)
        self.family = family.__name__

    def __str__(self):
        result = ", ".join(f"{change.__name__}({part})" for change, part, _ in self.changes)
        mode = f"{'train' if self.train else 'eval'} {'grad' if self.grad else 'no_grad'}"
        return (
            f"case {self.number}: {self.family} {self.dtype} {self.size} {self.layout} input, "
            f"{mode}{' autocast' if self.autocast else ''}: {result}"
        )

    def built(self):
        layer = self.layer.built(self.number).to(self.dtype).train(self.train)
        for change, part, seed in self.changes:
            change(layer, part, random.Random(seed))
        return layer

    def narrowest(self):
        dtypes = {p.dtype for p in self.built().parameters()} | {self.dtype}
        dtypes |= {torch.bfloat16} if self.autocast else set()
        return max(dtypes & TOLERANCE.keys(), key=TOLERANCE.__getitem__)


def exactly(layer):
    layer.double()
    for module in layer.modules():
        for name, value in vars(module).items():
            if isinstance(value, torch.Tensor):
                setattr(module, name, value.double())
    return layer


def computed(function, layer, x, grad):
    """Output and gradients, or the exception."""
    try:
        with torch.set_grad_enabled(grad):
            x = x.detach().requires_grad_(grad)
            y = function(x)
            if grad and y.requires_grad and y.device.type != "meta":
                wave = torch.arange(y.numel()).cos().view(y.shape)
                (y * wave.to(y)).sum().backward()
        grads = {n: p.grad for n, p in layer.named_parameters() if p.grad is not None}
        return y.detach(), {"input": x.grad, **grads} if grad else {}
    except Exception as error:
        return error, {}


def error(got, want, least=0.0):
    got, want = got.double(), want.double()
    size = max(want.abs().max().item(), least)
    return ((got - want).abs().max() / size).item() if size else got.abs().max().item()


def complaint(case):
    """What is wrong with the layer's answer; None if nothing."""
    layer, plain, exact = case.built(), case.built(), exactly(case.built())
    function, changes = case.layer.by_calls, {change for change, *_ in case.changes}
    cast = torch.autocast("cpu", torch.bfloat16) if case.autocast else nullcontext()
    with cast:
        got, grads = computed(layer, layer, case.x, case.grad)
        called, called_grads = computed(partial(function, plain), plain, case.x, case.grad)
    want, exact_grads = computed(partial(function, exact), exact, case.x.double(), case.grad)
    if isinstance(got, Exception):
        unlike = type(got) is not type(called)  # torch's own exception is as clear as torch is
        if not str(got) or (unlike and not isinstance(got, CLEAR)):
            return f"unclear {type(got).__name__}: {got}"
        if changes & MAY_REFUSE or isinstance(called, Exception):
            return None
        return f"refused what its parts can do: {type(got).__name__}: {got}"
    if changes & ON_META and not isinstance(called, Exception):
        return None  # torch itself computes with what is not there
    if got.device.type == "meta":
        return None if changes & ON_META else "output on meta"
    if isinstance(want, Exception):
        return f"a number where the equation has none: {type(want).__name__}: {want}"
    if got.shape != want.shape:
        return f"shape {tuple(got.shape)}, not {tuple(want.shape)}"
    if not got.numel():
        return None
    tolerance = TOLERANCE[case.narrowest()]
    off = error(got, want)
    if not off < tolerance and not (_is_number(called) and off < 4 * error(called, want)):
        return f"output off by {off:.2g}, where {tolerance:.0e} is allowed"
    if tolerance > 1e-3 and case.family == "attention_stem":
        return None  # rounded values have their maxima elsewhere, and so their gradients
    sizes = {n: g.abs().max().item() for n, g in exact_grads.items() if g is not None}
    largest = max(sizes.values(), default=0.0)
    for name, size in sizes.items():
        if size < 1e-6 * largest:
            continue  # such as the bias of keys, which cancels in the softmax
        if grads.get(name) is None:
            return f"no gradient for {name}"
        measure = partial(error, want=exact_grads[name], least=1e-3 * largest)
        off, theirs = measure(grads[name]), called_grads.get(name)
        if not off < 4 * tolerance and not (_is_number(theirs) and off < 4 * measure(theirs)):
            return f"gradient of {name} off by {off:.2g}"
    return None


def _is_number(value):
    return isinstance(value, torch.Tensor) and value.device.type == "cpu"


class Known(Case):
    """One change to one part of a layer of the table, in float32."""

    def __init__(self, name, change, grad):
        self.number, self.family, self.layer = 0, name, by_calls.LAYERS[name]
        self.dtype, self.train, self.grad, self.autocast = torch.float32, False, grad, False
        self.size, self.layout, self.changes = (2, 12, 13), "contiguous", [(change, "", 0)]
        self.x = self.layer.image(*self.size)


def to(part, dtype):
    def cast(layer, *_):
        layer.get_submodule(part).to(dtype)

    return cast


def bias(part, how):
    def strided(layer, *_):
        module = layer.get_submodule(part)
        module.bias = nn.Parameter(how(torch.linspace(-1, 1, len(module.weight))))

    return strided


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("name", by_calls.LAYERS)
@pytest.mark.filterwarnings("ignore")
def test_one_part_of_another_dtype(name, dtype):
    layer = by_calls.LAYERS[name].make()
    parts = [n for n, m in layer.named_modules() if n and next(m.parameters(), None) is not None]
    wrong = {}
    for part, grad in product(parts, (True, False)):
        change = to(part, dtype)
        MAY_REFUSE.add(change)
        wrong[part, grad] = complaint(Known(name, change, grad))
    assert not {where: what for where, what in wrong.items() if what}


@pytest.mark.parametrize("how", [spread, shifted, repeated])
@pytest.mark.parametrize("name", by_calls.LAYERS)
def test_biases_of_odd_strides(name, how):
    layer = by_calls.LAYERS[name].make()
    parts = [
        n
        for n, m in layer.named_modules()
        if isinstance(m, nn.Linear | nn.Conv2d) and m.bias is not None
    ]
    wrong = {
        (part, grad): complaint(Known(name, bias(part, how), grad))
        for part, grad in product(parts, (True, False))
    }
    assert not {where: what for where, what in wrong.items() if what}


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("kind", [LearnedQueryAttention, LearnedQueryUpsampling])
def test_queries_elsewhere_are_refused(kind, grad):
    """torch.cat of weights and of a table that is nowhere is memory that nobody wrote."""
    layer = kind(16, 2)
    layer.query = nn.Parameter(layer.query.to("meta"))
    with torch.set_grad_enabled(grad), pytest.raises(ValueError, match=r"query\.device=meta"):
        layer(torch.randn(2, 8, 9, 16))


CHUNK = 25


@pytest.mark.parametrize(
    "first",
    [pytest.param(i, marks=pytest.mark.slow if i >= 300 else ()) for i in range(0, 2000, CHUNK)],
)
@pytest.mark.filterwarnings("ignore")
def test_right_or_refused(first):
    wrong = []
    for number in range(first, first + CHUNK):
        case = Case(number)
        what = complaint(case)
        if what is not None:
            wrong.append(f"{case}: {what}")
    assert not wrong, "\n".join(wrong)

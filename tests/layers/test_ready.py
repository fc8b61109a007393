"""Calls that are made ready for inference: the same numbers, and never of what is gone."""

import copy
import gc
import pickle
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from timm.layers import DropPath, LayerNorm2d
from torch import nn
from torch.nn.utils import parametrize, prune
from torch.utils.flop_counter import FlopCounterMode

import saccade
from saccade.layers import ready
from saccade.layers.block import Block, FeedForward
from saccade.layers.linglo import KeyOnlyAttention
from saccade.layers.position import RPCPE
from saccade.ops import native
from saccade.ops.native.linear import pays
from saccade.ops.operator import use_backend

pytestmark = pytest.mark.skipif(not pays(), reason="torch's own product is the faster one here")


def block(dim=24, heads=2, hidden=48, position=True, norm=True, drop=0.1, fuse=False):
    encode = RPCPE(hidden, norm=norm) if position else None
    net = Block(dim, KeyOnlyAttention(dim, heads), FeedForward(dim, hidden, encode), drop).eval()
    with torch.no_grad():
        for tensor in (*net.parameters(), *net.buffers()):
            if tensor.is_floating_point():
                tensor.add_(0.2 * torch.rand_like(tensor))
    if fuse and encode is not None:
        encode.fuse()
    return net


def image(*shape):
    return torch.randn(shape).contiguous(memory_format=torch.channels_last)


def plain(net, x):
    """By its modules, in double precision."""
    with use_backend("plain"), torch.no_grad():
        return copy.deepcopy(net).double()(x.double())


def close(net, x, tolerance=1e-5):
    with torch.inference_mode():
        y = net(x)
    expected = plain(net, x)
    return ((y - expected).abs().max() / expected.abs().max()).item() < tolerance


@pytest.fixture
def calls(monkeypatch):
    """The halves that were computed by a ready call, one after the other."""
    seen = []
    for kind in (ready.NormOfMap, *_residuals()):

        def counted(self, x, kind=kind, call=kind.__call__):
            seen.append(kind.__name__)
            return call(self, x)

        monkeypatch.setattr(kind, "__call__", counted)
    return seen


def _residuals():
    from saccade.ops.native.pixels import ReadyConvolution
    from saccade.ops.native.residual import FeedResidual, KeyOnlyResidual

    return KeyOnlyResidual, FeedResidual, ReadyConvolution


# -- the same numbers -----------------------------------------------------------------------------


BLOCKS = [
    (24, 2, 96, (2, 12, 9)),
    (40, 5, 112, (1, 6, 11)),  # widths that fill no vector, panels of three
    (64, 1, 336, (1, 14, 14)),  # two steps of rows, a wide last panel
    (17, 17, 16, (3, 5, 7)),
    (96, 8, 384, (1, 6, 6)),  # few tokens: three products instead of one
]


@pytest.mark.parametrize("isa", native.INSTRUCTION_SETS)
@pytest.mark.parametrize(
    ("threads", "dim", "heads", "hidden", "size"),
    [
        pytest.param(threads, *case, marks=() if threads == 1 + i % 2 else pytest.mark.slow)
        for i, case in enumerate(BLOCKS)
        for threads in (1, 2)
    ],
)
def test_a_block_is_what_its_modules_are(isa, threads, dim, heads, hidden, size, calls):
    try:
        native.use(isa)
    except ValueError:
        pytest.skip(f"this machine has no {isa}")
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        torch.manual_seed(dim)
        net, (B, H, W) = block(dim, heads, hidden), size
        assert close(net, image(B, dim, H, W))
        assert close(net, image(B, dim, W, H)), "and another size after it"
        if pays():
            assert calls == ["KeyOnlyResidual", "FeedResidual"] * 2
    finally:
        torch.set_num_threads(before)
        native.use()


@pytest.mark.parametrize("options", [{"position": False}, {"norm": False}, {"fuse": True}])
def test_other_feed_forwards(options, calls):
    net = block(**options)
    assert close(net, image(2, 24, 8, 8))
    assert calls


def test_gelu_in_its_other_form(calls):
    net = block()
    net.ffn.act = nn.GELU(approximate="tanh")
    assert close(net, image(1, 24, 8, 8))
    assert len(calls) == 2


def test_norms_of_maps(calls):
    norm = LayerNorm2d(20).eval()
    nn.init.normal_(norm.weight), nn.init.normal_(norm.bias)
    x = 3 + image(2, 20, 30, 41)
    with torch.inference_mode():
        y = ready.normed(x, norm)
    assert calls == ["NormOfMap"]
    assert (y - copy.deepcopy(norm).double()(x.double())).abs().max() < 1e-5
    assert y.stride() == x.stride()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_no_number_stays_visible(bad):
    net, x = block(), image(1, 24, 8, 8)
    x[0, 3, 2, 2] = bad
    with torch.no_grad():
        assert net(x).isnan().any()


# -- never of what is gone ------------------------------------------------------------------------


def one_number(net):
    net.mix.gate.weight.data[3, 5] += 1


def numpys(net):
    net.ffn.narrow.weight.detach().numpy()[0, 7] = 2


def step(net):
    optimiser = torch.optim.SGD(net.parameters(), 0.1)
    with torch.enable_grad():
        net(image(1, 24, 8, 8)).sum().backward()
    optimiser.step()


def other_weights(net):
    net.load_state_dict(block().state_dict())


def statistics(net):
    net.ffn.position.branches[1].norm.running_var.mul_(3)


def turned(net):
    net.mix.value.weight.data = net.mix.value.weight.data.mT


def another(net):
    net.mix.key = nn.Linear(24, 24)


def eps(net):
    net.mix_norm.eps = 0.5


def bias(net):
    net.mix.mix.bias.data.copy_(torch.randn(24))


def shift(net):
    net.ffn_norm.bias.data.fill_(2)


def another_norm(net):
    net.mix_norm = nn.LayerNorm(24, bias=False)
    nn.init.constant_(net.mix_norm.weight, 2)


def no_norm(net):
    net.ffn_norm = nn.Identity()


def another_drop(net):
    net.drop = nn.Tanh()


def one_more_branch(net):
    net.ffn.position.branches.append(copy.deepcopy(net.ffn.position.branches[1]))


def shallow_copy(net):
    """Attributes of its own, and with them what was ready for the first one."""
    net.mix = copy.copy(net.mix)
    net.mix._modules = copy.deepcopy(net.mix._modules)
    net.mix.gate.weight.data.neg_()


@pytest.mark.parametrize(
    "change",
    [
        one_number, numpys, step, other_weights, statistics, turned, another, eps, bias, shift,
        another_norm, no_norm, another_drop, one_more_branch, shallow_copy,
    ],
)  # fmt: skip
def test_changes_show(change):
    net, x = block(), image(1, 24, 8, 8)
    with torch.no_grad():
        before = net(x)
        change(net)
        after = net(x)
    assert (after - before).abs().max() > 1e-3
    assert close(net, x)


def test_rows_that_lie_apart():
    net, x = block(), image(1, 24, 8, 8)
    assert close(net, x)
    wide = torch.randn(24, 48)
    net.mix.gate.weight.data = wide[:, ::2]
    net.mix_norm.weight.data = torch.randn(48)[::2]
    assert close(net, x)


def test_other_precision(calls):
    net, x = block(), image(1, 24, 8, 8)
    assert close(net, x)
    calls.clear()
    with torch.no_grad():
        net.mix.key.double()
        with pytest.raises(RuntimeError):
            net(x)
        assert net.double()(x.double()).dtype == torch.float64
        assert net.bfloat16()(x.bfloat16()).dtype == torch.bfloat16
    assert not calls


def test_another_instruction_set_between_two_calls():
    net, x = block(hidden=112), image(1, 24, 8, 8)
    assert close(net, x)
    native.use("generic")
    try:
        assert close(net, x)
    finally:
        native.use()
    assert close(net, x)


# -- who looks in sees modules --------------------------------------------------------------------


def called(net, path):
    """Whether a module of the block is called."""
    seen = []
    handle = net.get_submodule(path).register_forward_hook(lambda *_: seen.append(path))
    with torch.no_grad():
        net(image(1, 24, 8, 8))
    handle.remove()
    return bool(seen)


PATHS = [name for name, _ in block().named_modules() if name and "branches" not in name]


@pytest.mark.parametrize("path", PATHS)
def test_hooks_fire(path):
    net = block()
    assert close(net, image(1, 24, 8, 8))
    assert called(net, path)
    assert close(net, image(1, 24, 8, 8))


def test_hooks_on_all_modules():
    net, seen = block(), []
    assert close(net, image(1, 24, 8, 8))
    handle = nn.modules.module.register_module_forward_hook(lambda *args: seen.append(args[0]))
    with torch.no_grad():
        net(image(1, 24, 8, 8))
    handle.remove()
    assert net.mix.key in seen


@pytest.mark.parametrize("change", ["prune", "parametrise", "patch", "class", "call"])
def test_whatever_is_wrapped_around_counts(change, monkeypatch):
    net, x = block(), image(1, 24, 8, 8)
    with torch.no_grad():
        before = net(x)
    if change == "prune":
        prune.l1_unstructured(net.mix.value, "weight", amount=0.5)
    elif change == "parametrise":
        parametrize.register_parametrization(net.mix.value, "weight", nn.Softplus())
    elif change == "patch":
        net.ffn.forward = lambda x: 3 * x
    elif change == "call":
        monkeypatch.setattr(nn.Linear, "__call__", lambda self, x: 2 * self.forward(x))
    else:
        monkeypatch.setattr(nn.LayerNorm, "forward", lambda self, x: x)
    with torch.no_grad():
        assert (net(x) - before).abs().max() > 1e-3


def test_gradients_are_as_they_were():
    net, x = block(), image(1, 24, 8, 8)
    with torch.no_grad():
        net(x)
    net(x).sum().backward()
    assert all(p.grad is not None for p in net.parameters())


def test_training_drops_paths(calls):
    net, x = block(drop=0.999), image(64, 24, 6, 6)
    with torch.no_grad():
        net(x)
        assert calls
        calls.clear()
        net.train()
        assert (net(x) == x).float().mean() > 0.5
    assert not calls
    assert isinstance(net.drop, DropPath)


def test_flops_are_counted():
    net, x = block(), image(1, 24, 8, 8)
    counts = []
    for _ in range(2):
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            net(x)
        counts.append(counter.get_total_flops())
        with torch.no_grad():
            net(x)
    assert counts[0] == counts[1] > 0


def test_autocast_and_vmap():
    net, x = block(), image(2, 24, 8, 8)
    with torch.no_grad():
        y = net(x)
        with torch.autocast("cpu", torch.bfloat16):
            assert 0 < (net(x) - y).abs().max() < 0.2
        each = torch.vmap(lambda one: net(one[None])[0])(x)
    assert (each - y).abs().max() < 1e-4


def test_it_is_copied_and_sent(tmp_path):
    net, x = block(), image(1, 24, 8, 8)
    with torch.no_grad():
        y = net(x)
        for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
            assert torch.equal(other(x), y)
            other.mix.key.weight.data.zero_()
            assert not torch.equal(other(x), y)
            assert torch.equal(net(x), y)


def test_nothing_of_it_outlives_the_block():
    net = block()
    with torch.no_grad():
        net(image(1, 24, 8, 8))
    call = weakref.ref(net.ffn.__dict__["_ready"].call)
    del net
    gc.collect()
    assert call() is None


def test_several_threads_call_one_block():
    net, sizes = block(hidden=112), [(6, 6), (12, 9), (7, 30), (20, 20)]
    inputs = [image(1, 24, *size) for size in sizes] * 20
    expected = [plain(net, x) for x in inputs[: len(sizes)]] * 20

    def call(x):
        with torch.inference_mode():
            return net(x)

    with ThreadPoolExecutor(4) as pool:
        for y, right in zip(pool.map(call, inputs), expected, strict=True):
            assert (y - right).abs().max() < 1e-4


def test_empty_batches():
    with torch.no_grad():
        assert block()(torch.randn(0, 24, 8, 8)).shape == (0, 24, 8, 8)


@pytest.mark.parametrize("name", ["linglo_nano", "linglo_b0_cpe"])
def test_whole_models(name, calls):
    net = saccade.build(name, num_classes=5).eval()
    assert close(net, image(2, 3, 64, 96))
    assert len(calls) >= 4 * len(net.backbone.stages)


def test_gelu_by_its_table():
    """As exact as float32 asks, everywhere: a feed-forward of one unit is GELU itself."""
    net = block(16, 1, 16, position=False)
    with torch.no_grad():
        for linear in (net.ffn.widen, net.ffn.narrow):
            linear.weight.copy_(torch.eye(16)), linear.bias.zero_()
        values = torch.linspace(-9, 9, 16 * 4096)
        x = values.view(1, 4096, 1, 16)
        y = saccade.ops.feed.feed_forward(x, net.ffn.letters(x)).flatten()
    exact = nn.functional.gelu(values.double())
    assert np.abs((y - exact).numpy()).max() < 5e-7

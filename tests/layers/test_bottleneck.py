"""SASA's bottleneck in one go, and QnA's block: what their modules compute, whatever happens."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import prune
from torchvision.ops import FrozenBatchNorm2d

from saccade.layers.block import Block
from saccade.layers.bottleneck import ReadyBottleneck
from saccade.layers.qna import LearnedQueryAttention, QnAFeedForward
from saccade.layers.sasa import StandAloneAttention
from saccade.models.sasa import Bottleneck
from saccade.ops import native
from saccade.ops.native.linear import pays
from saccade.ops.native.pixels import LearnedQueriesResidual
from saccade.ops.operator import use_backend

pytestmark = pytest.mark.skipif(not pays(), reason="torch's own product is the faster one here")


def lively(net):
    for norm in net.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.running_mean.normal_(std=0.3)
            norm.running_var.uniform_(0.5, 2)
            nn.init.normal_(norm.weight, 1, 0.2)
            nn.init.normal_(norm.bias)
    return net.eval()


def bottleneck(dim=24, out=24, stride=1, drop=0.1, **options):
    torch.manual_seed(0)
    options = {"heads": 2, "window": 5, "border": "mask", **options}
    mix = StandAloneAttention(16, stride=stride, **options)
    return lively(Bottleneck(dim, mix, 16, out, stride, drop))


def queries(bias=False, **options):
    torch.manual_seed(0)
    mix = LearnedQueryAttention(24, 4, bias=bias, **options)
    net = Block(24, mix, QnAFeedForward(24), 0.1)
    with torch.no_grad():
        for p in net.parameters():
            p.add_(0.2 * torch.rand_like(p))
    return net.eval()


def image(*shape):
    return torch.randn(shape).contiguous(memory_format=torch.channels_last)


@pytest.fixture
def calls(monkeypatch):
    seen = []
    for kind in (ReadyBottleneck, LearnedQueriesResidual):

        def counted(self, x, kind=kind, call=kind.__call__):
            seen.append(kind.__name__)
            return call(self, x)

        monkeypatch.setattr(kind, "__call__", counted)
    return seen


def close(net, x, tolerance=2e-6):
    with use_backend("plain"), torch.no_grad():
        expected = copy.deepcopy(net).double()(x.double())
    with torch.inference_mode():
        y = net(x)
    return ((y - expected).abs().max() / expected.abs().max()).item() < tolerance


SASAS = {
    "as it is": {},
    "zeros around": {"border": "zero"},
    "by two": {"stride": 2, "out": 40},
    "by two with zeros": {"stride": 2, "out": 40, "border": "zero"},
    "without keys": {"content": False},
    "without positions": {"position": "none"},
    "a table for each head": {"shared": False},
    "scaled": {"scale": True},
    "at places of its own": {"locality": 2.0, "scale": True},
    "a shortcut": {"out": 17},
}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", SASAS)
def test_a_bottleneck_is_what_its_modules_are(name, threads, calls):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        net = bottleneck(**SASAS[name])
        assert close(net, image(2, 24, 9, 14))
        assert close(net, image(1, 24, 31, 6)), "and another size after it"
    finally:
        torch.set_num_threads(before)
    assert calls == ["ReadyBottleneck"] * 2


@pytest.mark.parametrize("isa", native.INSTRUCTION_SETS)
def test_every_instruction_set(isa):
    try:
        native.use(isa)
    except ValueError:
        pytest.skip(f"this machine has no {isa}")
    try:
        assert close(bottleneck(), image(1, 24, 9, 14))
        assert close(queries(), image(1, 24, 9, 14))
    finally:
        native.use()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bias": True},
        {"queries": 1, "scale": False},
        {"window": 7},
        {"width": 40, "out_dim": 24},
    ],
)
def test_learned_queries_are_what_their_modules_are(options, calls):
    net = queries(**options).to(memory_format=torch.channels_last)
    assert close(net, image(2, 24, 9, 14))
    assert calls == ["LearnedQueriesResidual"]


@pytest.mark.parametrize(
    "options", [{"position": "absolute"}, {"window": 17}, {"backend": "tiled"}]
)
def test_what_the_kernel_does_not_take_goes_by_modules(options, calls):
    assert close(bottleneck(**options), image(1, 24, 9, 14))
    assert not calls


def test_frozen_norms_and_norms_that_learn(calls):
    net, x = bottleneck(), image(4, 24, 9, 14)
    net.narrow_norm = FrozenBatchNorm2d(16)
    assert close(net, x)
    net = bottleneck().train()
    with torch.no_grad():
        net(x)
    assert net.mix_norm.num_batches_tracked == 1
    assert not calls


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_no_number_stays_visible(bad):
    net, x = bottleneck(), image(1, 24, 8, 8)
    x[0, 3, 2, 2] = bad
    with torch.no_grad():
        assert net(x).isnan().any()


def one_number(net):
    net.widen.weight.data[3, 5] += 1


def statistics(net):
    net.mix_norm.running_mean.add_(1)


def a_table(net):
    net.mix.row.data.mul_(3)


def scale(net):
    net.mix.scale = 5.0


def border(net):
    net.mix.border = "zero"


def another_act(net):
    net.act = nn.Sigmoid()


def longer_shortcut(net):
    net.shortcut.append(nn.Tanh())


@pytest.mark.parametrize(
    "change", [one_number, statistics, a_table, scale, border, another_act, longer_shortcut]
)
def test_changes_show(change):
    net, x = bottleneck(out=17), image(1, 24, 8, 8)
    with torch.no_grad():
        before = net(x)
        change(net)
        after = net(x)
    assert (after - before).abs().max() > 1e-3
    assert close(net, x)


def ask(net):
    net.mix.query.data[1, 3] += 2


def place(net):
    net.mix.rpe.data[0, 0, 1] += 3


@pytest.mark.parametrize("change", [ask, place])
def test_changed_queries_show(change):
    net, x = queries(), image(1, 24, 8, 8)
    with torch.no_grad():
        before = net(x)
        change(net)
        assert (net(x) - before).abs().max() > 1e-4
    assert close(net, x)


@pytest.mark.parametrize("make", [lambda: bottleneck(out=17), queries], ids=["sasa", "qna"])
def test_hooks_fire_everywhere(make):
    net, x = make(), image(1, 24, 8, 8)
    for path, module in net.named_modules():
        if not path:
            continue
        assert close(net, x)
        seen = []
        handle = module.register_forward_hook(lambda *_, seen=seen: seen.append(1))
        with torch.no_grad():
            net(x)
        handle.remove()
        assert seen, path


def test_a_pruned_part_is_called():
    net, x = bottleneck(), image(1, 24, 8, 8)
    assert close(net, x)
    prune.l1_unstructured(net.narrow, "weight", amount=0.5)
    with torch.no_grad():
        pruned = net(x)
    prune.remove(net.narrow, "weight")
    assert close(net, x)
    with torch.no_grad():
        assert (net(x) - pruned).abs().max() < 1e-5


def test_gradients_are_as_they_were():
    net, x = bottleneck(), image(1, 24, 8, 8)
    with torch.no_grad():
        net(x)
    net(x).sum().backward()
    assert all(p.grad is not None for p in net.parameters())


def test_a_copy_and_an_empty_batch():
    net, x = bottleneck(), image(1, 24, 8, 8)
    with torch.no_grad():
        y, twin = net(x), copy.deepcopy(net)
        twin.widen.weight.mul_(2)
        assert torch.equal(net(x), y)
        assert (twin(x) - y).abs().max() > 1e-3
        assert net(x[:0]).shape == (0, 24, 8, 8)

"""Whole networks as one row of kernel calls: the same numbers, and never of what is gone."""

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import saccade
from saccade.layers import walk
from saccade.ops.native.linear import pays
from saccade.ops.operator import use_backend

pytestmark = pytest.mark.skipif(not pays(), reason="torch's own product is the faster one here")

NAMES = "linglo_nano", "qna_nano", "sasa_nano"


def model(name, **options):
    torch.manual_seed(0)
    net = saccade.build(name, num_classes=10, **options).eval()
    with torch.no_grad():
        for t in (*net.parameters(), *net.buffers()):
            if t.is_floating_point():
                t.mul_(1 + 0.3 * torch.rand_like(t)).add_(0.02 * torch.rand_like(t))
    return net


def image(*shape):
    return torch.randn(shape)


def plain(net, x):
    with use_backend("plain"), torch.no_grad():
        return copy.deepcopy(net).double()(x.double())


def close(y, expected, tolerance=2e-5):
    return ((y - expected).abs().max() / expected.abs().max()).item() < tolerance


@pytest.fixture
def walked(monkeypatch):
    """How often a walk was made, and walked."""
    seen = []
    call = walk.Walk.__call__

    def counted(self, x):
        seen.append(self)
        return call(self, x)

    monkeypatch.setattr(walk.Walk, "__call__", counted)
    return seen


def warm(net, x):
    with torch.inference_mode():
        return [net(x) for _ in range(3)][-1]


@pytest.mark.parametrize("name", NAMES)
def test_a_network_is_walked_when_a_shape_comes_again(walked, name):
    net, x = model(name), image(2, 3, 64, 64)
    with torch.inference_mode():
        first = net(x)
        assert not walked
        net(x)  # noted, and compared with what modules compute
        count = len(walked)
        other = image(2, 3, 64, 64)
        assert torch.equal(net(x), first)
        assert len(walked) == count + 1
        y = net(other)
    assert close(y, plain(net, other))
    assert torch.equal(y, model(name)(other).detach()) or close(y, model(name)(other).detach())


@pytest.mark.parametrize("name", NAMES)
def test_maps_are_the_callers_own(name):
    net, x = model(name).backbone, image(1, 3, 64, 64)
    with torch.no_grad():
        expected = [y.clone() for y in warm(net, x)]
        kept = net(x)
        for _ in range(3):
            net(image(1, 3, 64, 64))
    assert all(map(torch.equal, kept, expected))
    assert [tuple(y.shape[1:]) for y in kept] == [tuple(y.shape[1:]) for y in expected]


def scaled(net):
    with torch.no_grad():
        net.backbone.stages[1].blocks[0].ffn.widen.weight.mul_(1.5)


def written(net):
    net.backbone.stages[0].blocks[0].ffn.narrow.weight.data[0, 0] += 3


def through_numpy(net):
    net.backbone.stages[0].blocks[0].ffn.narrow.bias.detach().numpy()[0] += 3


def norm_through_numpy(net):
    net.backbone.stages[0].blocks[0].mix_norm.weight.detach().numpy()[:] *= 2


def replaced(net):
    net.backbone.stages[0].blocks[0].ffn.act = nn.ReLU()


def loaded(net):
    net.load_state_dict({k: t * 1.1 for k, t in net.state_dict().items()})


def fused(net):
    net.fuse()


def convolved(net):
    net.backbone.stages[1].down[0].conv.weight.detach().numpy()[0] += 0.5


@pytest.mark.parametrize("change", [
    scaled, written, through_numpy, norm_through_numpy, replaced, loaded, fused, convolved,
])  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_changes_show_at_once(walked, change, dtype):
    net, x = model("linglo_nano").to(dtype), image(1, 3, 64, 64).to(dtype)
    before = warm(net, x)
    assert walked
    if dtype == torch.bfloat16 and "numpy" in change.__name__ + "".join(change.__code__.co_names):
        pytest.skip("numpy has no bfloat16")
    change(net)
    with torch.inference_mode():
        y = net(x)
    expected = plain(net, x)
    assert close(y, expected, 2e-5 if dtype == torch.float32 else 5e-2)
    assert change is fused or not torch.equal(y, before)
    assert torch.equal(warm(net, x), warm(net, x))


def test_hooks_are_called(walked):
    net, x, seen = model("linglo_nano"), image(1, 3, 64, 64), []
    y = warm(net, x)
    hook = net.backbone.stages[2].blocks[1].register_forward_hook(lambda *_: seen.append(1))
    with torch.inference_mode():
        net(x)
    assert seen == [1]
    hook.remove()
    assert torch.equal(warm(net, x), y)
    assert seen == [1]


def test_a_patched_class_is_called(monkeypatch):
    from saccade.layers.block import Block

    net, x, seen = model("linglo_nano"), image(1, 3, 64, 64), []
    warm(net, x)
    forward = Block.forward
    monkeypatch.setattr(Block, "forward", lambda self, x: (seen.append(1), forward(self, x))[1])
    with torch.inference_mode():
        for count in (1, 2, 3, 4, 5):
            net(x)
            assert len(seen) == 5 * count


def test_modules_of_others_are_called():
    class Spy(nn.Identity):
        count = 0

        def forward(self, x):
            Spy.count += 1
            return x

    net, x = model("linglo_nano"), image(1, 3, 64, 64)
    net.backbone.stages[1].blocks.append(Spy())
    with torch.inference_mode():
        for count in (1, 2, 3, 4, 5):
            net(x)
            assert Spy.count == count


def test_in_training_nothing_is_walked(walked):
    net, x = model("sasa_nano").train(), image(2, 3, 64, 64)
    with torch.no_grad():
        for _ in range(4):
            net(x)
    assert not walked
    assert net.backbone.stem.norm.num_batches_tracked == 4


@pytest.mark.parametrize("name", NAMES)
def test_bfloat16(walked, name):
    net, x = model(name), image(2, 3, 64, 64)
    expected = plain(net, x)
    half = copy.deepcopy(net).bfloat16()
    y = warm(half, x.bfloat16())
    assert walked
    assert y.dtype == torch.bfloat16
    assert close(y, expected, 5e-2)
    count = len(walked)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        outputs = [net.backbone(x) for _ in range(3)]
    assert len(walked) > count
    for first, last in zip(outputs[0], outputs[2], strict=True):
        assert first.dtype == last.dtype
        assert close(last.double(), first.double(), 5e-2)


def test_threads_do_not_share_a_walk():
    net, images = model("linglo_nano"), [image(1, 3, 64, 64) for _ in range(8)]
    with torch.inference_mode():
        warm(net, images[0])
        expected = [net(x) for x in images]

        def compute(x):
            with torch.inference_mode():
                return [net(x) for _ in range(5)][-1]

        with ThreadPoolExecutor(4) as pool:
            results = list(pool.map(compute, images))
    assert all(map(torch.equal, results, expected))


def test_copies_and_files_have_no_walks():
    net, x = model("linglo_nano"), image(1, 3, 64, 64)
    y = warm(net, x)
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        with torch.no_grad():
            for t in other.parameters():
                t.mul_(1.1)
        assert close(warm(other, x), plain(other, x))
    assert torch.equal(warm(net, x), y)


def test_wrong_images_are_refused_as_before():
    net = model("linglo_nano")
    warm(net, image(1, 3, 64, 64))
    with torch.inference_mode(), pytest.raises(ValueError, match="at least 32x32"):
        net(image(1, 3, 16, 16))

"""Whole networks as one row of kernel calls: the same numbers, and never of what is gone."""

import copy
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import saccade
from saccade.layers import walk
from saccade.layers.layout import MapLayer
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


def apart(y, expected):
    return ((y - expected).abs().max() / expected.abs().max()).item()


def close(y, expected, tolerance=2e-5):
    return apart(y, expected) < tolerance


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
        maps = net(x)
        for _ in range(3):
            net(image(1, 3, 64, 64))
    assert all(map(torch.equal, maps, expected))
    assert [tuple(y.shape[1:]) for y in maps] == [tuple(y.shape[1:]) for y in expected]


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
    exact = copy.deepcopy(net.backbone).double()(x.double())
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        outputs = [net.backbone(x) for _ in range(3)]
    assert len(walked) > count
    assert [y.dtype for y in outputs[2]] == [y.dtype for y in outputs[0]]

    def off(maps):  # on average over their numbers: the worst one is a matter of luck
        pairs = zip(maps, exact, strict=True)
        return sum(((y - truth).norm() / truth.norm()).item() for y, truth in pairs)

    assert off(outputs[2]) < 1.1 * off(outputs[0]), "no less exact than the modules"


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


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_default_dtype_is_the_users_business(walked, dtype):
    net, x = model("linglo_nano"), image(1, 3, 64, 64)
    expected = warm(net, x)
    count = len(walked)
    torch.set_default_dtype(dtype)
    try:
        again, first = warm(net, x), warm(model("linglo_nano").float(), x)
    finally:
        torch.set_default_dtype(torch.float32)
    assert len(walked) > count
    assert torch.equal(again, expected)
    assert first.dtype == torch.float32


def test_negative_views_are_read_as_what_they_are(walked):
    net, x = model("linglo_nano"), image(1, 3, 64, 64).contiguous(memory_format=torch.channels_last)
    expected = warm(net, -x)
    view = torch._neg_view(x)  # as the imaginary part of a conjugate is
    assert view.is_neg()
    assert close(warm(net, view), expected)
    norm = net.backbone.stages[0].blocks[0].mix_norm
    with torch.no_grad():
        norm.weight = nn.Parameter(torch._neg_view(norm.weight.detach()))
    count = len(walked)
    assert close(warm(net, x), plain(net, x))
    assert len(walked) == count, "an operator's memory is gone when a walk would write to it"


def test_a_shallow_copy_with_other_parts_is_another_network():
    net, other = (model("linglo_nano").backbone for _ in range(2))
    x = image(1, 3, 64, 64)
    with torch.no_grad():
        for t in other.parameters():
            t.mul_(1.3)
    warm(net, x)
    twin = copy.copy(net)
    twin._modules = net._modules | {"stages": other.stages}
    assert close(warm(twin, x)[-1], plain(twin, x)[-1])


def test_a_network_that_cannot_be_copied_is_called():
    net, x = model("linglo_nano").bfloat16(), image(1, 3, 64, 64).bfloat16()
    expected = warm(net, x)
    net = model("linglo_nano").bfloat16()
    net.backbone.handle = threading.Lock()
    assert close(warm(net, x), expected.double(), 5e-2)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("everywhere", [False, True], ids=["one", "class"])
def test_a_patched_way_over_the_map_is_called(monkeypatch, name, everywhere):
    net, x, calls = model(name), image(1, 3, 64, 64), []
    layer = next(m for m in net.modules() if isinstance(m, MapLayer))
    kind = type(layer)
    on_map = kind.on_map
    warm(net, x)

    def patched(self, *args, **options):
        calls.append(self)
        return on_map(self, *args, **options)

    target, method = (kind, patched) if everywhere else (layer, patched.__get__(layer))
    monkeypatch.setattr(target, "on_map", method)
    for _ in range(3):
        warm(net, x)
    assert calls.count(layer) == 9


def test_weights_that_lie_apart_are_watched_to_their_ends():
    net, x = model("sasa_nano"), image(1, 3, 64, 64)
    changed = []
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            weight = module.weight.detach()
            twice = weight.new_zeros(2 * len(weight), *weight.shape[1:])
            twice[::2] = weight
            module.weight = nn.Parameter(twice[::2])
            changed.append(module.weight)
    warm(net, x)
    for weight in changed[:6]:
        with torch.no_grad():
            weight[-1] += 0.1
            with use_backend("plain"):  # modules, in the same precision
                expected = net(x)
        assert close(warm(net, x), expected, 1e-4)


def test_wrong_images_are_refused_as_before():
    net = model("linglo_nano")
    warm(net, image(1, 3, 64, 64))
    with torch.inference_mode(), pytest.raises(ValueError, match="at least 32x32"):
        net(image(1, 3, 16, 16))

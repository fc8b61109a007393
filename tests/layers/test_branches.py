"""Normalised branches as one 3x3: what they are beside convolution and BatchNorm, one by one."""

import copy
import json

import pytest
import timm
import torch
from safetensors.torch import save_file
from timm.utils.model import freeze_batch_norm_2d
from torch import nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile
from torchvision.ops import FrozenBatchNorm2d

import saccade
from saccade.layers.block import FeedForward
from saccade.layers.branches import DepthwiseBranch, letters_of_batch, remember
from saccade.layers.position import RPCPE
from saccade.models.describe import describe
from saccade.ops import native
from saccade.ops.branches import composed

kernels = pytest.mark.skipif(not native.available(), reason=native.where())


def as_after_training(layer):
    """As after some training: no scale or shift at its initial value."""
    for module in layer.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 2)
            nn.init.normal_(module.bias)
    return layer


def one_by_one(layer, x):
    y = sum(branch(x) for branch in layer.branches)
    return x + y if layer.skip else y


def feed_one_by_one(layer, x):
    h = layer.widen(x).permute(0, 3, 1, 2)
    return layer.narrow(layer.act(one_by_one(layer.position, h).permute(0, 2, 3, 1)))


def trained_step(layer, call, x, g):
    """Output and gradients of one step, and the statistics after it."""
    x = x.clone().requires_grad_()
    y = call(x)
    gradients = torch.autograd.grad(y, [x, *layer.parameters()], g)
    return [y, *gradients, *layer.buffers()]


def assert_close(ours, theirs, bound):
    for a, b in zip(ours, theirs, strict=True):
        scale = b.abs().max().clamp_min(1).item()
        torch.testing.assert_close(a.double(), b.double(), rtol=0, atol=bound * scale)


def convolutions(call) -> int:
    with profile(activities=[ProfilerActivity.CPU]) as record:
        call()
    return sum(event.name == "aten::convolution" for event in record.events())


# -- a batch --------------------------------------------------------------------------------------


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("shape", [(2, 5, 6, 8), (3, 1, 2, 8), (1, 9, 4, 8), (2, 1, 1, 8)])
def test_the_equation_in_double_precision(shape, skip):
    """It is convolution and BatchNorm, branch by branch: output, gradients, running statistics."""
    layer = as_after_training(FeedForward(8, 32, RPCPE(32, skip=skip))).double()
    other = copy.deepcopy(layer)
    x = torch.randn(shape, dtype=torch.float64)
    g = torch.randn_like(x)

    def equation(x):
        k, gamma, beta, eps = letters_of_batch(list(layer.position.branches))
        widen, narrow = layer.widen, layer.narrow
        w = widen.weight, widen.bias, k, gamma, beta, narrow.weight, narrow.bias
        z = [branch.conv(widen(x).permute(0, 3, 1, 2)) for branch in layer.position.branches]
        statistics = torch.stack([torch.stack([t.mean((0, 2, 3)), t.var((0, 2, 3), correction=0)])
                                  for t in z], 1).detach()  # fmt: skip
        remember(list(layer.position.branches), statistics, x[..., 0].numel())
        return composed(x, *w, eps, skip, False)

    for _ in range(3):  # statistics move on from where they were
        ours = trained_step(layer, equation, x, g)
        theirs = trained_step(other, lambda x: feed_one_by_one(other, x), x, g)
        assert_close(ours, theirs, 1e-10)
        x = x * 1.5 + 1


@kernels
@pytest.mark.parametrize("momentum", [0.1, 0.5])
@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("shape", [(2, 9, 7, 8), (40, 1, 1, 8), (3, 1, 70, 8), (2, 17, 2, 8)])
def test_a_feed_forward_computes_no_branch(shape, skip, momentum):
    layer = as_after_training(FeedForward(8, 32, RPCPE(32, skip=skip)))
    for branch in layer.position.branches:
        branch.norm.momentum = momentum
    other = copy.deepcopy(layer).double()
    x, g = torch.randn(shape) + 1, torch.randn(shape)
    ours = trained_step(layer, layer, x, g)
    theirs = trained_step(other, lambda x: feed_one_by_one(other, x), x.double(), g.double())
    assert_close(ours, theirs, 1e-4)  # scales multiply what single precision rounds
    assert convolutions(lambda: layer(x)) == 0
    assert int(layer.position.branches[0].norm.num_batches_tracked) == 2


@kernels
def test_statistics_of_maps_with_a_large_mean():
    """The variance is a small difference of large numbers, which are summed in double precision."""
    layer = FeedForward(8, 32, RPCPE(32))
    nn.init.constant_(layer.widen.bias, 20)
    other = copy.deepcopy(layer).double()
    x = torch.randn(4, 30, 30, 8)
    layer(x)
    feed_one_by_one(other, x.double())
    assert_close(list(layer.buffers()), list(other.buffers()), 1e-5)


def test_in_eval_mode_the_running_statistics_count():
    layer = as_after_training(RPCPE(16)).double()
    for _ in range(3):
        layer(torch.randn(2, 16, 5, 6, dtype=torch.float64) * 2 + 1)
    layer.eval()
    x = torch.randn(2, 16, 5, 6, dtype=torch.float64)
    expected = one_by_one(layer, x)
    assert convolutions(lambda: layer(x)) == 1
    torch.testing.assert_close(layer(x), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(layer.fuse()(x), expected, rtol=0, atol=1e-12)


@kernels
def test_double_backward():
    layer = as_after_training(FeedForward(8, 16, RPCPE(16)))
    other = copy.deepcopy(layer)
    x = torch.randn(2, 4, 5, 8, requires_grad=True)
    penalties = []
    for one, call in ((layer, layer), (other, lambda x: feed_one_by_one(other, x))):
        (dx,) = torch.autograd.grad(call(x).sin().sum(), x, create_graph=True)
        penalties.append(torch.autograd.grad((dx**2).sum(), [x, *one.parameters()]))
    assert_close(*penalties, 1e-4)


@kernels
def test_compiles_in_one_graph(untyped):
    layer = as_after_training(FeedForward(8, 32, RPCPE(32)))
    other = copy.deepcopy(layer)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    x, g = torch.randn(2, 9, 7, 8), torch.randn(2, 9, 7, 8)
    assert_close(trained_step(layer, compiled, x, g), trained_step(other, other, x, g), 1e-5)


# -- where branches are called one by one ---------------------------------------------------------


def _hook(norm):
    norm.register_forward_hook(lambda *_: None)


def _freeze_one(norm):
    norm.eval()


def _average(norm):
    norm.momentum = None


@pytest.mark.parametrize("change", [_hook, _freeze_one, _average], ids=lambda f: f.__name__)
def test_what_somebody_changed_is_called(change):
    layer = as_after_training(FeedForward(8, 32, RPCPE(32)))
    change(layer.position.branches[1].norm)
    other = copy.deepcopy(layer)
    x, g = torch.randn(2, 9, 7, 8), torch.randn(2, 9, 7, 8)
    ours = trained_step(layer, layer, x, g)
    assert_close(ours, trained_step(other, lambda x: feed_one_by_one(other, x), x, g), 1e-6)
    assert convolutions(lambda: layer(x)) == 4


def test_synchronised_norms_are_called(monkeypatch):
    layer = nn.SyncBatchNorm.convert_sync_batchnorm(FeedForward(8, 32, RPCPE(32)))
    seen = []
    monkeypatch.setattr(nn.SyncBatchNorm, "forward", lambda self, x: seen.append(x.shape) or x)
    layer(torch.randn(2, 9, 7, 8))
    assert seen == [(2, 32, 9, 7)] * 4


def test_frozen_norms_cost_nothing():
    layer = FeedForward(8, 32, as_after_training(RPCPE(32)))
    x = torch.randn(2, 9, 7, 8)
    layer(x)
    expected = layer.eval()(x)
    layer = freeze_batch_norm_2d(layer).train()
    assert any(isinstance(m, FrozenBatchNorm2d) for m in layer.modules())
    torch.testing.assert_close(layer(x), expected)
    torch.testing.assert_close(feed_one_by_one(layer, x), expected)
    assert layer.letters(x) is not None


def test_torch_func_sees_batch_norm():
    """Which refuses to move running statistics inside of vmap, in its own words."""
    layer = FeedForward(8, 32, RPCPE(32))
    with pytest.raises(RuntimeError, match="batch"):
        torch.func.vmap(layer, randomness="error")(torch.randn(3, 2, 5, 6, 8))
    x = torch.randn(2, 5, 6, 8)
    layer.eval()
    torch.testing.assert_close(torch.func.vmap(layer)(x[:, None])[:, 0], layer(x))


@kernels
def test_without_a_backward_statistics_are_gathered_too():
    layer = as_after_training(FeedForward(8, 32, RPCPE(32)))
    other = copy.deepcopy(layer)
    x = torch.randn(2, 9, 7, 8)
    with torch.no_grad():
        y = layer(x)
    torch.testing.assert_close(y, other(x))
    assert_close(list(layer.buffers()), list(other.buffers()), 1e-5)


def test_maps_of_one_pixel_and_of_none():
    layer = RPCPE(16)
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        layer(torch.randn(1, 16, 1, 1))
    assert layer.eval()(torch.randn(1, 16, 1, 1)).shape == (1, 16, 1, 1)
    assert layer(torch.randn(0, 16, 4, 4)).shape == (0, 16, 4, 4)


def test_autocast():
    layer = as_after_training(FeedForward(8, 32, RPCPE(32)))
    other = copy.deepcopy(layer)
    x = torch.randn(2, 9, 7, 8)
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x)
    y.sum().backward()
    torch.testing.assert_close(y.float(), feed_one_by_one(other, x), rtol=0.05, atol=0.05)
    for a, b in zip(layer.buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(a, b, rtol=0.02, atol=0.02)


@kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_under_autocast_no_branch_is_computed_either(dtype):
    """In fp32, whatever comes in; what goes out is as narrow as autocast wants it."""
    layer = as_after_training(FeedForward(8, 32, RPCPE(32)))
    other = copy.deepcopy(layer)
    x = torch.randn(2, 9, 7, 8).to(dtype)

    def cast(x):
        with torch.autocast("cpu", torch.bfloat16):
            y = layer(x)
        assert y.dtype == torch.bfloat16
        return y.float()

    g = torch.randn(2, 9, 7, 8).bfloat16().float()
    ours = trained_step(layer, cast, x, g)
    theirs = trained_step(other, lambda x: feed_one_by_one(other, x), x.float(), g)
    assert ours[1].dtype == dtype
    for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        narrow = i == 0 or (i == 1 and dtype is torch.bfloat16)
        assert_close([a], [b], 1e-2 if narrow else 1e-4)
    assert convolutions(lambda: cast(x)) == 0


# -- weights of older versions --------------------------------------------------------------------


def test_weights_without_norms_make_branches_without(tmp_path):
    torch.manual_seed(0)
    older = saccade.build("linglo_nano", num_classes=4, branch_norm=False).eval()
    x = torch.randn(1, 3, 64, 64)
    model = saccade.build("linglo_nano", num_classes=4)
    assert any(isinstance(m, nn.BatchNorm2d) for m in model.modules())
    model.load_state_dict(older.state_dict())
    assert torch.equal(model.eval()(x), older(x))
    assert describe(model)["branch_norm"] is False
    again = saccade.load(saccade.save(model, tmp_path / "again.safetensors"))
    assert torch.equal(again(x), older(x))


def test_a_file_of_an_older_version(tmp_path):
    """Its header does not know the word."""
    older = saccade.build("linglo_nano", num_classes=4, branch_norm=False).eval()
    about = {k: v for k, v in describe(older).items() if k != "branch_norm"}
    header = {"saccade": json.dumps({"model": about, "notes": {}})}
    tensors = {k: v.contiguous() for k, v in older.state_dict().items()}
    save_file(tensors, tmp_path / "older.safetensors", header)
    x = torch.randn(1, 3, 64, 64)
    assert torch.equal(saccade.load(tmp_path / "older.safetensors")(x), older(x))


def test_the_weights_in_the_box():
    torch.manual_seed(0)
    x = torch.randn(1, 3, 96, 96)
    ours = saccade.load("linglo_nano.pets37")
    theirs = timm.create_model("linglo_nano", pretrained=True, num_classes=37).eval()
    assert torch.equal(ours(x), theirs(x))
    plain = saccade.build("linglo_nano", num_classes=37, branch_norm=False).eval()
    plain.load_state_dict(ours.state_dict())
    assert torch.equal(plain(x), ours(x))


def test_a_few_weights_leave_norms_alone():
    branch = DepthwiseBranch(16, norm=True)
    branch.load_state_dict({}, strict=False)
    assert branch.norm is not None


# -- models ---------------------------------------------------------------------------------------


def test_a_model_learns():
    torch.manual_seed(0)
    model = saccade.build("linglo_nano", num_classes=2, drop_path_rate=0.0).train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3)
    label = torch.tensor([0, 1] * 8)
    image = torch.randn(16, 3, 32, 32) * 0.5
    image[label == 1] += torch.randn(3, 32, 32)
    losses = []
    for _ in range(12):
        loss = F.cross_entropy(model(image), label)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0]


def test_recomputing_counts_a_batch_once():
    torch.manual_seed(0)
    model = saccade.build("linglo_nano", num_classes=2, drop_path_rate=0.0).train()
    other = copy.deepcopy(model)
    other.set_grad_checkpointing()
    image = torch.randn(2, 3, 32, 32)
    for one in (model, other):
        one(image).sum().backward()
    for (name, a), (_, b) in zip(model.named_buffers(), other.named_buffers(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, msg=name)

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

from saccade.layers.position import CPE, RPCPE, AbsolutePosition


def branch_by_branch(layer, x):
    y = x if layer.skip else 0
    for branch in layer.branches:
        z = F.conv2d(x, branch.conv.weight, padding=1, groups=layer.dim)
        if branch.norm is not None:
            n = branch.norm
            z = F.batch_norm(z, n.running_mean, n.running_var, n.weight, n.bias, eps=n.eps)
        y = y + z
    return y


def as_after_training(layer):
    """As after some training: no statistic or scale at its initial value."""
    for module in layer.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            for t, low, high in [
                (module.running_mean, -1, 1), (module.running_var, 0.2, 2),
                (module.weight, -2, 2), (module.bias, -1, 1),
            ]:  # fmt: skip
                torch.nn.init.uniform_(t, low, high)
    return layer


@pytest.mark.parametrize("form", CPE)
@pytest.mark.parametrize("norm", [False, True])
def test_fusing_keeps_the_function(form, norm):
    layer = as_after_training(CPE[form](6, norm=norm)).double().eval()
    x = torch.randn(2, 6, 7, 5, dtype=torch.float64)
    expected = branch_by_branch(layer, x)
    torch.testing.assert_close(layer(x), expected, rtol=1e-14, atol=1e-14)
    fused = copy.deepcopy(layer).fuse()
    torch.testing.assert_close(fused(x), expected, rtol=1e-14, atol=1e-14)
    assert sum(p.numel() for p in fused.parameters()) == 6 * 10
    again = {k: v.clone() for k, v in fused.fuse().state_dict().items()}
    assert all(torch.equal(v, again[k]) for k, v in fused.state_dict().items())


@pytest.mark.parametrize("norm", [False, True])
def test_training_equals_branch_by_branch(norm):
    """One summed kernel gives each branch the gradient that its own convolution would."""
    layer = RPCPE(4, norm=norm).double().train()
    x = torch.randn(2, 4, 6, 6, dtype=torch.float64, requires_grad=True)
    weights = [branch.conv.weight for branch in layer.branches]
    y = layer(x)
    g = torch.randn_like(y)
    ours = torch.autograd.grad((y * g).sum(), [x, *weights])
    z = x
    for branch in layer.branches:
        z = z + branch(x)
    theirs = torch.autograd.grad((z * g).sum(), [x, *weights])
    torch.testing.assert_close(y, z, rtol=1e-12, atol=1e-12)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_the_forms_of_table_6():
    parts = {name: (len(make(4).branches), make(4).skip) for name, make in CPE.items()}
    assert parts == {
        "cpe": (1, False), "r-cpe": (1, True), "p-cpe": (4, False), "rp-cpe": (4, True),
    }  # fmt: skip


def test_fusing_is_refused_in_train_mode():
    with pytest.raises(RuntimeError, match=r"call eval\(\) first"):
        RPCPE(4).fuse()


def test_at_least_one_branch():
    with pytest.raises(ValueError, match="at least one branch"):
        RPCPE(4, branches=0)


def test_absolute_positions_at_any_size():
    layer = AbsolutePosition(4, (6, 6))
    x = torch.zeros(1, 4, 6, 6)
    torch.testing.assert_close(layer(x), layer.table)
    torch.nn.init.ones_(layer.table)
    torch.testing.assert_close(layer(torch.zeros(1, 4, 9, 5)), torch.ones(1, 4, 9, 5))
    halves = layer.bfloat16()(torch.zeros(1, 4, 9, 5, dtype=torch.bfloat16))
    assert (halves == 1).all()
    assert halves.dtype == torch.bfloat16


@pytest.mark.parametrize("training", [False, True])
def test_encoding_and_gelu_keep_channels_last_without_a_copy(training):
    """In a profile of the forward nothing rearranges the map, nor does anything in its backward."""
    torch.manual_seed(0)
    layer = nn.Sequential(RPCPE(32, norm=False), nn.GELU()).train(training)
    if not training:
        layer[0].fuse()
    x = torch.randn(2, 32, 14, 18).to(memory_format=torch.channels_last).requires_grad_()
    g = torch.randn(2, 32, 14, 18).to(memory_format=torch.channels_last)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as record:
        y = layer(x)
        (dx,) = torch.autograd.grad(y, x, g)
    for t in (y, dx):
        assert t.is_contiguous(memory_format=torch.channels_last)
    moved = [
        event.name for event in record.events()
        if event.name in ("aten::copy_", "aten::contiguous", "aten::clone", "aten::_to_copy")
        and event.input_shapes and list(x.shape) in event.input_shapes
    ]  # fmt: skip
    assert moved == []

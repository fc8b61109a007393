import torch
from torch import nn

from saccade.layers.norm import is_scale_and_shift, scale_and_shift


def test_it_is_what_the_norm_does():
    norm = nn.BatchNorm2d(5).double()
    for t in (norm.weight.data, norm.bias.data, norm.running_mean, norm.running_var):
        t.uniform_(0.5, 2)
    x = torch.randn(2, 5, 3, 4, dtype=torch.float64)
    assert not is_scale_and_shift(norm, 5)
    assert is_scale_and_shift(norm.eval(), 5)
    assert not is_scale_and_shift(norm, 1), "numbers of another map"
    scale, shift = (t[:, None, None] for t in scale_and_shift(norm))
    torch.testing.assert_close(x * scale + shift, norm(x))


def test_not_without_statistics_or_parameters():
    assert not is_scale_and_shift(nn.BatchNorm2d(5, affine=False).eval(), 5)
    assert not is_scale_and_shift(nn.BatchNorm2d(5, track_running_stats=False).eval(), 5)

"""The semantic branch: sizes, what is added to what, and that nothing moves."""

import pytest
import torch
from torch.nn import functional as F

from saccade.layers.semantic import SemanticBranch, TopDown, Tower, raised


def test_the_pyramid_adds_from_the_top_down():
    pyramid = TopDown((4, 8), dim=16)
    fine, coarse = torch.randn(2, 4, 6, 8), torch.randn(2, 8, 3, 4)
    p2, p3 = pyramid([fine, coarse])
    top = pyramid.lateral[1](coarse)
    merged = pyramid.lateral[0](fine) + top.repeat_interleave(2, 2).repeat_interleave(2, 3)
    torch.testing.assert_close(p2, pyramid.smooth[0](merged))
    torch.testing.assert_close(p3, pyramid.smooth[1](top))


@pytest.mark.parametrize(("stride", "layers"), [(4, 1), (8, 1), (16, 2), (32, 3)])
def test_a_tower_doubles_until_a_quarter(stride, layers):
    tower = Tower(8, 16, stride)
    assert len(tower.mix) == layers
    H, W = 70, 99
    x = torch.randn(1, 8, -(-H // stride), -(-W // stride))
    assert tower(x, (H, W)).shape == (1, 16, 18, 25)
    y = x
    for mix, norm in zip(tower.mix, tower.norm, strict=True):
        y = F.relu(norm(mix(y)))
        if stride > 4:
            y = F.interpolate(y, scale_factor=2, mode="bilinear", align_corners=False)
    if stride <= 8:  # of the others, a column was cut on the way
        torch.testing.assert_close(tower(x, (H, W)), y[..., :18, :25])


@pytest.mark.parametrize("stride", [2, 12])
def test_a_tower_refuses_other_strides(stride):
    with pytest.raises(ValueError, match=f"got stride={stride}"):
        Tower(8, 8, stride)


def test_raising_moves_nothing():
    """A ramp over pixel centres stays that ramp, whatever the size is cut to."""
    at = (torch.arange(5.0) + 0.5) * 4
    ramp = at[None, None, None].expand(1, 1, 5, 5)
    wide = raised(ramp, 4, (18, 17))
    inside = slice(2, 16)
    torch.testing.assert_close(wide[0, 0, 0, inside], torch.arange(20.0)[inside] + 0.5)
    assert wide.shape == (1, 1, 18, 17)


def test_the_branch_sums_its_levels():
    branch = SemanticBranch((4, 8), (4, 8), classes=3, dim=16, inner=32).eval()
    maps = [torch.randn(1, 4, 9, 11), torch.randn(1, 8, 5, 6)]
    size = (35, 41)
    with torch.no_grad():
        p2, p3 = branch.pyramid(maps)
        total = branch.towers[0](p2, size) + branch.towers[1](p3, size)
        torch.testing.assert_close(branch(maps, size), branch.classify(total))

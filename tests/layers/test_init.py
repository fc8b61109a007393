import pytest
import torch

from saccade.layers.init import cut_normal_, lecun_normal_


def test_a_normal_cut_at_two_standard_deviations():
    ours = cut_normal_(torch.empty(400_000), 3.0)
    theirs = torch.nn.init.trunc_normal_(torch.empty(400_000), std=3.0, a=-6, b=6)
    points = torch.linspace(0.01, 0.99, 50)
    assert ours.abs().max() <= 6.001
    assert (ours.quantile(points) - theirs.quantile(points)).abs().max() < 0.06


@pytest.mark.parametrize("shape", [(256, 512), (256, 16, 4, 4)])
def test_unit_variance_comes_out_of_unit_variance(shape):
    w = lecun_normal_(torch.empty(shape))
    assert abs(w.var().item() * w[0].numel() - 1) < 0.03


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_any_dtype_and_the_meta_device(dtype):
    assert lecun_normal_(torch.empty(64, 64, dtype=dtype)).isfinite().all()
    assert lecun_normal_(torch.empty(64, 64, dtype=dtype, device="meta")).is_meta

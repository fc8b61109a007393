import pytest
import torch

from saccade.ops.precision import autocasts, no_autocast, wide


@pytest.mark.parametrize(
    ("dtype", "wider"),
    [
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_wide(dtype, wider):
    assert wide(dtype) == wider


def test_no_autocast_shields_what_is_inside():
    a = torch.randn(4, 4)
    with torch.autocast("cpu", torch.bfloat16):
        assert (a @ a).dtype == torch.bfloat16
        with no_autocast(a.device):
            assert (a @ a).dtype == torch.float32
    with no_autocast(torch.device("meta")):
        pass


def test_autocast_is_seen_where_there_is_any():
    cpu, meta = torch.device("cpu"), torch.device("meta")
    assert not autocasts(cpu)
    with torch.autocast("cpu", torch.bfloat16):
        assert autocasts(cpu)
        assert not autocasts(meta)

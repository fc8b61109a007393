"""Classes at an image's own size: resized, unpadded, and in bounded memory."""

import pytest
import torch
import torch.nn.functional as F

from saccade.tasks.segment import pixels
from saccade.tasks.segment.pixels import likeliest


def plainly(logits, size_in_batch, size):
    """All classes at once."""
    x = F.interpolate(logits[None], scale_factor=4, mode="bilinear", align_corners=False)
    x = x[..., : size_in_batch[0], : size_in_batch[1]]
    return F.interpolate(x, size=size, mode="bilinear", align_corners=False)[0].argmax(0)


@pytest.mark.parametrize("together", [1, 2000, 2**24])
def test_a_few_classes_at_a_time_make_no_difference(together, monkeypatch):
    monkeypatch.setattr(pixels, "AT_ONCE", together)
    logits = torch.randn(2, 7, 8, 10)
    size = torch.tensor([[32, 37], [29, 40]])
    sizes = [(50, 61), (29, 40)]
    classes = likeliest({"logits": logits, "size": size}, sizes)
    for i in range(2):
        assert torch.equal(classes[i].long(), plainly(logits[i], size[i].tolist(), sizes[i]))
        assert classes[i].dtype == torch.uint8


def test_padding_is_cut_before_resizing():
    """A stripe that ends with the image ends with the image, whatever lies beyond."""
    logits = torch.zeros(1, 2, 16, 16)
    logits[:, 1, :, 8:] = 5.0
    logits[:, 0, :, :8] = 5.0
    beyond = logits.clone()
    beyond[:, :, 12:] = 100 * torch.randn(1, 2, 4, 16)
    size = torch.tensor([[44, 64]])  # of 64 x 64 pixels
    a, b = (likeliest({"logits": x, "size": size}, [(88, 128)])[0] for x in (logits, beyond))
    assert torch.equal(a, b)
    assert (a[:, :64] == 0).all()
    assert (a[:, 64:] == 1).all()

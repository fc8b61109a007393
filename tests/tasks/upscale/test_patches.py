"""Patches are the picture's own pixels."""

import numpy as np
import pytest
import torch
from PIL import Image

from saccade.recipes.upscale import PatchAugment, WholeTest
from saccade.tasks.upscale import patches

MEAN, STD = (0.0,) * 3, (1.0,) * 3


def photo(height, width):
    """Every pixel has a colour of its own."""
    y, x = np.mgrid[:height, :width]
    return Image.fromarray(np.stack((y, x, (y + 2 * x) % 256), 2).astype(np.uint8))


def test_patches_are_cut_mirrored_and_turned_but_never_resized():
    transform = patches.train(PatchAugment(size=32, flip=0.5, turn=0.5), MEAN, STD)
    torch.manual_seed(0)
    picture, ways = photo(60, 80), set()
    for _ in range(60):
        patch, target = transform(picture, 0)
        assert patch.shape == (3, 32, 32)
        assert target == {}
        rows, columns = (patch[:2] * 255).round().int()
        turned = bool((rows[:, 0] == rows[0, 0]).all())
        along, down = (rows[0], columns[:, 0]) if turned else (columns[0], rows[:, 0])
        for line in (along, down):
            assert line.diff().abs().eq(1).all(), "neighbours stay neighbours"
        ways.add((turned, int(along.diff()[0]), int(down.diff()[0])))
    assert len(ways) == 8


@pytest.mark.parametrize("size", [(20, 80), (9, 10), (1, 50), (1, 1)])
def test_a_small_picture_is_continued(size):
    transform = patches.train(PatchAugment(size=32, flip=0.0, turn=0.0), MEAN, STD)
    patch, _ = transform(photo(*size), 0)
    assert patch.shape == (3, 32, 32)
    H, W = (min(side, 32) for side in size)
    assert len(patch[:2, :H, :W].flatten(1).unique(dim=1).T) == H * W


def test_a_test_image_is_whole_or_its_centre():
    picture = photo(50, 70)
    whole, target = patches.test(WholeTest(), MEAN, STD)(picture, 0)
    assert (whole.shape, target) == ((3, 50, 70), {})
    centre = patches.test(WholeTest(most=32), MEAN, STD)(picture)
    assert torch.equal(centre, whole[:, 9:41, 19:51])

import numpy as np
from PIL import Image

from saccade.draw.masks import overlay
from saccade.draw.palette import palette


def test_regions_have_their_colours_and_a_legend():
    photo = Image.new("RGB", (60, 40), "white")
    labels = np.zeros((40, 60), np.uint8)
    labels[:, 30:] = 2
    sheet = np.asarray(overlay(photo, labels, ["sky", "sea", "sand"]))
    assert sheet.shape[1] > 60
    expected = 0.4 * 255 + 0.6 * palette(3)[[0, 2]]
    assert np.abs(sheet[20, [5, 50]] - expected).max() <= 1

"""Colours that eyes tell apart."""

import numpy as np
import pytest

from saccade.draw.palette import FIRST, as_seen_by_three, palette


def least(colours):
    """The smallest distance of any two, for each kind of eyes."""
    places = as_seen_by_three(colours.astype(float))
    apart = np.linalg.norm(places[:, :, None] - places[:, None], axis=-1)
    apart[:, np.arange(len(colours)), np.arange(len(colours))] = np.inf
    return apart.min((1, 2))


def test_a_shorter_palette_begins_a_longer_one():
    assert np.array_equal(palette(40)[:11], palette(11))
    assert np.array_equal(palette(8), np.array(FIRST))
    assert palette(3).shape == (3, 3)


@pytest.mark.parametrize(("count", "apart"), [(8, 10), (11, 10), (20, 7), (150, 1)])
def test_all_eyes_tell_them_apart(count, apart):
    """A distance of 2 or 3 is what one just notices."""
    assert (least(palette(count)) > apart).all(), least(palette(count))


def test_colours_of_known_places():
    white, black, red = as_seen_by_three(np.array([[255.0] * 3, [0.0] * 3, [255.0, 0, 0]]))[0]
    assert white == pytest.approx([100, 0, 0], abs=0.05)
    assert black == pytest.approx([0, 0, 0], abs=0.05)
    assert red == pytest.approx([53.24, 80.09, 67.20], abs=0.1)

"""Bars of classes: any number of them, some absent, names from strangers."""

import io

import pytest
from PIL import Image

pytest.importorskip("matplotlib")

from saccade.engine import bars


@pytest.mark.parametrize("count", [1, 11, 150])
def test_any_number_of_classes(count):
    shares = [100 * i / count for i in range(count)]
    png = bars.classes(shares, [f"class {i}" for i in range(count)])
    with Image.open(io.BytesIO(png)) as picture:
        assert picture.size[0] > 300
        assert picture.size[1] < 3000


def test_absent_classes_and_odd_names():
    names = ["$x_1$", "a" * 80, "naïve\nname", "gone"]
    assert bars.classes([10.0, 0.0, 99.9, None], names).startswith(b"\x89PNG")

"""Bars of classes: any number of them, some absent, names from strangers."""

import io

import pytest
from PIL import Image

pytest.importorskip("matplotlib")

from saccade.engine import bars


@pytest.mark.parametrize("count", [1, 11, 150])
def test_any_number_of_classes(count):
    png = bars.classes([{"class": f"class {i}", "AP": 100 * i / count} for i in range(count)])
    with Image.open(io.BytesIO(png)) as picture:
        assert picture.size[0] > 300
        assert picture.size[1] < 3000


def test_absent_classes_and_odd_names():
    found = {"$x_1$": 10.0, "a" * 80: 0.0, "naïve\nname": 99.9, "gone": None}
    table = [{"class": name, "IoU": share} for name, share in found.items()]
    assert bars.classes(table).startswith(b"\x89PNG")

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from saccade.data.convert import yolo
from saccade.infer.objects import folder_name, label_lines, write_crops, write_labels, write_names


def boxes(*corners, labels=None):
    plain = torch.tensor(corners, dtype=torch.float32).reshape(-1, 4)
    return SimpleNamespace(boxes=plain, labels=torch.tensor(labels or [0] * len(plain)).long())


def test_a_line_is_class_centre_and_size_in_shares():
    (line,) = label_lines(boxes((10, 20, 30, 30), labels=[3]), (100, 50))
    assert line == "3 0.200000 0.500000 0.200000 0.200000"


def test_our_own_reader_reads_the_labels(tmp_path):
    """As a YOLO set: the boxes come back, and a picture without boxes has an empty file."""
    found_here = boxes((10.25, 20, 30, 30.5), (0, 0, 100, 50), labels=[1, 0])
    for name, some in (("one", found_here), ("none", boxes())):
        (tmp_path / "images").mkdir(exist_ok=True)
        Image.new("RGB", (100, 50)).save(tmp_path / "images" / f"{name}.png")
        write_names(tmp_path / "labels", ["cat", "dog"])
        write_labels(tmp_path / "labels", name, some, (100, 50))
    source = yolo.read(tmp_path, None)
    assert source.classes == ["cat", "dog"]
    rows = [row for split in source.splits.values() for row in split]
    named = {row.path.stem: row for row in rows}
    assert not named["none"].boxes
    got = {one.name: one.bbox for one in named["one"].boxes}
    assert got["dog"] == pytest.approx((10.25, 20, 19.75, 10.5), abs=1e-3)
    assert got["cat"] == pytest.approx((0, 0, 100, 50), abs=1e-3)


def test_objects_are_cut_out(tmp_path):
    pixels = np.zeros((50, 100, 3), np.uint8)
    pixels[20:30, 10:30] = 200
    names = ["cat/../..", "dog"]
    some = boxes((10.4, 20.2, 29.5, 29.9), (0, 0, 0.2, 0.3), labels=[0, 1])
    photo = Image.fromarray(pixels)
    one, two = write_crops(tmp_path / "crops", "a", photo, some, names)
    assert one == tmp_path / "crops" / "cat_.._" / "a-1.png"
    assert (np.asarray(Image.open(one)) == 200).all()
    assert Image.open(one).size == (20, 10)
    assert Image.open(two).size == (1, 1)
    assert two.resolve().is_relative_to(tmp_path.resolve())


@pytest.mark.parametrize(
    ("word", "folder"),
    [("a b", "a b"), ("..", "_"), ("", "_"), ("/etc", "_etc"), ("C:\\x", "C__x"), ("猫", "猫")],
)
def test_names_of_folders(word, folder):
    assert folder_name(word) == folder
    assert len(folder_name("x" * 500)) == 100

"""Looking through masks: as many as time allows, and upright."""

import numpy as np
from PIL import Image

from saccade.data import mask_check
from saccade.data.masks import find
from saccade.recipes.recipe import Data
from tests.data.scenes import folder


def test_of_very_many_some_are_looked_at(tmp_path, monkeypatch):
    place = folder(tmp_path, train=9)
    Image.new("L", (9, 7)).save(place / "masks" / "train" / "0.png")
    monkeypatch.setattr(mask_check, "MOST", 3)
    found = find(str(place), Data(bad=0.2))
    (said,) = found.warnings
    assert "(of 3 looked at, 9 in all)" in said
    assert len(found.train) == 8


def test_a_photo_that_lies_on_its_side_is_measured_upright(tmp_path):
    place = folder(tmp_path)
    photo = Image.open(place / "images" / "train" / "0.jpg")
    exif = Image.Exif()
    exif[0x0112] = 6  # EXIF's orientation
    photo.rotate(90, expand=True).save(place / "images" / "train" / "0.jpg", exif=exif)
    found = find(str(place), Data())
    assert found.warnings == []
    upright, mask = found.train.read(0)
    assert mask.shape == (upright.height, upright.width) == (40, 52)


def test_255_is_never_unknown(tmp_path):
    place = folder(tmp_path, ignore_index=9)
    Image.fromarray(np.full((40, 52), 255, np.uint8)).save(place / "masks" / "train" / "0.png")
    assert find(str(place), Data()).warnings == []


def test_an_ignored_id_that_no_mask_can_hold(tmp_path):
    assert find(str(folder(tmp_path, ignore_index=70_000)), Data()).warnings == []

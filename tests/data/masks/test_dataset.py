"""Images with masks: the layouts, the ids, and what is said about what does not fit."""

import json

import numpy as np
import pytest
from PIL import Image

from saccade.data import picture
from saccade.data.images import Unreadable
from saccade.data.masks import IGNORED, aligned, dataset, every, find
from saccade.recipes.recipe import Data
from tests.data.scenes import NAMES, folder


def test_a_folder_of_images_and_masks(tmp_path):
    sets = find(str(folder(tmp_path)), Data())
    assert (len(sets.train), len(sets.val)) == (8, 4)
    assert sets.classes == NAMES
    assert sets.warnings == []
    assert "8 images to train on, 4 to validate, 3 classes" in sets.about
    assert sets.notes["ids"] == [0, 1, 2]
    photo, mask = sets.train.read(3)
    assert mask.shape == (photo.height, photo.width)
    assert set(np.unique(mask)) == {0, 1, 2}
    assert sets.train.name(3).endswith("train/3.jpg")


def test_without_a_validation_set_some_are_held_out(tmp_path):
    place = str(folder(tmp_path, train=10, splits=("",)))
    sets = find(place, Data(holdout=0.2), seed=1)
    assert (len(sets.train), len(sets.val)) == (8, 2)
    names = {sets.train.name(i) for i in range(8)} | {sets.val.name(i) for i in range(2)}
    assert len(names) == 10
    assert find(place, Data(holdout=0.2), seed=1).val.digest() == sets.val.digest()
    assert find(place, Data(holdout=0.2), seed=2).val.digest() != sets.val.digest()
    assert len(every(place, NAMES)) == 10


def test_ids_may_have_gaps_and_zero_may_be_no_class(tmp_path):
    classes = {"0": "unlabeled", "1": "sky", "90": "sea", "200": "boat"}
    place = folder(tmp_path, masks="semantic", ids=(1, 90, 200), classes=classes, ignore_index=0)
    file = place / "semantic" / "train" / "0.png"
    ids = np.array(Image.open(file))
    ids[0] = 0
    Image.fromarray(ids).save(file)
    (place / "classes.json").rename(place / "semantic" / "classes.json")
    sets = find(str(place), Data())
    assert sets.classes == NAMES
    assert {k: sets.notes[k] for k in ("ids", "ignored")} == {"ids": [1, 90, 200], "ignored": [0]}
    masks = [sets.train.read(i)[1] for i in range(len(sets.train))]
    counts = sum(np.bincount(mask.ravel(), minlength=256)[:3] for mask in masks)
    assert sets.notes["pixels"] == counts.tolist()
    _, mask = sets.train.read(0)
    assert set(np.unique(mask)) == {0, 1, 2, IGNORED}
    assert (mask[0] == IGNORED).all()
    assert sets.warnings == []


def test_ade20k(tmp_path):
    place = folder(
        tmp_path, masks="annotations", splits=("training", "validation"), ids=(0, 1, 150)
    )
    (place / "classes.json").unlink()
    sets = find(str(place), Data())
    assert len(sets.classes) == 150
    assert sets.classes[:2] == ["class 1", "class 2"]
    assert "read as ADE20K, where 0 is no class" in sets.about
    _, mask = sets.val.read(0)
    assert set(np.unique(mask)) == {IGNORED, 0, 149}
    lines = [f"{i}\t0.1\t1\t1\t1\tthing{i}, other" for i in range(1, 151)]
    lines[4] = lines[3].replace("4\t0.1", "5\t0.1")
    (place / "objectInfo150.txt").write_text("\n".join(["Idx\tRatio\tName", *lines]))
    names = find(str(place), Data()).classes
    assert names[:5] == ["thing1", "thing2", "thing3", "thing4", "thing4 5"]


def test_a_palette_and_16_bits_are_ids_too(tmp_path):
    place = folder(tmp_path, classes={"0": "sky", "1": "sea", "2": "boat", "300": "bird"})
    file = place / "masks" / "val" / "0.png"
    ids = np.array(Image.open(file))
    grey = Image.fromarray(ids)
    grey.putpalette([0, 0, 0, 200, 0, 0, 0, 200, 0])
    assert grey.mode == "P"
    grey.save(file)
    wide = ids.astype(np.uint16)
    wide[0] = 300
    Image.fromarray(wide).save(place / "masks" / "train" / "0.png")
    sets = find(str(place), Data())
    assert np.array_equal(sets.val.read(0)[1], ids)
    assert (every(str(place), sets.classes).read(0)[1] == ids).all()
    Image.fromarray(np.pad(wide, ((0, 0), (0, 0)))).save(file)
    assert (sets.val.read(0)[1][0] == 3).all()


def test_what_does_not_fit_is_told_and_nothing_is_lost(tmp_path, monkeypatch):
    place = folder(tmp_path)
    before = find(str(place), Data()).train
    masks = place / "masks" / "train"
    Image.new("L", (9, 7)).save(masks / "0.png")
    (masks / "1.png").write_bytes(b"no picture")
    (masks / "2.png").unlink()
    Image.new("L", (52, 40)).save(masks / "stray.png")
    ids = np.array(Image.open(masks / "3.png"))
    ids[:2, :5] = 77
    Image.fromarray(ids).save(masks / "3.png")
    Image.new("RGB", (51, 41)).save(masks / "4.png")
    with pytest.raises(ValueError, match=r"3 of 7 masks cannot be used, more than the 5\.0%"):
        find(str(place), Data())
    sets = find(str(place), Data(bad=0.5))
    assert sets.findings["no mask"] == ["images/train/2.jpg"]
    assert sets.findings["no image"] == ["masks/train/stray.png"]
    (size,) = sets.findings["another size"]
    assert "images/train/0.jpg: mask 9 x 7, image 52 x 40 pixels" in size
    assert [line.split(":")[0] for line in sets.findings["unreadable mask"]] == [
        "images/train/1.jpg", "images/train/4.jpg",
    ]  # fmt: skip
    assert sets.findings["unknown ids"] == ["images/train/3.jpg: id 77 (10 pixels)"]
    message = "\n".join(sets.warnings)
    for part in (
        "1 images have no mask and are left out, such as 'images/train/2.jpg'",
        "1 masks have no image",
        "1 masks are of another size than their image, which is left out",
        "2 masks cannot be read",
        "1 masks hold ids that no class has (77): 10 pixels are not looked at",
    ):
        assert part in message
    assert len(sets.train) == 4
    with pytest.raises(Unreadable, match="its mask is 9 x 7 pixels and the image 52 x 40"):
        before.read(0)
    with pytest.raises(Unreadable, match="mode RGB"):
        before.read(4)
    with monkeypatch.context() as small:
        small.setattr(picture, "MOST", 100)
        with pytest.raises(Unreadable, match="at most 100 are read"):
            sets.train.ids(0)
    _, mask = sets.train.read(0)
    assert (mask[:2, :5] == IGNORED).all()


def legend(place, text):
    (place / "classes.json").write_text(text)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda p: (p / "classes.json").unlink(), "no classes.json, so nobody knows"),
        (
            lambda p: (
                (p / "classes.json").unlink(),
                (p / "images/train").rename(p / "images/training"),
            ),
            "no classes.json, so nobody knows",
        ),
        (lambda p: (p / "classes.json").write_text("{"), "wanted {.classes.: "),
        (lambda p: (p / "classes.json").write_text('{"classes": ["a"]}'), "from 2 to 255 classes"),
        (lambda p: (p / "classes.json").write_text('{"classes": ["a", "a"]}'), "called 'a'"),
        (lambda p: legend(p, '{"classes": ["a", "b"], "ignore_index": Infinity}'), "wanted {.cl"),
        (lambda p: legend(p, '{"classes": ["a", "b"], "ignore_index": 1e999}'), "wanted {.classes"),
        (lambda p: legend(p, '{"classes": "sky"}'), "wanted {.classes.*classes is 'sky'"),
        (lambda p: legend(p, "[" * 5000), "wanted {.classes.: "),
        (lambda p: (p / "classes.json").write_bytes(b"\xff\xfe{"), "no UTF-8 text"),
        (lambda p: (p / "images").rename(p / "photos"), "no folder 'images'"),
        (lambda p: (p / "masks").rename(p / "drawn"), "has no masks"),
        (lambda p: [f.rename(f"{f}x.jpg") for f in p.glob("images/*/*")], "no image has a mask"),
        (lambda p: (p / "images/train").rename(p / "elsewhere"), "none to train on"),
        (
            lambda p: [Image.new("L", (5, 5)).save(f) for f in p.glob("masks/*/*")],
            "no mask of 8 fits its image; images/train/0.jpg: mask 5 x 5, image 52 x 40",
        ),
    ],
)
def test_what_cannot_be_used_is_refused_in_a_sentence(spoil, says, tmp_path):
    place = folder(tmp_path)
    spoil(place)
    with pytest.raises(ValueError, match=says):
        find(str(place), Data())


def test_what_is_tested_on_is_looked_at_too(tmp_path):
    place = folder(tmp_path)
    assert every(str(place), NAMES).warnings == ()
    (place / "masks/val/1.png").unlink()
    with Image.open(place / "masks/val/2.png") as file:
        ids = np.array(file)
    ids[:3] = 77
    Image.fromarray(ids).save(place / "masks/val/2.png")
    for classes in (NAMES, ["more", *NAMES]):
        no_mask, unknown = every(str(place), classes).warnings
        assert "1 images have no mask" in no_mask
        assert "77" in unknown


def test_classes_are_matched_by_name(tmp_path):
    place = folder(tmp_path)
    mine = every(str(place), ["boat", "bird", "sea", "sky"])
    plain = every(str(place), NAMES)
    to = np.array([3, 2, 0], np.uint8)
    assert np.array_equal(mine.read(1)[1], to[plain.read(1)[1]])
    assert mine.classes == ["boat", "bird", "sea", "sky"]
    assert mine.digest() != plain.digest()
    with pytest.raises(ValueError, match="class 'boat' is not among the model's 2"):
        aligned(plain, ["sky", "sea"])


@pytest.mark.parametrize(
    ("name", "train", "val", "classes"),
    [
        ("segmentation/camvid", 367, 101, 11),
        ("detection/pets_heads_trimaps", 318, 80, 3),
        ("detection/coco384", 100, 100, 129),
    ],
)
@pytest.mark.data
def test_the_sets_beside_the_project(shared, name, train, val, classes):
    place = shared / "data" / name
    if not place.is_dir():
        pytest.skip(f"no {name} beside the project")
    sets = find(str(place), Data())
    assert (len(sets.train), len(sets.val), len(sets.classes)) == (train, val, classes)
    assert set(sets.findings) <= {"no mask"}
    photo, mask = sets.val.read(0)
    assert mask.shape == (photo.height, photo.width)
    known = json.loads(next(place.rglob("classes.json")).read_text())["classes"]
    assert sets.classes[0] in (known if isinstance(known, list) else known.values())


def test_of_very_many_some_are_looked_at(tmp_path, monkeypatch):
    place = folder(tmp_path, train=9)
    Image.new("L", (9, 7)).save(place / "masks" / "train" / "0.png")
    monkeypatch.setattr(dataset, "CHECKED", 3)
    sets = find(str(place), Data(bad=0.2))
    (message,) = sets.warnings
    assert "(of 3 looked at, 9 in all)" in message
    assert len(sets.train) == 8


def test_a_photo_that_lies_on_its_side_is_measured_upright(tmp_path):
    place = folder(tmp_path)
    photo = Image.open(place / "images" / "train" / "0.jpg")
    exif = Image.Exif()
    exif[0x0112] = 6  # EXIF's orientation
    photo.rotate(90, expand=True).save(place / "images" / "train" / "0.jpg", exif=exif)
    sets = find(str(place), Data())
    assert sets.warnings == []
    upright, mask = sets.train.read(0)
    assert mask.shape == (upright.height, upright.width) == (40, 52)


def test_255_is_never_unknown(tmp_path):
    place = folder(tmp_path, ignore_index=9)
    Image.fromarray(np.full((40, 52), 255, np.uint8)).save(place / "masks" / "train" / "0.png")
    assert find(str(place), Data()).warnings == []


def test_an_ignored_id_that_no_mask_can_hold(tmp_path):
    assert find(str(folder(tmp_path, ignore_index=70_000)), Data()).warnings == []

import json
import math
import pickle
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from saccade.data.boxes import aligned, augment, dataset, every, find
from saccade.data.loader import Loader
from saccade.recipes.detect import BoxAugment, BoxTest
from saccade.recipes.recipe import Data
from tests.data.conftest import photo

CATEGORIES = [{"id": 7, "name": "dog"}, {"id": 2, "name": "cat"}, {"id": 90, "name": "eel"}]


def image(i, **more):
    return {"id": i, "file_name": f"{i}.png", "width": 24, "height": 20, **more}


def box(i, of, category=2, bbox=(1, 2, 10, 9), **more):
    return {"id": i, "image_id": of, "category_id": category, "bbox": list(bbox), **more}


def written(path, images, annotations, categories=CATEGORIES):
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"images": images, "annotations": annotations, "categories": categories}
    path.write_text(json.dumps(content))
    return path


def content(at):
    """Six images: one without boxes, one with a crowd, in the order 10, 11, .. (20, 21, ..)."""
    images = [image(i) for i in range(at, at + 6)]
    annotations = [
        box(1, at + 3, 7, (0, 0, 24, 20), area=300.5),
        box(2, at, 2),
        box(3, at, 90, (5.5, 5.25, 10, 10)),
        box(4, at + 2, 2, (2, 2, 8, 8), iscrowd=1, segmentation={"counts": [1, 2]}),
        box(5, at + 2, 7, (3, 3, 4, 4), segmentation=[[1, 2, 3, 4, 5, 6]]),
        box(6, at + 4, 2),
        box(7, at + 5, 90),
    ]
    return images, annotations


@pytest.fixture
def coco(tmp_path):
    """FOLDER/annotations/instances_{train,val}.json and FOLDER/images/{train,val}."""
    place = tmp_path / "set"
    for split, at in (("train", 10), ("val", 20)):
        images, annotations = content(at)
        written(place / f"annotations/instances_{split}.json", images, annotations)
        for row in images:
            photo(place / "images" / split / row["file_name"], row["id"])
    return place


def changed(place, split, change):
    """Its json, after a change to the lists."""
    path = place / f"annotations/instances_{split}.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


# -- layouts --------------------------------------------------------------------------------


def check(splits):
    assert splits.classes == ["cat", "dog", "eel"], "in the order of their ids"
    for part, at in ((splits.train, 10), (splits.val, 20)):
        assert len(part) == 6
        assert part.ids == [2, 7, 90]
        assert [part.read(i)[1]["id"] for i in range(6)] == list(range(at, at + 6))
        assert [part.read(i)[1]["labels"].tolist() for i in range(6)] == [
            [0, 2], [], [0, 1], [1], [0], [2],
        ]  # fmt: skip
        assert all(part.name(i).endswith(f"/{at + i}.png") for i in range(6))
    assert splits.warnings == []
    assert splits.train.findings == splits.val.findings == {}


def test_a_coco_set(coco):
    splits = find(str(coco), Data())
    assert splits.about == (
        "set: 6 images with 6 boxes (images without: 1, crowds: 1) to train on, "
        "6 images with 6 boxes (images without: 1, crowds: 1) to validate, 3 classes"
    )
    check(splits)


def test_what_a_target_holds(coco):
    train = find(str(coco), Data()).train
    picture, target = train.read(0)
    assert picture.size == (24, 20)
    assert picture.mode == "RGB"
    assert {k: v.dtype for k, v in target.items() if k != "id"} == {
        "boxes": torch.float32, "labels": torch.int64, "crowd": torch.bool, "area": torch.float32,
    }  # fmt: skip
    assert target["boxes"].tolist() == [[1, 2, 11, 11], [5.5, 5.25, 15.5, 15.25]]
    assert target["area"].tolist() == [90, 100], "where none is annotated, the box's"
    assert train.read(3)[1]["area"].tolist() == [300.5]
    assert train.read(2)[1]["crowd"].tolist() == [True, False]
    empty = train.read(1)[1]
    assert empty["boxes"].shape == (0, 4)
    assert train.counts().tolist() == [2, 2, 2]


def test_cocos_own_layout(coco):
    for split in ("train", "val"):
        (coco / f"annotations/instances_{split}.json").rename(
            coco / f"annotations/instances_{split}2017.json"
        )
        (coco / "images" / split).rename(coco / f"{split}2017")
    (coco / "annotations/captions_train2017.json").write_text("{}")
    check(find(str(coco), Data()))
    written(coco / "annotations/instances_train2014.json", [image(10)], [box(1, 10)])
    assert find(str(coco), Data()).warnings == [
        "train: 2 annotation files, instances_train2017.json is used"
    ]


def test_roboflows_layout(coco):
    for split, name in (("train", "train"), ("val", "valid")):
        (coco / "images" / split).rename(coco / name)
        (coco / f"annotations/instances_{split}.json").rename(
            coco / name / "_annotations.coco.json"
        )
    check(find(str(coco), Data()))


@pytest.mark.parametrize("where", ["beside", "images"])
def test_one_json_alone(coco, where):
    alone = coco.parent / "alone"
    (alone / "images").mkdir(parents=True)
    shutil.move(coco / "annotations/instances_train.json", alone / "labels.json")
    for path in (coco / "images/train").iterdir():
        shutil.move(path, alone / ("images" if where == "images" else "") / path.name)
    names = set()
    for path in (alone, alone / "labels.json"):
        splits = find(str(path), Data(holdout=0.4))
        assert (len(splits.train), len(splits.val)) == (4, 2)
        assert len(every(str(path), splits.classes)) == 6
        both = [part.name(i) for part in (splits.train, splits.val) for i in range(len(part))]
        assert len(set(both)) == 6
        names.add(tuple(both))
    assert len(names) == 1, "the same held out each time"


def test_a_json_of_a_whole_layout_by_itself(coco):
    splits = find(str(coco / "annotations/instances_train.json"), Data(holdout=0.2))
    assert (len(splits.train), len(splits.val)) == (5, 1)
    shutil.rmtree(coco / "images/val")
    (coco / "annotations/instances_val.json").unlink()
    again = find(str(coco), Data(holdout=0.2))
    assert again.val.digest() == splits.val.digest()


def test_what_is_held_out_has_boxes(coco):
    path = str(coco / "annotations/instances_train.json")
    held = set()
    for seed in range(20):
        splits = find(path, Data(holdout=0.01), seed)
        assert len(splits.val) == 1
        assert splits.val.counts().sum() > 0
        held.add(splits.val.name(0))
    assert len(held) > 2, "by the seed"
    for share in (0, 1, 1.5):
        with pytest.raises(ValueError, match=r"data.holdout: a share between 0 and 1"):
            find(path, Data(holdout=share))


def test_names_with_folders_and_backslashes(coco):
    def change(content):
        for n, row in enumerate(content["images"]):
            row["file_name"] = ("images/train/", "images\\train\\", "elsewhere/", "")[n % 4] + (
                row["file_name"]
            )

    changed(coco, "train", change)
    check(find(str(coco), Data()))


def test_ids_that_some_programs_write(coco):
    def change(content):
        for row in content["images"]:
            row["id"] = float(row["id"])
        for row in content["annotations"]:
            row["image_id"], row["category_id"] = str(row["image_id"]), float(row["category_id"])

    changed(coco, "train", change)
    check(find(str(coco), Data()))


# -- what is odd is counted -----------------------------------------------------------------


def test_everything_odd_at_once(coco):
    def change(content):
        content["images"] += [
            image(16), image(10, file_name="13.png"), {"id": 17}, {"file_name": "10.png"},
            image("x", file_name="11.png"), image(18, file_name="12.png", width=None),
        ]  # fmt: skip
        content["annotations"] += [
            box(30, 99), box(31, 16), box(32, 10, 55), box(33, 10, bbox=(1, 2, 3)),
            box(34, 10, bbox=(1, 2, 3, math.nan)), box(35, 10, bbox=(math.inf, 2, 3, 4)),
            box(36, 10, bbox=(1, 2, 0, 4)), box(37, 10, bbox=(1, 2, 3, -4)),
            box(38, 10, bbox=(30, 2, 3, 4)), box(39, 10, bbox=(-5, -5, 10, 40)),
            box(1, 11, bbox=(1, 1, 2, 2)), box(40, "x"), box(41, 11, bbox="1 2 3 4"),
            box(42, 11, bbox=(20, 10, 4.005, 2)), box(43, 18, bbox=(20, 10, 9, 2)),
            {"image_id": [1], "category_id": {}, "bbox": None}, box(44, 11, bbox=(1e300, 1, 1, 1)),
        ]  # fmt: skip
        content["categories"] += [
            {"id": 7, "name": "wolf"}, {"id": 91, "name": "cat"}, {"id": 92}, {"name": "fox"},
        ]  # fmt: skip

    changed(coco, "train", change)
    splits = find(str(coco), Data())
    assert splits.classes == ["cat", "dog", "eel", "92"]
    assert {kind: len(lines) for kind, lines in splits.train.findings.items()} == {
        "categories without a whole number as id (left out)": 1,
        "category ids listed twice (the first kept)": 1,
        "categories without a name (called by their id)": 1,
        "category names listed twice (made one class)": 1,
        "pictures not found (left out with their boxes)": 1,
        "pictures listed under two ids (both kept)": 2,
        "image ids listed twice (the first kept)": 1,
        "images without a file name (left out)": 1,
        "images without an id (left out)": 1,
        "image ids that are no whole numbers (numbered anew)": 1,
        "images without width and height (taken from the file)": 1,
        "annotations of an image that is not listed (left out)": 2,
        "annotations of a picture that was left out": 1,
        "annotations of a category that is not listed (left out)": 1,
        "boxes that are no four numbers (left out)": 2,
        "boxes that are not finite (left out)": 3,
        "boxes without width or height (left out)": 2,
        "boxes that lie outside their image (left out)": 1,
        "boxes that reach beyond their image (clipped)": 2,
        "annotation ids used twice (both boxes kept)": 1,
    }
    assert len(splits.warnings) == 20 + 1
    for sentence in (
        "train: 1 pictures not found (left out with their boxes), such as 16.png",
        "train: 2 boxes without width or height (left out), such as annotation 36 of 10.png "
        "([1, 2, 0, 4] in 24 x 20)",
        "train: 1 annotations of a category that is not listed (left out), such as annotation 32 "
        "(category 55)",
        "train: 2 boxes that reach beyond their image (clipped), such as annotation 39 of 10.png "
        "([-5, -5, 10, 40] in 24 x 20)",
        "train: 1 of 4 categories have no boxes to learn from, such as '92'",
    ):
        assert sentence in splits.warnings
    train = splits.train
    assert len(train) == 8, "six as before, x and 18"
    assert train.read(0)[1]["boxes"].tolist()[2:] == [[0, 0, 5, 20]]
    assert train.read(1)[1]["boxes"].tolist() == [[1, 1, 3, 3], [20, 10, 24, 12]]
    assert train.read(6)[1]["id"] == 19, "a number that nobody has"
    assert train.read(7)[1]["boxes"].tolist() == [[20, 10, 24, 12]]
    json.dumps(train.findings)


def test_crowds_as_some_programs_write_them(coco):
    def change(content):
        ways = ("0", 1.0, "1", True, False, None, "yes", [1])
        content["annotations"] = [{**box(i, 10), "iscrowd": way} for i, way in enumerate(ways, 1)]

    changed(coco, "train", change)
    splits = find(str(coco), Data())
    assert splits.train.crowd.tolist() == [False, True, True, True, False, False, False, False]
    (message,) = (s for s in splits.warnings if "iscrowd" in s)
    assert message == (
        "train: 2 boxes whose iscrowd is neither 0 nor 1 (taken for 0), such as annotation 7 "
        "('yes')"
    )


def test_pictures_that_are_learnt_from_and_tested_on(coco):
    (coco / "images" / "train" / "10.png").rename(coco / "images" / "10.png")
    changed(coco, "val", lambda content: content["images"].append(image(99, file_name="10.png")))
    assert any(
        "1 pictures are in the training set too" in s for s in find(str(coco), Data()).warnings
    )


def test_what_is_odd_is_told_of_a_set_to_test_on_too(coco):
    changed(coco, "val", lambda content: content["images"].append(image(99, file_name="gone.png")))
    warnings = every(str(coco), ["cat", "dog", "eel"]).warnings
    assert warnings == ("1 pictures not found (left out with their boxes), such as gone.png",)


def test_a_picture_that_goes_missing_later_is_unreadable(coco):
    splits = find(str(coco), Data())
    (coco / "images/train/10.png").unlink()
    with pytest.raises(dataset.picture.Unreadable):
        splits.train.read(0)


def test_a_broken_picture_is_left_to_the_loader(coco):
    (coco / "images/train/10.png").write_bytes(b"no picture")
    changed(coco, "train", lambda content: content["images"][0].pop("width"))
    splits = find(str(coco), Data())
    assert len(splits.train) == 6
    with pytest.raises(dataset.picture.Unreadable):
        splits.train.read(0)


def test_categories_of_which_none_can_be_used(coco):
    changed(coco, "val", lambda f: f.update(categories=[{"id": "x", "name": "cat"}]))
    with pytest.raises(ValueError, match="to validate on, but not one usable box"):
        find(str(coco), Data())


def test_categories_by_name_whatever_their_ids(coco):
    def change(content):
        content["categories"] = [
            {"id": 1, "name": "eel"}, {"id": 5, "name": "cat"}, {"id": 9, "name": "owl"},
            {"id": 6, "name": "dog"},
        ]  # fmt: skip
        new = {2: 5, 7: 6, 90: 1}
        for row in content["annotations"]:
            row["category_id"] = new[row["category_id"]]

    changed(coco, "val", change)
    splits = find(str(coco), Data())
    assert splits.val.ids == [5, 6, 1], "the file's own"
    assert splits.val.read(0)[1]["labels"].tolist() == [0, 2]
    assert splits.val.classes == splits.classes
    changed(coco, "val", lambda f: f["annotations"].append(box(50, 20, 9)))
    with pytest.raises(
        ValueError,
        match=r"category 'owl' has 1 boxes but is not among the training set's 3; did you mean",
    ):
        find(str(coco), Data())


# -- sizes that disagree --------------------------------------------------------------------


def marked(path, side, at, orientation=None):
    """Black with a white rectangle, perhaps with a word that it is to be turned."""
    picture = Image.new("RGB", side)
    picture.paste((255, 255, 255), at)
    exif = Image.Exif()
    if orientation:
        exif[0x0112] = orientation
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.save(path, exif=exif)


def lit(picture, corners):
    """Whether the box holds what is white and nothing else."""
    pixels = np.asarray(picture.convert("L")) > 127
    x0, y0, x1, y1 = (round(v) for v in corners.tolist())
    inside = pixels[y0:y1, x0:x1]
    return bool(inside.all()) and inside.sum() == pixels.sum()


@pytest.mark.parametrize(
    ("stored", "orientation", "message", "kind"),
    [
        ((40, 20), None, (40, 20), None),
        ((40, 20), 6, (40, 20), "pictures whose boxes fit only as stored, not upright"),
        ((40, 20), 6, (20, 40), None),
        ((80, 40), None, (40, 20), "pictures of another size than the json says (boxes scaled)"),
        ((20, 10), None, (40, 20), "pictures of another size than the json says (boxes scaled)"),
        ((40, 20), None, (20, 40), "pictures of another shape than the json says"),
        ((40, 20), None, (500, 20), "pictures of another shape than the json says"),
    ],
)
def test_boxes_fit_whatever_the_file_is(tmp_path, stored, orientation, message, kind):
    W, H = stored
    marked(tmp_path / "1.png", stored, (4, 2, 12, 8), orientation)
    marked(tmp_path / "2.png", stored, (4, 2, 12, 8), orientation)
    corner = (4, 2, 8, 6)
    if orientation and message != stored:  # 6: turned clockwise, so x is H - y
        corner = (H - 8, 4, 6, 8)
    elif kind and "scaled" in kind:
        corner = tuple(v * message[0] / W for v in corner)
    rows = [image(i, width=message[0], height=message[1]) for i in (1, 2)]
    written(tmp_path / "a.json", rows, [box(1, 1, bbox=corner), box(2, 2, bbox=corner)])
    train = find(str(tmp_path), Data()).train
    picture, target = train.read(0)
    assert lit(picture, target["boxes"][0])
    scale = (picture.size[0] / message[0]) ** 2 if kind and "scaled" in kind else 1
    assert target["area"].item() == pytest.approx(corner[2] * corner[3] * scale)
    if kind is None:
        assert train.findings == {}
    else:
        ((finding, lines),) = train.findings.items()
        assert finding.startswith(kind)
        assert lines[0].startswith(f"1.png ({message[0]} x {message[1]} in the json, ")


def test_boxes_beyond_a_picture_of_another_shape(tmp_path):
    for name in ("1.png", "2.png"):
        photo(tmp_path / name, 1)
    rows = [image(i, width=90, height=20) for i in (1, 2)]
    beyond = [box(1, 1, bbox=(20, 0, 20, 5)), box(2, 1, bbox=(30, 0, 9, 9)), box(3, 2)]
    written(tmp_path / "a.json", rows, beyond)
    whole = every(str(tmp_path), ["cat", "dog", "eel"])
    assert whole.read(0)[1]["boxes"].tolist() == [[20, 0, 24, 5]]
    ((_, lines),) = whole.findings.items()
    assert lines[0].endswith("24 x 20 upright; 2 boxes reach beyond it and are clipped)")


def test_of_very_many_some_are_looked_at(coco, monkeypatch):
    monkeypatch.setattr(dataset, "LOOKED_AT", 3)
    changed(coco, "train", lambda f: [row.update(width=12, height=10) for row in f["images"]])
    (kind,) = (k for k in find(str(coco), Data()).train.findings if "scaled" in k)
    assert kind.endswith("(boxes scaled) among 3 looked at")


# -- what cannot be used --------------------------------------------------------------------


def empty(place):
    shutil.rmtree(place)
    place.mkdir()


def only(place, text):
    empty(place)
    (place / "a.json").write_text(text)


def no_boxes(place):
    changed(place, "train", lambda content: content["annotations"].clear())


def only_crowds(place):
    changed(place, "train", lambda f: [row.update(iscrowd=1) for row in f["annotations"]])


def yolo(place):
    empty(place)
    (place / "labels").mkdir()


def voc(place):
    empty(place)
    (place / "VOC2012/Annotations").mkdir(parents=True)
    (place / "VOC2012/Annotations/1.xml").write_text("<annotation></annotation>")


def roboflow_yolo(place):
    empty(place)
    (place / "train/labels").mkdir(parents=True)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (empty, r"set' is empty; wanted: annotations/instances_train.json and images/train"),
        (lambda p: only(p, "{"), r"a.json' is no json \(Expecting .*\); write it anew"),
        (lambda p: only(p, "[1, 2]"), r"a.json' is no COCO json: it holds a list"),
        (lambda p: only(p, '{"shapes": []}'), r"wants lists images, annotations.*it has shapes"),
        (lambda p: only(p, '{"images": 3}'), r"'images' is no list of objects"),
        (
            lambda p: only(p, '{"images": [], "annotations": [], "categories": []}'),
            r"lists no images",
        ),
        (
            lambda p: only(p, '{"images": [{"id": 1}], "annotations": [], "categories": []}'),
            r"names no categories",
        ),
        (no_boxes, r"set: 6 images to train on, but not one usable box \(its list of annot"),
        (only_crowds, r"not one usable box"),
        (
            lambda p: changed(p, "val", lambda content: content["annotations"].clear()),
            r"set: 6 images to validate on, but not one usable box; add some, or remove the set",
        ),
        (
            lambda p: shutil.rmtree(p / "images/train"),
            r"none of its 6 pictures is there, such as '10.png'; looked in .*images/train",
        ),
        (
            lambda p: (p / "annotations/instances_train.json").unlink(),
            r"boxes to validate on but none to train on",
        ),
        (
            lambda p: [(p / "annotations" / f"instances_{s}.json").rename(p / f"{s}.json")
                       for s in ("train", "val")],
            r"holds 2 json files \(train.json, val.json\); give one of them",
        ),
        (lambda p: shutil.rmtree(p / "annotations"), r"no COCO json in"),
        (yolo, r"looks like YOLO's or VOC's layout: saccade convert"),
        (voc, r"VOC2012' looks like YOLO's or VOC's layout: saccade convert .*VOC2012 OUT makes"),
        (roboflow_yolo, r"looks like YOLO's or VOC's layout: saccade convert"),
    ],
)  # fmt: skip
def test_sets_that_cannot_be_used(coco, change, words):
    change(coco)
    with pytest.raises((ValueError, FileNotFoundError), match=words) as error:
        find(str(coco), Data())
    assert "\n" not in str(error.value)


def test_a_missing_path(tmp_path):
    with pytest.raises(FileNotFoundError, match="no folder or file 'nowhere'; check the path"):
        find("nowhere", Data())
    (tmp_path / "a.zip").write_bytes(b"")
    with pytest.raises(ValueError, match=r"a.zip' is no COCO json; wanted"):
        find(str(tmp_path / "a.zip"), Data())


def test_one_image_with_boxes(tmp_path):
    photo(tmp_path / "1.png", 1)
    written(tmp_path / "a.json", [image(1)], [box(1, 1)])
    with pytest.raises(ValueError, match="one image with boxes leaves none to validate"):
        find(str(tmp_path), Data())


# -- testing a trained model ----------------------------------------------------------------


def test_labels_follow_the_models_classes(coco):
    classes = ["owl", "eel", "dog", "cat"]
    val = every(str(coco), classes)
    assert val.classes == classes
    assert val.ids == [1, 90, 7, 2]
    ids = every(str(coco), ["dog", "owl", "cat", "eel", "fox"]).ids
    assert ids == [7, 92, 2, 90, 5], "an owl's would be 2, which is a cat's"
    assert val.read(0)[1]["labels"].tolist() == [3, 1]
    assert val.counts().tolist() == [0, 2, 2, 2]
    own = find(str(coco), Data()).val
    assert aligned(own, ["cat", "dog", "eel"]) is own
    with pytest.raises(ValueError, match=r"category 'eel' has 2 boxes.*the model's 3; .*'eels'"):
        every(str(coco), ["cat", "dog", "eels"])
    with pytest.raises(ValueError, match=r"category 'dog' has 2 boxes"):
        every(str(coco), ["cat", "eel"])
    shutil.rmtree(coco / "images/train")
    (coco / "annotations/instances_train.json").unlink()
    assert every(str(coco), classes).digest() == val.digest()


# -- workers, resuming, loading -------------------------------------------------------------


def test_digests_tell_sets_apart(coco):
    first = find(str(coco), Data())
    shutil.move(coco, coco.parent / "moved")
    moved = coco.parent / "moved"
    again = find(str(moved), Data())
    assert again.train.digest() == first.train.digest() != first.val.digest()
    changed(moved, "train", lambda content: content["annotations"][1]["bbox"].__setitem__(0, 2))
    assert find(str(moved), Data()).train.digest() != first.train.digest()


def test_sets_travel_to_workers(coco):
    train = find(str(coco), Data()).train
    there = pickle.loads(pickle.dumps(train))
    for i in range(len(train)):
        (a, x), (b, y) = train.read(i), there.read(i)
        assert a.tobytes() == b.tobytes()
        assert all(torch.equal(x[k], y[k]) for k in x if k != "id")


def test_many_boxes_lie_in_arrays(tmp_path):
    photo(tmp_path / "1.png", 1)
    photo(tmp_path / "2.png", 2)
    rows = [box(n, 1 + n % 2, bbox=(n % 9, n % 7, 5, 5)) for n in range(5000)]
    written(tmp_path / "a.json", [image(1), image(2)], rows)
    whole = every(str(tmp_path), ["cat", "dog", "eel"])
    assert whole.counts().tolist() == [5000, 0, 0]
    assert len(pickle.dumps(whole)) < 5000 * 32, "no object a box"


@pytest.mark.parametrize("workers", [0, 1])
def test_through_the_loader(coco, workers):
    train = find(str(coco), Data()).train
    how = BoxAugment(short=(24,), long=40, scale=(0.8, 1.2), crop=20)
    loader = Loader(
        train, augment.train(how, (0.5,) * 3, (0.2,) * 3), batch=3, workers=workers, seed=1
    )
    try:
        for parts in loader.epoch(0):
            target = parts[0].target
            assert set(target) == {"boxes", "labels"}
            for corners, labels in zip(target["boxes"], target["labels"], strict=True):
                assert len(corners) == len(labels)
                assert corners.shape[-1] == 4
    finally:
        loader.close()


# -- real sets ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "about"),
    [
        ("bccd", "292 images with 3943 boxes to train on, 72 images with 945 boxes"),
        (
            "coco384",
            "256 images with 1815 boxes (images without: 2, crowds: 23) to train on, "
            "128 images with 898 boxes",
        ),
        ("pets_heads_trimaps", "318 images with 319 boxes to train on, 80 images with 80 boxes"),
    ],
)
@pytest.mark.data
def test_real_sets(shared, name, about):
    place = shared / "data/detection" / name
    if not place.is_dir():
        pytest.skip(f"no {name} in the shared data")
    splits = find(str(place), Data())
    assert splits.about.startswith(f"{name}: {about}")
    plain = json.loads((place / "annotations/instances_train.json").read_text())
    assert splits.train.findings == {}
    assert splits.classes == [c["name"] for c in sorted(plain["categories"], key=lambda c: c["id"])]
    assert len(splits.train.boxes) == len(plain["annotations"]), "nothing lost"
    by_image = {}
    for row in plain["annotations"]:
        by_image.setdefault(row["image_id"], []).append(row)
    for i in range(0, len(splits.train), 40):
        picture, target = splits.train.read(i)
        rows = by_image.get(target["id"], [])
        assert [splits.train.ids[c] for c in target["labels"]] == [r["category_id"] for r in rows]
        for corners, row in zip(target["boxes"].tolist(), rows, strict=True):
            x, y, w, h = row["bbox"]
            assert corners == pytest.approx([x, y, x + w, y + h], abs=0.02)
            assert corners[2] <= picture.size[0]
            assert corners[3] <= picture.size[1]


@pytest.mark.data
def test_real_pictures_through_the_transforms(shared):
    place = shared / "data/detection/coco384"
    if not place.is_dir():
        pytest.skip("no coco384 in the shared data")
    splits = find(str(place), Data())
    train = augment.train(
        BoxAugment(short=(160,), long=300, scale=(0.8, 1.2), crop=160), (0.5,) * 3, (0.2,) * 3
    )
    test = augment.test(BoxTest(short=160, long=300), (0.5,) * 3, (0.2,) * 3)
    for i in range(0, 120, 10):
        x, target = train(*splits.train.read(i))
        assert max(x.shape[-2:]) <= 160
        assert (target["boxes"] >= 0).all()
        assert (target["boxes"][:, 2:] > target["boxes"][:, :2]).all()
        picture, plain = splits.val.read(i)
        x, target = test(picture, plain)
        assert target["original"].tolist() == [picture.height, picture.width]
        assert torch.equal(target["boxes"], plain["boxes"])


def test_the_whole_name_counts_before_its_last_part(tmp_path):
    from saccade.data.boxes.coco import _existing_name

    for place in ("a/x", "b/x", "b"):
        (tmp_path / place).mkdir(parents=True, exist_ok=True)
    (tmp_path / "a" / "1.jpg").touch()
    (tmp_path / "b" / "x" / "1.jpg").touch()
    folders = [tmp_path / "a", tmp_path / "b"]
    assert _existing_name("x/1.jpg", folders) == str(tmp_path / "b" / "x" / "1.jpg")
    assert _existing_name("y/1.jpg", folders) == str(tmp_path / "a" / "1.jpg")
    assert _existing_name("2.jpg", folders) is None


def test_numbers_beyond_64_bits(coco):
    """Image ids are numbered anew, a category is left out, sizes and areas are taken otherwise."""

    def beyond(content):
        content["images"][0] |= {"id": 10**30, "width": 10**400, "height": 1e300}
        content["images"][1]["id"] = 2**63 - 1
        content["categories"][1]["id"] = 2**63
        for row in content["annotations"]:
            row["image_id"] = {10: 10**30, 11: 2**63 - 1}.get(row["image_id"], row["image_id"])
            row["area"] = 10**400
        content["annotations"].append(box(8, 12, 7, (10**400, 1, 2, 3)))
        content["annotations"].append(box(9, "9" * 5000, 7))

    changed(coco, "train", beyond)
    images = every(str(coco / "annotations/instances_train.json"), ["dog", "eel"])
    assert images.keys.tolist()[1] == 2**63 - 1
    assert len(set(images.keys.tolist())) == 6
    assert images.sizes[0].tolist() == [24, 20]
    assert images.area[0] == 100, "of the box: 10 x 10"
    kinds = " ".join(images.findings)
    assert "image ids that are no whole numbers (numbered anew)" in kinds
    assert "categories without a whole number as id (left out)" in kinds


def test_names_that_cannot_be_printed(coco):
    changed(coco, "train", lambda content: content["categories"][0].update(name="\ud800"))
    assert every(str(coco / "annotations/instances_train.json"), ["cat", "7", "eel"])

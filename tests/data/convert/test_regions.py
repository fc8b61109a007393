import json
import os

import numpy as np
import pytest
from PIL import Image

from saccade.data import masks
from saccade.data.convert.colours import voc_palette
from saccade.data.convert.run import convert
from saccade.recipes.recipe import Data
from tests.data.conftest import photo

H, W = 20, 24  # of `photo`
TABLE = {"sky": (128, 128, 128), "road": (128, 64, 128), "void": (0, 0, 0)}


def ids_of(seed, values):
    return np.random.default_rng(seed).choice(np.array(values, np.uint8), (H, W))


def png(path, array, palette=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(array)
    if palette:
        image.putpalette([n for colour in palette for n in colour])
    image.save(path)


def read(out, split="train"):
    splits = masks.find(str(out), Data())
    images = getattr(splits, split)
    return splits, [images.read(i)[1] for i in range(len(images))]


def voc(place, colourful=False):
    lists = place / "ImageSets/Segmentation"
    lists.mkdir(parents=True)
    for n in range(5):
        photo(place / f"JPEGImages/{n}.jpg", n)
        truth = ids_of(n, [0, 12, 20, 255])
        palette = voc_palette(21) + [(0, 0, 0)] * 234 + [(224, 224, 192)]
        if colourful:
            png(place / f"SegmentationClass/{n}.png", np.array(palette, np.uint8)[truth])
        elif n < 4:  # the last has no mask, as most of VOC's
            png(place / f"SegmentationClass/{n}.png", truth, palette)
    (lists / "train.txt").write_text("2\n0\n")
    (lists / "val.txt").write_text("3\n")
    (lists / "trainval.txt").write_text("2\n0\n3\n")
    return place


@pytest.mark.parametrize("colourful", [False, True])
def test_voc(tmp_path, colourful):
    result = convert(voc(tmp_path / "voc", colourful), tmp_path / "out")
    assert result.format == "VOC's masks"
    assert {name: split.images for name, split in result.splits.items()} == {"train": 2, "val": 1}
    splits, truths = read(tmp_path / "out")
    assert splits.warnings == []
    assert splits.classes[:2] == ["background", "aeroplane"]
    assert len(splits.classes) == 21
    # train is in the order of names: 0, 2
    np.testing.assert_array_equal(truths[0], ids_of(0, [0, 12, 20, 255]))
    np.testing.assert_array_equal(truths[1], ids_of(2, [0, 12, 20, 255]))
    linked = os.stat(tmp_path / "out/masks/train/0.png").st_nlink == 2
    assert linked is not colourful, "masks of ids take no further room"


def test_voc_with_boxes_too_is_boxes_unless_masks_are_asked_for(tmp_path):
    place = voc(tmp_path / "voc")
    (place / "Annotations").mkdir()
    (place / "Annotations/0.xml").write_text(
        "<annotation><object><name>dog</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>9</xmax>"
        "<ymax>9</ymax></bndbox></object></annotation>"
    )
    result = convert(place, tmp_path / "boxes")
    assert result.format == "VOC"
    assert result.notes[-1] == "it is also VOC's masks: --format voc-masks"
    assert convert(place, tmp_path / "masks", format="voc-masks").format == "VOC's masks"


def test_cityscapes(tmp_path):
    place = tmp_path / "streets"
    for split in ("train", "val", "test"):
        for n, city in enumerate(("ulm", "bonn")):
            stem = f"{city}/{city}_00000{n}"
            photo(place / f"leftImg8bit/{split}/{stem}_leftImg8bit.png", n)
            truth = ids_of(n, [0, 7, 11, 33, 34])
            png(place / f"gtFine/{split}/{stem}_gtFine_labelIds.png", truth)
            png(place / f"gtFine/{split}/{stem}_gtFine_color.png", np.zeros((H, W, 3), np.uint8))
    result = convert(place, tmp_path / "out")
    assert {name: split.images for name, split in result.splits.items()} == {"train": 2, "val": 2}
    splits, truths = read(tmp_path / "out", "val")
    assert len(splits.classes) == 19
    ids = {7: 0, 11: 2, 33: 18, 0: 255, 34: 255}  # id to train id
    for truth, n in zip(truths, (1, 0), strict=True):  # bonn, ulm
        expected = np.vectorize(ids.get)(ids_of(n, [0, 7, 11, 33, 34]))
        np.testing.assert_array_equal(truth, expected)
    assert "ids that no class has (34)" in splits.warnings[0], "0 is meant to be none, 34 is not"


@pytest.mark.parametrize("kind", ["csv", "cvat", "camvid", "json", "palette"])
def test_colours(tmp_path, kind):
    place, rows = tmp_path / "camvid", list(TABLE.items())
    tables = {
        "csv": ("class_dict.csv", "name,r,g,b\n", "{0},{1},{2},{3}\n"),
        "cvat": ("labelmap.txt", "# label:color_rgb:parts:actions\n", "{0}:{1},{2},{3}::\n"),
        "camvid": ("label_colors.txt", "", "{1} {2} {3}\t{0}\n"),
        "palette": ("colours.txt", "", "{0} {1} {2} {3}\n"),
    }
    if kind == "json":
        name, content = "colours.json", json.dumps({key: list(rgb) for key, rgb in rows})
    else:
        name, head, row = tables[kind]
        content = head + "".join(row.format(key, *rgb) for key, rgb in rows)
    place.mkdir()
    (place / name).write_text(content)
    palette = [rgb for _, rgb in rows] + [(9, 9, 9)]
    for n in range(3):
        photo(place / f"train/{n}.png", n)
        truth = ids_of(n, [0, 1, 2, 3])
        array = truth if kind == "palette" else np.array(palette, np.uint8)[truth]
        png(place / f"train_labels/{n}_L.png", array, palette if kind == "palette" else None)
    result = convert(place, tmp_path / "out")
    assert result.classes == ["sky", "road"]
    assert "colours that are in no row of the table" in result.notes[0], "9 9 9 is in no row"
    _, truths = read(tmp_path / "out", "train")
    expected = [np.array([0, 1, 255, 255])[ids_of(n, [0, 1, 2, 3])] for n in range(3)]
    for truth in truths:  # one is held out to validate
        assert any((truth == other).all() for other in expected)


def test_roboflow_and_plain_ids(tmp_path):
    for n in range(2):
        photo(tmp_path / f"robo/train/{n}.jpg", n)
        png(tmp_path / f"robo/train/{n}_mask.png", ids_of(n, [0, 1]))
        photo(tmp_path / f"plain/images/{n}.jpg", n)
        png(tmp_path / f"plain/masks/{n}.png", ids_of(n, [0, 1]))
    (tmp_path / "robo/train/_classes.csv").write_text("Pixel Value, Class\n0, ground\n1, leaf\n")
    result = convert(tmp_path / "robo", tmp_path / "a")
    assert (result.classes, result.splits["train"].images) == (["ground", "leaf"], 2)
    with pytest.raises(ValueError, match=r"hold ids \(0, 1\), and nothing says what"):
        convert(tmp_path / "plain", tmp_path / "b")
    (tmp_path / "names.txt").write_text("rock\nsand\n")
    result = convert(tmp_path / "plain", tmp_path / "b", tmp_path / "names.txt")
    assert result.classes == ["rock", "sand"]
    np.testing.assert_array_equal(
        np.asarray(Image.open(tmp_path / "b/masks/train/1.png")), ids_of(1, [0, 1])
    )


def coco(place, kind, content):
    for n in range(2):
        photo(place / f"train2017/{n}.jpg", n)
    path = place / f"annotations/{kind}_train2017.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def test_panoptic(tmp_path):
    place = tmp_path / "coco"
    parts = [{"id": 7, "category_id": 1}, {"id": 70000, "category_id": 200}]
    content = {
        "images": [],
        "categories": [{"id": 1, "name": "person"}, {"id": 200, "name": "rug"}],
        "annotations": [{"file_name": f"{n}.png", "segments_info": parts} for n in range(2)],
    }
    coco(place, "panoptic", content)
    for n in range(2):
        number = np.array([0, 7, 70000])[ids_of(n, [0, 1, 2])]
        rgb = np.stack([number % 256, number // 256 % 256, number // 65536], -1).astype(np.uint8)
        png(place / f"annotations/panoptic_train2017/{n}.png", rgb)
    result = convert(place, tmp_path / "out")
    assert (result.format, result.classes) == ("COCO panoptic", ["person", "rug"])
    mask = np.asarray(Image.open(tmp_path / "out/masks/train/1.png"))
    np.testing.assert_array_equal(mask, np.array([255, 0, 1])[ids_of(1, [0, 1, 2])])


def test_stuff(tmp_path):
    place = tmp_path / "coco"
    coco(place, "stuff", {"categories": [{"id": 92, "name": "banner"}]})
    coco(place, "instances", {"categories": [{"id": 1, "name": "person"}]})
    for n in range(2):
        png(place / f"stuffthingmaps/train2017/{n}.png", ids_of(n, [0, 91, 255]))
    result = convert(place, tmp_path / "out", format="stuff")
    assert result.classes == ["person", "banner"]
    _, truths = read(tmp_path / "out")
    assert set(np.unique(truths[0])) == {0, 1, 255}


def test_outlines_put_the_smaller_object_above(tmp_path):
    place = tmp_path / "coco"

    def square(key, category, x, y, side, crowd=0):
        return {
            "id": key, "image_id": 1, "category_id": category, "iscrowd": crowd, "area": side**2,
            "bbox": [x, y, side, side],
            "segmentation": [[x, y, x + side, y, x + side, y + side, x, y + side]],
        }  # fmt: skip

    content = {
        "images": [{"id": 1 + n, "file_name": f"{n}.jpg", "width": W, "height": H} for n in (0, 1)],
        "categories": [{"id": 3, "name": "car"}, {"id": 9, "name": "boat"}],
        "annotations": [square(1, 9, 4, 4, 4), square(2, 3, 2, 2, 12), square(3, 3, 16, 0, 4, 1)],
    }
    coco(place, "instances", content)
    result = convert(place, tmp_path / "out")
    assert result.classes == ["background", "car", "boat"]
    mask = np.asarray(Image.open(tmp_path / "out/masks/train/0.png"))
    expected = np.zeros((H, W), int)
    expected[2:14, 2:14], expected[4:8, 4:8], expected[:4, 16:20] = 1, 2, 255
    np.testing.assert_array_equal(mask, expected)
    assert not np.asarray(Image.open(tmp_path / "out/masks/train/1.png")).any()


# -- what people and strangers get wrong ----------------------------------------------------


def colourful(place):
    for n in range(2):
        photo(place / f"images/{n}.png", n)
        png(place / f"masks/{n}.png", np.array([(1, 2, 3), (4, 5, 6)], np.uint8)[ids_of(n, [0, 1])])
    return place


def test_colours_without_a_table(tmp_path):
    place = colourful(tmp_path / "x")
    with pytest.raises(ValueError, match=r"are colours \(1 2 3, 4 5 6\), and no table") as error:
        convert(place, tmp_path / "out")
    assert "--colours FILE" in str(error.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("sky 1 2 3\nroad 4 5\n", "line 2: wanted name,r,g,b"),
        ("sky 1 2 3\nroad 4 5 600\n", "line 2: wanted"),
        ("sky 1 2 3\nroad 1 2 3\n", r"\(1, 2, 3\) is the colour of two classes"),
        ("sky 1 2 3\n", "from 2 to 255 classes, got 1"),
    ],
)
def test_tables_that_are_none(tmp_path, content, words):
    (tmp_path / "table.txt").write_text(content)
    with pytest.raises(ValueError, match=words):
        convert(colourful(tmp_path / "x"), tmp_path / "out", colours=tmp_path / "table.txt")


def test_what_cannot_be_used_is_left_out_and_named(tmp_path):
    place = tmp_path / "x"
    for n in range(4):
        photo(place / f"images/{n}.png", n)
        png(place / f"masks/{n}.png", ids_of(n, [0, 1]))
    png(place / "masks/1.png", ids_of(1, [0, 1])[:7])
    (place / "masks/2.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 24 20\n")
    (place / "images/3.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    (tmp_path / "names.txt").write_text("a\nb\n")
    result = convert(place, tmp_path / "out", tmp_path / "names.txt")
    assert result.splits["train"].images == 1
    lines = "\n".join(result.findings["pairs that cannot be used (left out)"])
    assert "1: its mask has 24 x 7 pixels and the picture 24 x 20" in lines
    assert "2: its mask cannot be read" in lines
    assert "3: its picture cannot be read" in lines


@pytest.mark.parametrize("part", ["images", "masks"])
def test_nothing_outside_of_the_folder_is_read(tmp_path, part):
    place = colourful(tmp_path / "x")
    png(tmp_path / "secret.png", ids_of(0, [0, 1]))
    (place / part / "1.png").unlink()
    (place / part / "1.png").symlink_to(tmp_path / "secret.png")
    (tmp_path / "table.txt").write_text("a 1 2 3\nb 4 5 6\n")
    with pytest.raises(ValueError, match=r"1\.png' lies outside of the data folder"):
        convert(place, tmp_path / "out", colours=tmp_path / "table.txt")
    assert not (tmp_path / "out").exists()


def test_training_says_what_to_type(tmp_path):
    voc(tmp_path / "VOC2012")
    with pytest.raises(ValueError, match=r"saccade convert .*VOC2012 OUT --format voc-masks"):
        masks.find(str(tmp_path / "VOC2012"), Data())
    (tmp_path / "ade/images/training").mkdir(parents=True)
    (tmp_path / "ade/annotations/training").mkdir(parents=True)
    with pytest.raises(ValueError, match="needs no conversion"):
        convert(tmp_path / "ade", tmp_path / "out")


def test_what_is_ready_is_not_converted(tmp_path):
    place = colourful(tmp_path / "x")
    (place / "classes.json").write_text('{"classes": ["a", "b"]}')
    with pytest.raises(ValueError, match=r"needs no conversion: saccade train segment --data"):
        convert(place, tmp_path / "out")

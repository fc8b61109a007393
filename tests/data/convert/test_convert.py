import json
import os
from pathlib import Path

import pytest
from PIL import Image

from saccade.data import boxes, datasets
from saccade.data.convert.run import convert
from saccade.recipes.recipe import Data
from tests.data.conftest import photo


def xml(path, objects, size=(24, 20), filename=""):
    """A VOC xml; an object is its name, its corners and what else is said of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"<annotation><filename>{filename or path.stem + '.png'}</filename>"]
    if size:
        lines.append(f"<size><width>{size[0]}</width><height>{size[1]}</height></size>")
    for name, corners, more in objects:
        ends = ("xmin", "ymin", "xmax", "ymax")
        inner = "".join(f"<{e}>{v}</{e}>" for e, v in zip(ends, corners, strict=False))
        lines.append(f"<object><name>{name}</name>{more}<bndbox>{inner}</bndbox></object>")
    path.write_text("\n".join([*lines, "</annotation>"]))


@pytest.fixture
def voc(tmp_path):
    place = tmp_path / "voc"
    for n in range(6):
        photo(place / f"JPEGImages/{n}.png", n)
        objects = [("dog", (1, 1, 24, 20), ""), ("cat", (3, 4, 3, 8.5), "<difficult>1</difficult>")]
        xml(place / f"Annotations/{n}.xml", objects[: n % 3])
    lists = place / "ImageSets/Main"
    lists.mkdir(parents=True)
    (lists / "train.txt").write_text("4\n2\n1\n")
    (lists / "val.txt").write_text("5\n\n0\n")
    (lists / "trainval.txt").write_text("4\n2\n1\n5\n0\n")
    (lists / "dog_train.txt").write_text("4 -1\n")
    return place


@pytest.fixture
def yolo(tmp_path):
    place = tmp_path / "yolo"
    for split, at in (("train", 0), ("val", 10)):
        (place / "labels" / split).mkdir(parents=True)
        for n in range(at, at + 3):
            photo(place / f"images/{split}/{n}.png", n)
        (place / f"labels/{split}/{at}.txt").write_text("0 0.5 0.5 1 1\n1 0.25 0.5 0.125 0.1\n")
        (place / f"labels/{split}/{at + 1}.txt").write_text("1 0.5 0.25 0.5 0.5\n")
    (place / "data.yaml").write_text("path: .\nnames: [dog, cat]\n")
    return place


# -- VOC ------------------------------------------------------------------------------------


def test_voc(voc, tmp_path):
    result = convert(voc, tmp_path / "out")
    assert result.format == "VOC"
    assert result.splits == {"train": (3, 4, 0), "val": (2, 2, 1)}
    assert result.classes == ["cat", "dog"]
    assert result.notes == [
        "VOC: 2 objects marked difficult (kept as any other), such as 2.xml, object 2",
        "VOC: 1 xml files in no list of ImageSets/Main (left out), such as 3.xml",
    ]
    splits = boxes.find(str(tmp_path / "out"), Data())
    assert splits.about == (
        "out: 3 images with 4 boxes to train on, "
        "2 images with 2 boxes (images without: 1) to validate, 2 classes"
    )
    assert splits.warnings == []
    assert [splits.train.name(i).rpartition("/")[2] for i in range(3)] == [
        "4.png", "2.png", "1.png",
    ]  # fmt: skip
    target = splits.train.read(1)[1]
    assert target["labels"].tolist() == [1, 0]
    assert target["boxes"].tolist() == [[0, 0, 24, 20], [2, 3, 3, 8.5]], "corners count from 1"
    assert not target["crowd"].any()
    plain = json.loads((tmp_path / "out/annotations/instances_train.json").read_text())
    assert [row.get("difficult", 0) for row in plain["annotations"]] == [0, 0, 1, 0]
    assert plain["annotations"][2]["area"] == 5.5


def test_voc_round_trip_of_pixels(tmp_path):
    """A rectangle drawn at VOC's pixels (from 1, both ends in) is the box, no more and no less."""
    picture = Image.new("RGB", (24, 20))
    picture.paste((255, 255, 255), (4, 2, 9, 7))  # pixels 5..9 and 3..7 as VOC counts
    (tmp_path / "voc/JPEGImages").mkdir(parents=True)
    picture.save(tmp_path / "voc/JPEGImages/a.png")
    xml(tmp_path / "voc/Annotations/a.xml", [("dog", (5, 3, 9, 7), "")])
    convert(tmp_path / "voc", tmp_path / "out")
    image, target = boxes.every(str(tmp_path / "out"), ["dog"]).read(0)
    assert target["boxes"].tolist() == [[4, 2, 9, 7]]
    assert image.crop((4, 2, 9, 7)).getextrema() == ((255, 255),) * 3


def test_pictures_are_linked_not_copied(voc, tmp_path):
    convert(voc, tmp_path / "out")
    here, there = tmp_path / "out/images/train/4.png", voc / "JPEGImages/4.png"
    assert os.path.samefile(here, there)


def test_pictures_are_copied_where_links_are_not_possible(voc, tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError("other disk")

    monkeypatch.setattr(os, "link", refuse)
    convert(voc, tmp_path / "out")
    here, there = tmp_path / "out/images/train/4.png", voc / "JPEGImages/4.png"
    assert not os.path.samefile(here, there)
    assert here.read_bytes() == there.read_bytes()


def test_voc_without_lists_and_with_trainval(voc, tmp_path):
    for name in ("train", "val"):
        (voc / f"ImageSets/Main/{name}.txt").unlink()
    (voc / "ImageSets/Main/test.txt").write_text("3\n")
    result = convert(voc, tmp_path / "a")
    assert {k: v.images for k, v in result.splits.items()} == {"train": 5, "test": 1}
    for path in (voc / "ImageSets/Main").iterdir():
        path.unlink()
    result = convert(voc, tmp_path / "b")
    assert {k: v.images for k, v in result.splits.items()} == {"train": 6}
    held = boxes.find(str(tmp_path / "b"), Data(holdout=0.2))
    assert (len(held.train), len(held.val)) == (5, 1)


def test_xml_beside_pictures_by_split(tmp_path):
    for split in ("train", "valid"):
        for n in range(2):
            photo(tmp_path / f"set/{split}/{n}.png", n)
            xml(tmp_path / f"set/{split}/{n}.xml", [("dog", (1, 1, 9, 9), "")])
    result = convert(tmp_path / "set", tmp_path / "out")
    assert result.splits == {"train": (2, 2, 0), "val": (2, 2, 0)}
    assert boxes.find(str(tmp_path / "out"), Data()).warnings == []


def test_what_is_odd_about_xml(voc, tmp_path):
    for path in (voc / "ImageSets/Main").iterdir():
        path.unlink()
    (voc / "Annotations/0.xml").write_text("<annotation><object>")
    (voc / "JPEGImages/1.png").unlink()
    part = "<part><name>head</name><bndbox><xmin>1</xmin></bndbox></part>"
    xml(
        voc / "Annotations/2.xml",
        [
            ("", (1, 1, 2, 2), ""), ("cat", (1, 1, 2), ""), ("cat", (1, 1, "x", 2), ""),
            ("cat", (9, 1, 2, 2), ""), ("cat", (0, 0, 5, 5), part), ("cat", (1, "nan", 2, 2), ""),
        ],
        size=None,
        filename="other.png",
    )  # fmt: skip
    (voc / "JPEGImages/5.png").rename(voc / "JPEGImages/five.png")
    xml(voc / "Annotations/5.xml", [("dog", (1, 1, 4, 4), "")], filename="C:\\x\\five.png")
    result = convert(voc, tmp_path / "out")
    assert result.splits == {"train": (4, 3, 1)}
    assert {kind: len(lines) for kind, lines in result.findings.items()} == {
        "xml files that cannot be read (left out)": 1,
        "xml files without their picture (left out)": 1,
        "xml files without a size (taken from the picture)": 1,
        "objects without a name (left out)": 1,
        "objects without four corners (left out)": 3,
        "objects whose corners are the wrong way round (left out)": 1,
        "boxes that begin before pixel 1 (the set may count from 0: off by one if so)": 1,
    }
    assert (
        "VOC: 3 objects without four corners (left out), such as 2.xml, object 2 (ymax)"
        in result.notes
    )
    images = boxes.every(str(tmp_path / "out"), ["cat", "dog"])
    assert images.read(0)[1]["boxes"].tolist() == [[0, 0, 5, 5]]


# -- YOLO -----------------------------------------------------------------------------------


def check(tmp_path, result):
    assert result.format == "YOLO"
    assert result.splits == {"train": (3, 3, 1), "val": (3, 3, 1)}
    assert result.classes == ["dog", "cat"]
    splits = boxes.find(str(tmp_path / "out"), Data())
    assert splits.warnings == []
    assert splits.classes == ["dog", "cat"]
    target = splits.train.read(0)[1]
    assert target["labels"].tolist() == [0, 1]
    assert target["boxes"].tolist() == [[0, 0, 24, 20], [4.5, 9, 7.5, 11]]
    assert splits.val.read(1)[1]["boxes"].tolist() == [[6, 0, 18, 10]]
    assert splits.val.read(2)[1]["boxes"].shape == (0, 4)


def test_yolo(yolo, tmp_path):
    result = convert(yolo, tmp_path / "out")
    check(tmp_path, result)
    assert result.notes == [
        "YOLO: 2 pictures without a label file (kept, without boxes), such as 2.png"
    ]


def test_yolo_by_split_and_names_by_number(yolo, tmp_path):
    for split, name in (("train", "train"), ("val", "valid")):
        (yolo / name).mkdir()
        for part in ("images", "labels"):
            (yolo / part / split).rename(yolo / name / part)
    (yolo / "data.yaml").write_text("names:\n  0: dog\n  1: cat\n")
    check(tmp_path, convert(yolo, tmp_path / "out"))


@pytest.mark.parametrize("where", ["classes.txt", "labels/classes.txt", "labels/train/classes.txt"])
def test_names_in_a_text_file(yolo, tmp_path, where):
    (yolo / "data.yaml").unlink()
    (yolo / where).write_text("dog\ncat\n\n")
    check(tmp_path, convert(yolo, tmp_path / "out"))


def test_names_that_are_given(yolo, tmp_path):
    (yolo / "data.yaml").unlink()
    (tmp_path / "names.txt").write_text("dog\ncat\n")
    check(tmp_path, convert(yolo, tmp_path / "out", tmp_path / "names.txt"))


def test_yolo_flat_and_with_years(yolo, tmp_path):
    for split in ("train", "val"):
        for part in ("images", "labels"):
            (yolo / part / split).rename(yolo / part / f"{split}2017")
    result = convert(yolo, tmp_path / "a")
    assert list(result.splits) == ["train2017", "val2017"]
    assert len(boxes.find(str(tmp_path / "a"), Data()).val) == 3
    flat = tmp_path / "flat"
    flat.mkdir()
    (flat / "classes.txt").write_text("dog\ncat\n")
    for part in ("images", "labels"):
        (yolo / part / "train2017").rename(flat / part)
    assert convert(flat, tmp_path / "b").splits == {"train": (3, 3, 1)}


def test_the_upright_picture_counts(yolo, tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (40, 10)).save(yolo / "images/train/0.png", exif=exif)
    convert(yolo, tmp_path / "out")
    image, target = boxes.find(str(tmp_path / "out"), Data()).train.read(0)
    assert image.size == (10, 40)
    assert target["boxes"][0].tolist() == [0, 0, 10, 40]


def test_what_is_odd_about_text(yolo, tmp_path):
    (yolo / "labels/train/0.txt").write_text(
        "0 0.5 0.5 1\n0 0.5 0.5 1 1\n1 a b c d\n0 12 13 40 50\n1 0.1 0.1 0.2 0.1 0.2 0.2\n"
        "0.5 0.5 0.5 1 1\n-1 0.5 0.5 1 1\n0 0.5 0.5 1 1 0.9\n0 nan 0.5 1 1\n1 0.5 0.5 1.0004 1\n"
    )
    (yolo / "labels/train/99.txt").write_text("0 0.5 0.5 1 1\n")
    (yolo / "images/train/2.png").write_bytes(b"no picture")
    (yolo / "labels/val/12.txt").write_text("")
    result = convert(yolo, tmp_path / "out")
    assert result.splits == {"train": (2, 4, 0), "val": (3, 3, 1)}
    assert {kind: len(lines) for kind, lines in result.findings.items()} == {
        "lines that are not five numbers, class cx cy w h (left out)": 2,
        "lines that are no numbers (left out)": 1,
        "boxes that are no shares of the picture, 0 to 1 (left out)": 2,
        "outlines of shapes (made into boxes)": 1,
        "lines whose class is no number from 0 on (left out)": 2,
        "pictures that cannot be read (left out)": 1,
        "label files without their picture (left out)": 1,
    }
    assert (
        "YOLO: 2 lines that are not five numbers, class cx cy w h (left out), such as 0.txt, "
        "line 1 (4 numbers)"
    ) in result.notes


def test_two_pictures_of_one_name(yolo, tmp_path):
    """Both stay, and a link is never written through."""
    (yolo / "labels/valid").mkdir()
    before = photo(yolo / "images/valid/10.png", 77).read_bytes()
    content = (yolo / "images/val/10.png").read_bytes()
    result = convert(yolo, tmp_path / "out")
    assert result.splits["val"].images == 4
    assert (yolo / "images/valid/10.png").read_bytes() == before
    assert (yolo / "images/val/10.png").read_bytes() == content
    val = boxes.find(str(tmp_path / "out"), Data()).val
    assert len({Path(val.name(i)).read_bytes() for i in range(4)}) == 4


# -- what cannot be converted ---------------------------------------------------------------


def unnamed(place):
    (place / "data.yaml").unlink()


def both(place):
    xml(place / "Annotations/0.xml", [])


def few_names(place):
    (place / "data.yaml").write_text("names: [dog]")


def holes(place):
    (place / "data.yaml").write_text("names: {0: dog, 2: cat}")


def no_yaml(place):
    (place / "data.yaml").write_text("names: [dog")


def nothing(place):
    for path in (place / "labels").rglob("*.txt"):
        path.write_text("0 0.5 0.5 1")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (unnamed, r"no names of the classes in .*; add data.yaml with names or classes.txt, or"),
        (both, r"can be read as VOC and as YOLO; say which: --format voc"),
        (few_names, r"0.txt, line 2: class 1, but there are 1 names, for 0 to 0; give all"),
        (holes, r"names must be numbered 0, 1, 2"),
        (no_yaml, r"data.yaml' is no yaml: while parsing"),
        (nothing, r"no boxes could be read in .*: YOLO: 4 lines that are not five numbers"),
    ],
)
def test_yolo_that_cannot_be_used(yolo, tmp_path, change, words):
    change(yolo)
    with pytest.raises(ValueError, match=words) as error:
        convert(yolo, tmp_path / "out")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists(), "nothing is written before all has been read"


def test_what_else_is_refused(voc, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"convert: no folder 'nowhere'; check the path"):
        convert("nowhere", tmp_path / "out")
    with pytest.raises(FileExistsError, match=r"is there and not empty; give another folder"):
        convert(voc, voc)
    (tmp_path / "other").mkdir()
    with pytest.raises(ValueError, match=r"has no layout that is known; wanted: Annotations"):
        convert(tmp_path / "other", tmp_path / "out")
    names = tmp_path / "names.txt"
    with pytest.raises(FileNotFoundError, match=r"names.txt'; --classes takes a name a line"):
        convert(voc, tmp_path / "out", names)
    for text, words in (("", "it is empty"), ("cat\ncat", "'cat' is there twice")):
        names.write_text(text)
        with pytest.raises(ValueError, match=words):
            convert(voc, tmp_path / "out", names)
    names.write_text("cat\ndogs\n")
    with pytest.raises(ValueError, match=r"class 'dog' is not among the 2 given; .*'dogs'\?"):
        convert(voc, tmp_path / "out", names)
    for path in (voc / "Annotations").iterdir():
        path.write_text("<annotation></annotation>")
    with pytest.raises(ValueError, match=r"no boxes could be read in"):
        convert(voc, tmp_path / "out")


def test_the_given_order_of_classes(voc, tmp_path):
    (tmp_path / "names.txt").write_text("owl\ndog\ncat\n")
    result = convert(voc, tmp_path / "out", tmp_path / "names.txt")
    assert result.classes == ["owl", "dog", "cat"]
    splits = boxes.find(str(tmp_path / "out"), Data())
    assert splits.train.read(1)[1]["labels"].tolist() == [1, 2]
    assert splits.warnings == [
        "train: 1 of 3 categories have no boxes to learn from, such as 'owl'"
    ]


# -- what is wrong, in a sentence ---------------------------------------------------------------


def test_outlines_become_boxes(yolo, tmp_path):
    (yolo / "labels/train/0.txt").write_text(
        "0 0.25 0.5 0.75 0.25 0.5 0.75\n1 0.5 0.5 0.5 0.5 0.5 0.5\n1 0.5 0.5 0 0.5\n"
    )
    result = convert(yolo, tmp_path / "out")
    assert result.splits["train"] == (3, 2, 1)
    assert len(result.findings["outlines of shapes (made into boxes)"]) == 1
    assert len(result.findings["boxes without width or height (left out)"]) == 2
    _, target = boxes.find(str(tmp_path / "out"), Data()).train.read(0)
    assert target["boxes"].tolist() == [[6, 5, 18, 15]]


def test_points_of_a_skeleton_are_no_outline(yolo, tmp_path):
    (yolo / "data.yaml").write_text("names: [dog, cat]\nkpt_shape: [2, 3]\n")
    (yolo / "labels/train/0.txt").write_text("0 0.5 0.5 0.5 0.5 .1 .1 1 .2 .2 1\n")
    (yolo / "labels/train/1.txt").write_text("0 0.5 0.5 0.25 0.5\n")
    convert(yolo, tmp_path / "out")
    _, target = boxes.find(str(tmp_path / "out"), Data()).train.read(0)
    assert target["boxes"].tolist() == [[6, 5, 18, 15]]


def test_names_by_number_or_word(yolo, tmp_path):
    (yolo / "data.yaml").write_text("names:\n  '1': cat\n  0: dog\n")
    assert convert(yolo, tmp_path / "out").classes == ["dog", "cat"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"names: {0: dog, one: cat}", r"names must be numbered 0, 1, 2, .*got 0, 'one'"),
        (b"names: {0: dog, '0': cat}", r"names must be numbered .*each once"),
        (b"names: {0: dog, null: cat}", r"names must be numbered"),
        (b"names: [[dog], cat]", r"names must be words"),
        (b"names: &a [*a]", r"names must be words"),
        (b"names: [dog, 2020-13-45]", r"data.yaml' is no yaml: month must be"),
        (b"names: [" + b"9" * 5000 + b"]", r"data.yaml' is no yaml: Exceeds the limit"),
        (b"names: " + b"[" * 5000, r"data.yaml' is no yaml: its lists lie too deep"),
        (b"names: [h\xfcnd]", r"data.yaml' is no UTF-8 text"),
    ],
)
def test_names_that_cannot_be_read(yolo, tmp_path, content, words):
    (yolo / "data.yaml").write_bytes(content)
    with pytest.raises(ValueError, match=words) as error:
        convert(yolo, tmp_path / "out")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "content",
    [
        b'<?xml version="1.0" encoding="none"?><annotation/>',
        b'<?xml version="1.0" encoding="utf-7"?><annotation/>',
        b"<annotation>",
        b'<!DOCTYPE a [<!ENTITY b SYSTEM "/etc/hostname">]><annotation>&b;</annotation>',
    ],
)
def test_xml_that_cannot_be_read(voc, tmp_path, content):
    (voc / "Annotations/4.xml").write_bytes(content)
    result = convert(voc, tmp_path / "out")
    assert len(result.findings["xml files that cannot be read (left out)"]) == 1


def test_sizes_without_bounds(voc, tmp_path):
    xml(voc / "Annotations/4.xml", [("dog", (1, 1, "1e300", 20), "")], size=("1e400", "1e300"))
    result = convert(voc, tmp_path / "out")
    assert "objects without four corners (left out)" in result.findings
    assert boxes.find(str(tmp_path / "out"), Data()).train.sizes[0].tolist() == [24, 20]


def test_lists_in_another_encoding(voc, tmp_path):
    (voc / "ImageSets/Main/train.txt").write_bytes(b"h\xfcnd\n")
    with pytest.raises(ValueError, match=r"train.txt' is no UTF-8 text"):
        convert(voc, tmp_path / "out")


def test_classes_are_not_guessed_from_boxes(voc, yolo):
    """Trained as folders of classes, the parts of such a set would be its classes."""
    (voc / "SegmentationClass").mkdir()
    photo(voc / "SegmentationClass/1.png", 3)
    for place in (voc, yolo):
        with pytest.raises(
            ValueError, match=rf"saccade convert {place} OUT .*saccade train detect"
        ):
            datasets.find(str(place), Data())

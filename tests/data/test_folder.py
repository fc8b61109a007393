"""Folders of strangers: what is no file is left out and reported, and nothing leads out of them."""

import json
import os
import socket
import subprocess
import sys

import pytest

from saccade.data import boxes, datasets, masks, unlabelled
from saccade.data.convert.run import convert
from saccade.data.folder import Inside, contents, text
from saccade.data.images import Unreadable
from saccade.infer.files import paths_of
from saccade.recipes.recipe import Data
from tests.data import scenes
from tests.data.conftest import photo


def trap(place):
    """What would be waited for without end, or is no file at all, under pictures' names."""
    os.mkfifo(place / "trap.png")
    (place / "null.jpg").symlink_to("/dev/null")
    with socket.socket(socket.AF_UNIX) as end:
        here = os.getcwd()
        os.chdir(place)  # the path of a socket must be short
        end.bind("end.png")
        os.chdir(here)


def test_what_is_no_file_is_apart(tmp_path):
    photo(tmp_path / "b.png", 0)
    photo(tmp_path / "a/c.jpg", 1)
    photo(tmp_path / ".hidden.png", 1)
    (tmp_path / "gone.png").symlink_to("nowhere")
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "notes.txt").touch()
    trap(tmp_path)
    inside = contents(tmp_path)
    assert inside.names == ["a/c.jpg", "b.png", "gone.png"], "a broken link is read, and reported"
    assert inside.others == ["end.png", "null.jpg", "trap.png"]
    assert contents(tmp_path, deep=False).names == ["b.png", "gone.png"]
    assert contents(tmp_path / "not there") == ([], [])


def is_reported(warnings):
    return any("3 entries that are no files" in sentence for sentence in warnings)


def test_class_folders(folder):
    trap(folder / "train/cat")
    splits = datasets.find(str(folder), Data())
    assert len(splits.train) == 24
    assert is_reported(splits.warnings)


def test_pictures_without_labels(tmp_path):
    for name in "abc":
        photo(tmp_path / f"{name}.png", 0)
    trap(tmp_path)
    splits = unlabelled.find(str(tmp_path), Data())
    assert len(splits.train) + len(splits.val) == 3
    assert is_reported(splits.warnings)
    assert is_reported(unlabelled.every(str(tmp_path)).warnings)


def test_masks(tmp_path):
    place = scenes.folder(tmp_path / "set")
    trap(place / "images/train")
    splits = masks.find(str(place), Data())
    assert len(splits.train) == 8
    assert is_reported(splits.warnings)


def test_shards(tmp_path):
    os.mkfifo(tmp_path / "train-0.tar")
    with pytest.raises(ValueError, match="no images in folders of classes"):
        datasets.find(str(tmp_path), Data())


def test_words_on_a_command_line(tmp_path, caplog):
    photo(tmp_path / "a.png", 0)
    trap(tmp_path)
    assert paths_of([str(tmp_path)], "predict") == [tmp_path / "a.png"]
    assert "3 entries that are no files" in caplog.text


def test_annotations_that_are_no_files(tmp_path):
    (tmp_path / "annotations").mkdir()
    os.mkfifo(tmp_path / "annotations/instances_train.json")
    with pytest.raises(ValueError, match="no COCO json"):
        boxes.find(str(tmp_path), Data())


# -- names that lead out ----------------------------------------------------------------------


@pytest.fixture
def outside(tmp_path):
    """A COCO set of two pictures; `named` gives the first a name that leads out of it."""
    photo(tmp_path / "secret.png", 5)
    photo(tmp_path / "set/images/b.png", 6)
    annotations = [{"id": i, "image_id": i, "category_id": 1, "bbox": [1, 1, 5, 6]} for i in (1, 2)]
    size = {"width": 24, "height": 20}

    def named(name):
        images = [{"id": 1, "file_name": name, **size}, {"id": 2, "file_name": "b.png", **size}]
        lists = {"images": images, "annotations": annotations}
        lists["categories"] = [{"id": 1, "name": "cat"}]
        (tmp_path / "set/a.json").write_text(json.dumps(lists))
        return str(tmp_path / "set")

    return named


def test_names_stay_in_the_data_folder(outside, tmp_path):
    place = tmp_path / "set"
    (place / "images/link.png").symlink_to(tmp_path / "secret.png")
    (place / "linked").symlink_to(tmp_path)
    for name in (
        "../secret.png", "images/../../secret.png", "..\\secret.png", str(tmp_path / "secret.png"),
        "link.png", "linked/secret.png", f"../{tmp_path.name}/secret.png",
    ):  # fmt: skip
        if name.startswith("../test"):
            continue  # no such file
        with pytest.raises(ValueError, match="lies outside of the data folder") as error:
            boxes.find(outside(name), Data())
        assert "a.json'" in str(error.value)


def test_names_that_stay_inside_are_read(outside, tmp_path):
    place = tmp_path / "set"
    photo(place / "images/a.png", 7)
    (place / "images/link.png").symlink_to("a.png")
    (tmp_path / "other").symlink_to(place)
    for name in ("a.png", "images/../images/a.png", str(place / "images/a.png"), "link.png"):
        path = outside(name)
        assert len(boxes.every(path, ["cat"])) == 2
        assert len(boxes.every(str(tmp_path / "other"), ["cat"])) == 2, "the folder may be a link"


def test_conversion_stays_in_the_data_folder(tmp_path):
    place = tmp_path / "yolo"
    (place / "labels").mkdir(parents=True)
    (place / "images").mkdir()
    (place / "classes.txt").write_text("cat\n")
    (place / "labels/a.txt").write_text("0 .5 .5 .2 .2\n")
    (place / "images/a.png").symlink_to(photo(tmp_path / "secret.png", 5))
    with pytest.raises(ValueError, match=r"convert: .*lies outside of the data folder"):
        convert(place, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_conversion_reads_no_labels_elsewhere(tmp_path):
    place = tmp_path / "yolo"
    (place / "labels").mkdir(parents=True)
    (place / "classes.txt").write_text("cat\n")
    photo(place / "images/a.png", 5)
    (tmp_path / "secret.txt").write_text("a secret\n")
    (place / "labels/a.txt").symlink_to(tmp_path / "secret.txt")
    with pytest.raises(ValueError, match="lies outside of the data folder"):
        convert(place, tmp_path / "out")


@pytest.mark.parametrize("name", ["train/a/link.png", "train/a/linked", "val/c"])
def test_class_folders_lead_nowhere_else(tmp_path, name):
    place = tmp_path / "set"
    for file in ("train/a/0.png", "train/a/1.png", "train/b/0.png", "train/c/0.png", "val/a/0.png"):
        photo(place / file, 7)
    secret = photo(tmp_path / "secret/secret.png", 5)
    (place / name).symlink_to(secret if name.endswith("png") else secret.parent)
    with pytest.raises(ValueError, match=r"lies outside of the data folder .*put it into"):
        datasets.find(str(place), Data())
    if name.endswith("png"):
        with pytest.raises(ValueError, match="lies outside of the data folder"):
            unlabelled.find(str(place), Data())


@pytest.mark.parametrize(
    "name", ["../secret.png", "sub/../../secret.png", "{}/secret.png", "l.png"]
)
def test_a_csv_leads_nowhere_else(tmp_path, name):
    photo(tmp_path / "secret.png", 5)
    place = tmp_path / "set"
    photo(place / "sub" / "a.png", 6)
    photo(place / "b.png", 7)
    (place / "l.png").symlink_to(tmp_path / "secret.png")
    rows = ["path,label", "b.png,x", "sub/../b.png,x", f"{place}/sub/a.png,y", "sub/a.png,y"]
    (place / "set.csv").write_text("\n".join(rows))
    assert len(datasets.find(str(place / "set.csv"), Data(holdout=0.3)).train) == 2
    (place / "set.csv").write_text("\n".join([*rows, f"{name.format(tmp_path)},y"]))
    for read in (lambda p: datasets.find(p, Data()), lambda p: datasets.every(p, ["x", "y"])):
        with pytest.raises(ValueError, match=r"set.csv': .*lies outside of the data folder"):
            read(str(place / "set.csv"))


@pytest.mark.parametrize("name", ["images/b.png", "masks/b.png"])
def test_masks_lead_nowhere_else(tmp_path, name):
    place = tmp_path / "set"
    for i, one in enumerate("ab"):
        photo(place / f"images/{one}.png", i)
        photo(place / f"masks/{one}.png", i)
    (place / "classes.json").write_text('{"classes": ["x", "y"]}')
    (place / name).unlink()
    (place / name).symlink_to(photo(tmp_path / "secret.png", 5))
    with pytest.raises(ValueError, match="lies outside of the data folder"):
        masks.find(str(place), Data())


def test_shards_lead_nowhere_else(tmp_path):
    (tmp_path / "set").mkdir()
    (tmp_path / "train-0.tar").write_bytes(b"")
    (tmp_path / "set/train-0.tar").symlink_to(tmp_path / "train-0.tar")
    with pytest.raises(ValueError, match="lies outside of the data folder"):
        datasets.find(str(tmp_path / "set"), Data())


def test_inside(tmp_path):
    inside = Inside(tmp_path / "a")
    assert inside(tmp_path / "a/b/c.png")
    assert not inside(tmp_path / "ab/c.png")
    assert not inside(tmp_path / "a/../c.png")


# -- text -------------------------------------------------------------------------------------


def test_text_is_utf8(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes("\ufeffGrün".encode())
    assert text(path) == "Grün"
    path.write_bytes("path,label\na.png,Grün\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"a.csv' is no UTF-8 text .*save it as UTF-8") as error:
        datasets.find(str(path), Data())
    assert "\n" not in str(error.value)


def test_a_csv_that_is_none(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("path,label\n" + "x" * 200_000 + ",a\n")
    with pytest.raises(ValueError, match=r"a.csv' is no csv file: field larger"):
        datasets.find(str(path), Data())


# -- decoders ---------------------------------------------------------------------------------

EPS = """
import sys
from PIL import Image
from saccade.data import picture
Image.new("RGB", (8, 8)).save("a.eps")
import os
os.rename("a.eps", "a.jpg")
for source in ("a.jpg", "../a.pcx"):
    try:
        picture.rgb(source, source)
    except picture.Unreadable as error:
        print(error)
print(picture.size("a.jpg"))
"""


def test_no_other_program_is_started(tmp_path):
    """A picture that only Ghostscript could draw, under another name, with a Ghostscript there."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "work").mkdir()
    ghostscript = tmp_path / "bin/gs"
    ghostscript.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    ghostscript.chmod(0o755)
    paths = os.pathsep.join([str(tmp_path / "bin"), os.environ["PATH"]])
    run = subprocess.run(
        [sys.executable, "-c", EPS], capture_output=True, text=True, cwd=tmp_path / "work",
        env={**os.environ, "PATH": paths, "PYTHONPATH": os.getcwd()}, check=True,
    )  # fmt: skip
    assert "'a.jpg' is no readable picture (of no format that is read: JPEG, PNG" in run.stdout
    assert run.stdout.endswith("None\n")
    assert not (tmp_path / "started").exists()


def test_a_fifo_is_not_waited_for(tmp_path):
    from saccade.data import picture

    os.mkfifo(tmp_path / "a.png")
    with pytest.raises(Unreadable, match="no ordinary file"):
        picture.rgb(tmp_path / "a.png", "a.png")
    assert picture.size(tmp_path / "a.png") is None

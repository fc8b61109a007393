import json
import os
import pickle
import subprocess

import numpy as np
import pytest
from PIL import Image

from saccade.data.cifar import CLASSES
from saccade.data.datasets import every, find
from saccade.recipes.recipe import Data

COUNT = 20
ONE = ("data_batch_1", "test_batch")


@pytest.fixture
def batches():
    """Five training files and a test file: pixels N 32 32 3 and labels, two of each class."""
    chance = np.random.default_rng(0)
    names = [*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]
    labels = np.arange(COUNT) % 10
    return {
        name: (
            chance.integers(0, 256, (COUNT, 32, 32, 3)).astype(np.uint8),
            chance.permutation(labels),
        )
        for name in names
    }


def write_binary(folder, batches):
    """A label, then the red, green and blue plane, row by row."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, (pixels, labels) in batches.items():
        records = [
            bytes([label]) + b"".join(picture[..., c].tobytes() for c in range(3))
            for picture, label in zip(pixels, labels, strict=True)
        ]
        (folder / f"{name}.bin").write_bytes(b"".join(records))
    (folder / "batches.meta.txt").write_text("\n".join(CLASSES) + "\n\n")


def write_npm(folder, batches):
    folder.mkdir(parents=True, exist_ok=True)
    for i, (name, (pixels, _)) in enumerate(batches.items()):
        row = Image.fromarray(pixels.reshape(COUNT, 1024, 3))
        (row.convert("RGBA") if i % 2 else row).save(folder / f"{name}.png")
    train = np.concatenate(
        [labels for name, (_, labels) in batches.items() if name != "test_batch"]
    )
    (folder / "train_lables.json").write_text(json.dumps(train.tolist()))
    (folder / "test_lables.json").write_text(json.dumps(batches["test_batch"][1].tolist()))


def write_folders(folder, batches):
    for name, (pixels, labels) in batches.items():
        split = "test" if name == "test_batch" else "train"
        for i, (picture, label) in enumerate(zip(pixels, labels, strict=True)):
            path = folder / split / CLASSES[label] / f"{name}_{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(picture).save(path)


@pytest.mark.parametrize("write", [write_binary, write_npm, write_folders])
def test_every_layout_gives_the_pictures_with_their_labels(write, batches, tmp_path):
    write(tmp_path / "set", batches)
    splits = find(str(tmp_path / "set"), Data())
    assert splits.about == "set: 100 images to train on, 20 to validate, 10 classes"
    assert splits.classes == list(CLASSES)
    for images, names in ((splits.train, list(batches)[:5]), (splits.val, ["test_batch"])):
        expected = {
            (picture.tobytes(), int(label))
            for name in names
            for picture, label in zip(*batches[name], strict=True)
        }
        pairs = [images.read(i) for i in range(len(images))]
        assert {(np.asarray(picture).tobytes(), label) for picture, label in pairs} == expected
        pixels, labels = images.block(np.array([3, 1]))
        assert pixels.shape == (2, 3, 32, 32), "in memory"
        for at, i in enumerate((3, 1)):
            picture, label = images.read(i)
            np.testing.assert_array_equal(pixels[at].transpose(1, 2, 0), np.asarray(picture))
            assert labels[at] == label


def test_the_order_is_that_of_the_files_whatever_the_layout(batches, tmp_path):
    write_binary(tmp_path / "a", batches)
    write_npm(tmp_path / "b", batches)
    a, b = (find(str(tmp_path / name), Data()) for name in "ab")
    assert a.train.digest() == b.train.digest()
    assert a.val.digest() == b.val.digest()
    np.testing.assert_array_equal(np.asarray(a.train.read(COUNT)[0]), batches["data_batch_2"][0][0])


def test_the_word_cifar10_looks_where_one_keeps_it(batches, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("SACCADE_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        FileNotFoundError, match=r"no folder cifar-10-batches-bin .* tools/cifar10.py"
    ):
        find("cifar10", Data())
    write_folders(tmp_path / "cache/saccade/cifar10", batches)
    assert len(find("cifar10", Data()).train) == 100
    write_binary(tmp_path / "data/cifar-10-batches-bin", {k: batches[k] for k in ONE})
    assert len(find("cifar10", Data()).train) == 20, "nearer"
    monkeypatch.setenv("SACCADE_DATA", str(tmp_path / "elsewhere"))
    with pytest.raises(FileNotFoundError, match="elsewhere"):
        find("cifar10", Data())
    write_npm(tmp_path / "elsewhere/cifar10", batches)
    assert len(every("cifar10", list(CLASSES))) == 20
    monkeypatch.setenv("SACCADE_DATA", str(tmp_path / "elsewhere/cifar10"))
    assert len(find("cifar10", Data()).val) == 20


def test_the_pickled_version_is_refused(tmp_path):
    (tmp_path / "batches.meta").write_bytes(pickle.dumps({}))
    (tmp_path / "data_batch_1").write_bytes(pickle.dumps({}))
    with pytest.raises(ValueError, match=r"pickled version of CIFAR-10.*binary version"):
        find(str(tmp_path), Data())


def test_a_smaller_set_has_fewer_files_but_no_gap(batches, tmp_path):
    write_binary(tmp_path, {name: batches[name] for name in ONE})
    assert len(find(str(tmp_path), Data()).train) == 20
    write_binary(tmp_path, {"data_batch_3": batches["data_batch_3"]})
    with pytest.raises(FileNotFoundError, match=r"data_batch_2.bin'; get the whole set"):
        find(str(tmp_path), Data())


def test_files_that_cannot_be_right_are_refused(batches, tmp_path):
    write_binary(tmp_path / "a", batches)
    (tmp_path / "a/data_batch_2.bin").write_bytes(b"\0" * 3072)
    with pytest.raises(ValueError, match=r"data_batch_2.bin' is no whole file"):
        find(str(tmp_path / "a"), Data())
    (tmp_path / "a/data_batch_2.bin").write_bytes(b"\x0a" * 3073)
    with pytest.raises(ValueError, match=r"data_batch_2.bin' is no whole file"):
        find(str(tmp_path / "a"), Data())
    write_npm(tmp_path / "b", batches)
    (tmp_path / "b/test_lables.json").write_text("[1, 2]")
    with pytest.raises(ValueError, match="no label of 0 to 9 for each of 20 pictures"):
        find(str(tmp_path / "b"), Data())
    Image.new("RGB", (9, 20)).save(tmp_path / "b/test_batch.png")
    with pytest.raises(ValueError, match="is 9 wide and not 1024"):
        find(str(tmp_path / "b"), Data())


def test_folders_of_the_same_names_with_other_sizes_are_read_as_files(batches, tmp_path):
    write_folders(tmp_path / "set", batches)
    path = next((tmp_path / "set/train/cat").iterdir())
    Image.new("RGB", (48, 40)).save(path)
    images = find(str(tmp_path / "set"), Data()).train
    assert images.block(np.arange(2)) is None
    assert len(images) == 100


def test_no_program_starts_links_lead_nowhere_and_pipes_are_not_waited_for(
    batches, tmp_path, monkeypatch
):
    def start(*words, **more):
        raise AssertionError(f"started {words}")

    monkeypatch.setattr(subprocess, "Popen", start)
    monkeypatch.setattr("PIL.EpsImagePlugin.gs_binary", "gs")  # as where Ghostscript is installed
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 32 32\n%%EndComments\nshowpage\n%%EOF\n"
    packed, folders = tmp_path / "packed", tmp_path / "folders"
    write_npm(packed, batches)
    (packed / "data_batch_2.png").write_bytes(eps)
    with pytest.raises(ValueError, match=r"data_batch_2\.png' is no readable picture"):
        find(str(packed), Data())
    (packed / "data_batch_2.png").unlink()
    (packed / "data_batch_2.png").symlink_to(tmp_path / "data_batch_2.png")
    (tmp_path / "data_batch_2.png").write_bytes((packed / "data_batch_1.png").read_bytes())
    with pytest.raises(ValueError, match="lies outside of the data folder"):
        find(str(packed), Data())
    write_folders(folders, batches)
    first = min((folders / "train" / "airplane").iterdir())
    first.write_bytes(eps)
    with pytest.raises(ValueError, match="no readable picture"):
        find(str(folders), Data()).train.read(0)
    first.unlink()
    os.mkfifo(first)
    assert len(find(str(folders), Data()).train) == 5 * COUNT - 1


@pytest.mark.parametrize("content", ["", "{", "[[1], [2, 3]]", '{"a": 1}', "7", "[" * 9999])
def test_labels_that_are_no_list_of_numbers(content, batches, tmp_path):
    write_npm(tmp_path, batches)
    (tmp_path / "train_lables.json").write_text(content)
    with pytest.raises(ValueError, match="no label of 0 to 9"):
        find(str(tmp_path), Data())

import pickle
import shutil

import numpy as np
import pytest
from torchvision.datasets import ImageFolder

from saccade.data.datasets import Splits, aligned, every, fewer, find
from saccade.data.images import Arrays
from saccade.recipes.recipe import Data

from .conftest import photo


def colours(images):
    """What each image shows, by its name."""
    return {images.name(i): np.asarray(images.read(i)[0]).tobytes() for i in range(len(images))}


def picture_is_shown(path):
    return path.endswith(".png") and "/." not in path


# -- folders --------------------------------------------------------------------------------


def test_train_and_val_folders(folder):
    (folder / "classes.json").write_text("{}")
    (folder / "train/cat/notes.txt").write_text("no image")
    (folder / "train/cat/._0.png").write_bytes(b"some program's own")
    splits = find(str(folder), Data())
    assert splits.about == "set: 24 images to train on, 12 to validate, 3 classes"
    assert splits.classes == splits.train.classes == splits.val.classes == ["cat", "dog", "eel"]
    assert splits.warnings == []
    for split in ("train", "val"):
        ours = getattr(splits, split)
        theirs = ImageFolder(str(folder / split), is_valid_file=picture_is_shown)
        assert [(ours.name(i), int(ours.labels[i])) for i in range(len(ours))] == theirs.samples
        for i in (0, len(ours) - 1):
            image, label = ours.read(i)
            assert label == theirs[i][1]
            assert image.tobytes() == theirs[i][0].tobytes()


@pytest.mark.parametrize("name", ["val", "validation", "valid", "test"])
def test_names_of_the_validation_folder(folder, name):
    (folder / "val").rename(folder / name)
    assert len(find(str(folder), Data()).val) == 12


def test_val_goes_before_test(folder):
    shutil.copytree(folder / "val", folder / "test")
    (folder / "test/cat/0.png").unlink()
    assert len(find(str(folder), Data()).val) == 12


def test_folders_in_folders_and_capitals(tmp_path):
    for name in ("a/x/1.PNG", "a/y/2.png", "b/3.Png", "b/z/zz/4.png"):
        photo(tmp_path / "set" / name.lower(), 1).rename(tmp_path / "set" / name)
    splits = find(str(tmp_path / "set"), Data(holdout=0.5))
    assert (len(splits.train), len(splits.val)) == (2, 2)


def test_a_share_of_each_class_is_held_out(folder):
    def held(seed=0, share=0.25, path=folder / "train"):
        splits = find(str(path), Data(holdout=share), seed)
        names = [[s.name(i) for i in range(len(s))] for s in (splits.train, splits.val)]
        assert not set(names[0]) & set(names[1])
        assert len(names[0]) + len(names[1]) == 24
        assert np.bincount(splits.val.labels).tolist() == [round(8 * share)] * 3
        return names[1]

    assert held() == held()
    assert held() != held(seed=1)
    assert len(held(share=0.5)) == 12
    assert len(find(str(folder / "train"), Data(holdout=0.01)).val) == 3, "one of each at least"
    shutil.rmtree(folder / "val")
    assert [n.rpartition("train/")[2] for n in held(path=folder)] == [
        n.rpartition("train/")[2] for n in held()
    ]


def test_a_class_without_validation_images_is_told(folder):
    shutil.rmtree(folder / "val/dog")
    splits = find(str(folder), Data())
    assert splits.warnings == ["no validation images of 'dog'"]
    assert splits.classes == ["cat", "dog", "eel"]


def test_a_lone_image_is_trained_on(folder):
    photo(folder / "train/fox/only.png", 7)
    splits = find(str(folder / "train"), Data())
    assert "fox" in splits.classes
    assert splits.warnings == ["no validation images of 'fox'"]


def test_an_empty_class_is_left_out_and_told(folder):
    (folder / "train/fox").mkdir()
    splits = find(str(folder), Data())
    assert splits.classes == ["cat", "dog", "eel"]
    assert splits.warnings == ["no training images in 'fox'"]


def empty(folder):
    shutil.rmtree(folder)
    folder.mkdir()


def one_class(folder):
    for name in ("dog", "eel"):
        for split in ("train", "val"):
            shutil.rmtree(folder / split / name)


def no_val_images(folder):
    for path in (folder / "val").rglob("*.png"):
        path.unlink()


def flat_images(folder):
    for path in (folder / "train/cat").iterdir():
        path.rename(folder / path.name)
    shutil.rmtree(folder / "train")
    shutil.rmtree(folder / "val")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (empty, r"is empty; put a folder of images for each class there"),
        (one_class, r"only one class, 'cat'; there is nothing to tell apart"),
        (no_val_images, r"the validation set is empty; add images, or remove it"),
        (flat_images, r"no images in folders of classes below .*; wanted: train and val folders"),
        (lambda f: shutil.rmtree(f / "train"), r"set: no images to train on; wanted"),
        (lambda f: shutil.rmtree(f / "train/cat"), r"class 'cat' has validation images but none"),
        (
            lambda f: (f / "val/eel").rename(f / "val/eels"),
            r"class 'eels' has validation images but none to train on; did you mean 'eel'",
        ),
    ],
)
def test_folders_that_cannot_be_used(folder, change, words):
    change(folder)
    with pytest.raises(ValueError, match=words):
        find(str(folder), Data())


def test_a_share_that_is_none(folder):
    with pytest.raises(ValueError, match=r"data.holdout: a share between 0 and 1, got 1.5"):
        find(str(folder / "train"), Data(holdout=1.5))


def test_a_missing_path(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no folder or file 'mnits'; .*mean 'mnist'"):
        find("mnits", Data())
    (tmp_path / "a.zip").write_bytes(b"")
    with pytest.raises(ValueError, match=r"a.zip' is no data set; give a csv file or a folder"):
        find(str(tmp_path / "a.zip"), Data())


@pytest.mark.data
def test_real_folders(shared):
    splits = find(str(shared / "data/classification/tinyimagenet20"), Data())
    assert splits.about == "tinyimagenet20: 9000 images to train on, 2000 to validate, 20 classes"
    assert splits.warnings == []
    assert np.bincount(splits.train.labels).tolist() == [450] * 20


# -- csv ------------------------------------------------------------------------------------


def manifest(folder, lines, name="list.csv"):
    path = folder / name
    path.write_text("\n".join(lines) + "\n", encoding="utf-8-sig")
    return str(path)


def test_a_manifest(folder):
    lines = ["path, label ,split"]
    for split in ("train", "val"):
        for path in sorted((folder / split).rglob("*.png")):
            lines.append(f"{path.relative_to(folder)},{path.parent.name},{split.upper()}")
    splits = find(manifest(folder, lines), Data())
    assert splits.about == "list.csv: 24 images to train on, 12 to validate, 3 classes"
    plain = find(str(folder), Data())
    assert colours(splits.train) == colours(plain.train)
    assert splits.val.labels.tolist() == plain.val.labels.tolist()


def test_a_manifest_without_splits_and_with_numbers(folder):
    names = sorted((folder / "train").rglob("*.png"))
    lines = ["label,path", *(f"{i % 11},{path}" for i, path in enumerate(names))]
    splits = find(manifest(folder, lines), Data(holdout=0.3))
    assert splits.classes == [str(i) for i in range(11)], "10 after 9"
    assert len(splits.train) + len(splits.val) == 24


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["file,label"], r"its first line must name the columns path, label.* it says file, label"),
        ([""], r"it says nothing"),
        (["path,label", "a.png,"], r"line 2: no path or no label"),
        (["path,label", "a.png"], r"line 2: no path or no label"),
        (["path,label,split", "a.png,x,dev"], r"line 2: split must be train or val, got 'dev'"),
        (["path,label", "gone.png,x"], r"names 'gone.png', but there is no such file; paths are"),
        (["path,label"], r"list.csv: no images to train on"),
    ],
)
def test_manifests_that_cannot_be_used(tmp_path, lines, words):
    with pytest.raises((ValueError, FileNotFoundError), match=words):
        find(manifest(tmp_path, lines), Data())


# -- testing a trained model ----------------------------------------------------------------


def test_labels_follow_the_models_classes(folder):
    images = find(str(folder), Data()).val
    turned = aligned(images, ["eel", "bat", "dog", "cat"])
    assert turned.classes == ["eel", "bat", "dog", "cat"]
    for i in range(len(images)):
        assert turned.classes[turned.read(i)[1]] == images.classes[images.read(i)[1]]
        assert turned.labels[i] == turned.read(i)[1]
    assert aligned(images, ["cat", "dog", "eel"]) is images
    with pytest.raises(ValueError, match=r"class 'eel' is not among the model's 3 .*mean 'eels'"):
        aligned(images, ["cat", "dog", "eels"])


def test_everything_there_is_to_test_on(folder):
    classes = ["dog", "cat", "eel"]
    assert len(every(str(folder), classes)) == 12
    assert len(every(str(folder / "val"), classes)) == 12
    assert len(every(str(folder / "train"), classes)) == 24
    shutil.rmtree(folder / "train")
    only = every(str(folder), classes)
    assert only.classes == classes
    assert np.bincount(only.labels).tolist() == [4, 4, 4]
    shutil.rmtree(folder / "val/dog")
    assert np.bincount(every(str(folder), classes).labels).tolist() == [0, 4, 4]
    (folder / "val/cat").rename(folder / "val/car")
    with pytest.raises(ValueError, match=r"class 'car' is not among the model's 3"):
        every(str(folder), classes)


def test_sets_travel_to_workers(folder):
    splits = find(str(folder / "train"), Data())
    there = pickle.loads(pickle.dumps(splits))
    assert colours(there.train) == colours(splits.train)


def test_a_link_into_its_own_folder_adds_nothing(tmp_path):
    for name in ("a", "b"):
        for i in range(3):
            photo(tmp_path / "set" / name / f"{i}.png", i)
    before = len(find(str(tmp_path / "set"), Data(holdout=0.3)).train)
    (tmp_path / "set" / "a" / "again").symlink_to(tmp_path / "set" / "a")
    assert len(find(str(tmp_path / "set"), Data(holdout=0.3)).train) == before
    photo(tmp_path / "set" / ".more" / "3.png", 3)
    (tmp_path / "set" / "a" / "more").symlink_to(tmp_path / "set" / ".more")
    assert len(find(str(tmp_path / "set"), Data(holdout=0.3)).train) == before + 1


def test_a_share_of_the_training_images_is_the_same_for_every_seed():
    pixels, labels = np.zeros((40, 8, 8), np.uint8), np.arange(40) % 4
    images = Arrays("some", pixels, labels, list("abcd"))
    splits = Splits(images, images, list("abcd"), "some")
    few = fewer(splits, 0.3)
    assert [few.train.name(i) for i in range(len(few.train))] == [f"some {i}" for i in range(12)]
    assert np.bincount(few.train.labels).tolist() == [3] * 4
    assert len(few.val) == 40
    assert "12 of them are used" in few.about
    assert len(fewer(splits, 0.01).train) == 4
    assert fewer(splits, 1.0) is splits
    with pytest.raises(ValueError, match=r"data\.share: a share"):
        fewer(splits, 0.0)

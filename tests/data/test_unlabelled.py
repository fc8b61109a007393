"""Pictures without labels."""

import pytest
from PIL import Image

from saccade.data.unlabelled import every, find
from saccade.recipes.recipe import Data


def put(root, *names):
    for i, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (i, 0, 0)).save(root / name)


def test_train_and_val_folders(tmp_path):
    put(tmp_path, "train/a.png", "train/deep/b.png", "val/c.png", "other/d.png")
    (tmp_path / "train" / "notes.txt").write_text("no picture")
    splits = find(str(tmp_path), Data())
    assert [splits.train.names[i] for i in range(2)] == ["train/a.png", "train/deep/b.png"]
    assert splits.val.names[0] == "val/c.png"
    assert splits.classes == []
    assert "2 images to train on, 1 to validate" in splits.about
    image, label = splits.train.read(1)
    assert image.getpixel((0, 0)) == (1, 0, 0)
    assert label == 0
    assert len(every(str(tmp_path))) == 1


def test_some_are_held_out(tmp_path):
    put(tmp_path, *(f"{i}.png" for i in range(10)))
    splits = find(str(tmp_path), Data(holdout=0.3), seed=5)
    names = [part.names[i] for part in (splits.train, splits.val) for i in range(len(part))]
    assert sorted(names) == sorted(f"{i}.png" for i in range(10))
    assert len(splits.val) == 3
    assert find(str(tmp_path), Data(holdout=0.3), seed=5).val.digest() == splits.val.digest()
    assert len(every(str(tmp_path))) == 10


def test_what_cannot_be_used(tmp_path):
    with pytest.raises(FileNotFoundError, match="no folder"):
        find(str(tmp_path / "gone"), Data())
    with pytest.raises(ValueError, match="0 pictures; it takes two or more"):
        find(str(tmp_path), Data())
    with pytest.raises(ValueError, match="no picture to test on"):
        every(str(tmp_path))
    put(tmp_path, "train/a.png")
    (tmp_path / "val").mkdir()
    with pytest.raises(ValueError, match="no picture to validate on"):
        find(str(tmp_path), Data())
    put(tmp_path, "b.png")
    with pytest.raises(ValueError, match=r"data\.holdout"):
        find(str(tmp_path / "train"), Data(holdout=1.0))

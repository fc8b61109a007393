import io
import json
import pickle
import tarfile

import numpy as np
import pytest

from saccade.data import shards
from saccade.data.datasets import every, find
from saccade.recipes.recipe import Data


def pack(path, members, how=tarfile.PAX_FORMAT, time=0.0):
    with tarfile.open(path, "w", format=how) as tar:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(content), time
            tar.addfile(member, io.BytesIO(content))
    return path


def samples(folder, ending="cls", prefix="", named=False):
    for i, path in enumerate(sorted(folder.rglob("*.png"))):
        label = path.parent.name if named else str(["cat", "dog", "eel"].index(path.parent.name))
        content = (
            json.dumps({"label": label if named else int(label)}) if ending == "json" else label
        )
        yield f"{prefix}{i:06d}.png", path.read_bytes()
        yield f"{prefix}{i:06d}.{ending}", content.encode()


def written(tmp_path, folder, **options):
    place = tmp_path / "shards"
    place.mkdir()
    how = {k: options.pop(k) for k in ("how", "time") if k in options}
    train = list(samples(folder / "train", **options))
    pack(place / "train-000.tar", train[:20], **how)
    pack(place / "train-001.tar", train[20:], **how)
    pack(place / "val-000.tar", samples(folder / "val", **options), **how)
    return place


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"ending": "json"},
        {"how": tarfile.GNU_FORMAT},
        {"how": tarfile.USTAR_FORMAT, "prefix": "deep/" * 30},
        {"prefix": "deep/" * 60},  # too long for the header: further fields
        {"prefix": "deep/" * 60, "how": tarfile.GNU_FORMAT},
        {"time": 1234.5},  # as webdataset writes: further fields that do not matter
    ],
    ids=str,
)
def test_shards_are_as_good_as_folders(tmp_path, folder, options):
    place = written(tmp_path, folder, **options)
    splits, plain = find(str(place), Data()), find(str(folder), Data())
    assert splits.about == "shards: 24 images to train on, 12 to validate, 3 classes"
    assert splits.warnings == []
    assert splits.classes == ["0", "1", "2"]
    for a, b in ((splits.train, plain.train), (splits.val, plain.val)):
        a = pickle.loads(pickle.dumps(a))
        for i in np.random.default_rng(0).permutation(len(a)).tolist():
            (x, y), (u, v) = a.read(i), b.read(i)
            assert y == v
            assert x.tobytes() == u.tobytes()
    assert splits.train.name(23).endswith(
        "train-001.tar:" + options.get("prefix", "") + "000023.png"
    )
    assert len(every(str(place), ["0", "1", "2"])) == 12


@pytest.mark.parametrize("time", [0.0, 1234.5])
def test_plain_tars_are_walked_without_tarfile(tmp_path, folder, time, monkeypatch):
    place = written(tmp_path, folder, time=time)
    monkeypatch.setattr(shards.tarfile, "open", None)
    assert len(find(str(place), Data()).train) == 24


def test_names_of_classes(tmp_path, folder):
    for ending in ("cls", "json"):
        (tmp_path / ending).mkdir()
        place = written(tmp_path / ending, folder, ending=ending, named=True)
        assert find(str(place), Data()).classes == ["cat", "dog", "eel"]


def test_part_of_shards_is_held_out(tmp_path, folder):
    place = written(tmp_path, folder)
    (place / "val-000.tar").unlink()
    splits = find(str(place), Data(holdout=0.25))
    assert (len(splits.train), len(splits.val)) == (18, 6)


def test_images_without_label_are_left_out_and_told(tmp_path, folder):
    place = written(tmp_path, folder)
    members = list(samples(folder / "train"))
    members[1] = ("000000.cls", b" ")
    del members[3]
    members[4] = ("000002.json", b"{broken")
    pack(place / "train-000.tar", [*members[:19], ("readme.txt", b"hello")])
    splits = find(str(place), Data())
    assert splits.warnings == ["train-000.tar: 3 images have no label and are left out"]
    assert len(splits.train) == 7 + 14


@pytest.mark.parametrize("cut", [12 * 512, 12 * 512 + 100, 13 * 512 + 9, 0])
def test_a_broken_shard_is_used_as_far_as_it_goes(tmp_path, folder, cut):
    place = written(tmp_path, folder)
    whole = (place / "train-000.tar").read_bytes()
    (place / "train-000.tar").write_bytes(whole[:cut])
    (place / "train-001.tar").write_bytes(b"x" * 2000)
    pack(place / "train-002.tar", samples(folder / "train"))
    splits = find(str(place), Data())
    assert len(splits.warnings) == 2
    assert "train-000.tar is broken after" in splits.warnings[0]
    assert "train-001.tar is broken after 0 members" in splits.warnings[1]
    assert len(splits.train) == 24 + (1 if cut else 0)
    for i in range(len(splits.train)):
        splits.train.read(i)


def test_a_vanished_shard_is_unreadable(tmp_path, folder):
    place = written(tmp_path, folder)
    splits = find(str(place), Data())
    (place / "train-000.tar").unlink()
    with pytest.raises(
        shards.picture.Unreadable, match=r"train-000.tar:000000.png' is no readable"
    ):
        splits.train.read(0)


def test_shards_that_cannot_be_used(tmp_path, folder):
    place = tmp_path / "shards"
    place.mkdir()
    pack(place / "a.tar", samples(folder / "train"))
    with pytest.raises(ValueError, match=r"none named train-\*.tar holds images with a label"):
        find(str(place), Data())
    (place / "train-000.tar.gz").write_bytes(b"")
    with pytest.raises(
        ValueError, match=r"train-000.tar.gz' is compressed, which allows no random"
    ):
        find(str(place), Data())

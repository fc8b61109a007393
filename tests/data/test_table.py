import io
import json
import pickle
import sys

import numpy as np
import pytest
from PIL import Image

from saccade.data import table
from saccade.data.datasets import Unreadable, find
from saccade.recipes.recipe import Data
from tools.campaign.guard import guarded


def test_the_package_to_install(tmp_path, monkeypatch):
    (tmp_path / "state.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match=r"is a Hugging Face dataset; .* pip install datasets"):
        find(str(tmp_path), Data())


@pytest.fixture
def rows():
    datasets = pytest.importorskip("datasets", reason="Hugging Face's datasets is not installed")
    datasets.disable_progress_bars()

    def table_of(labels, kind=None, broken=()):
        kind = kind or datasets.ClassLabel(names=["z", "a", "m"])
        cells = []
        for i in range(len(labels)):
            file = io.BytesIO()
            Image.new("RGB", (5, 4), (i, 2 * i, 3 * i)).save(file, "png")
            cells.append({"bytes": b"" if i in broken else file.getvalue(), "path": None})
        features = datasets.Features({"photo": datasets.Image(), "label": kind})
        return datasets.Dataset.from_dict({"photo": cells, "label": labels}, features=features)

    table_of.datasets = datasets
    return table_of


def test_a_dataset_with_splits(rows, tmp_path):
    labels = [0, 1, 2] * 4
    both = rows.datasets.DatasetDict(train=rows(labels), test=rows([2, -1, 1]))
    both.save_to_disk(str(tmp_path / "set"))
    splits = find(str(tmp_path / "set"), Data())
    assert splits.about == "set: 12 images to train on, 2 to validate, 3 classes"
    assert splits.classes == ["z", "a", "m"], "in its own order"
    assert splits.warnings == [
        "test: 1 rows have no label and are left out", "no validation images of 'z'",
    ]  # fmt: skip
    there = pickle.loads(pickle.dumps(splits.train))
    for i in range(12):
        image, label = there.read(i)
        assert label == labels[i]
        assert image.getpixel((0, 0)) == (i, 2 * i, 3 * i)
    assert [splits.val.read(i)[1] for i in range(2)] == [2, 1]
    assert splits.val.name(1) == "set test row 2"


def test_a_strangers_dataset_names_no_other_files(rows, tmp_path):
    place = tmp_path / "set"
    rows([0, 1] * 4).save_to_disk(str(place))
    rows([1, 1]).save_to_disk(str(tmp_path / "secret"))
    state = json.loads((place / "state.json").read_text())
    own = state["_data_files"][0]["filename"]
    for name in (f"../secret/{own}", f"{tmp_path}/secret/{own}", "http://127.0.0.1:9/x.arrow"):
        state["_data_files"] = [{"filename": name}]
        (place / "state.json").write_text(json.dumps(state))
        with guarded(), pytest.raises(ValueError, match=r"outside of the data|cannot be read"):
            find(str(place), Data())
    (place / "state.json").unlink()
    (place / "dataset_dict.json").write_text('{"splits": ["../secret"]}')
    with pytest.raises(ValueError, match="outside of the data folder"):
        find(str(place), Data())


def test_only_the_pictures_column_is_read(rows, tmp_path):
    table = rows([0, 1] * 4)
    more = [{"bytes": None, "path": "http://127.0.0.1:9/x.png"}] * 8
    d = rows.datasets
    kind = {"bytes": d.Value("binary"), "path": d.Value("string")}
    table.add_column("more", more, feature=kind).save_to_disk(str(tmp_path / "set"))
    info = json.loads((tmp_path / "set/dataset_info.json").read_text())
    info["features"]["more"] = {"_type": "Image"}
    (tmp_path / "set/dataset_info.json").write_text(json.dumps(info))
    with guarded():
        images = find(str(tmp_path / "set"), Data(holdout=0.3)).train
        assert images.read(0)[0].size == (5, 4)


def test_one_table_with_labels_of_text(rows, tmp_path):
    rows(["b", "a"] * 5, rows.datasets.Value("string"), broken=[3]).save_to_disk(
        str(tmp_path / "s")
    )
    splits = find(str(tmp_path / "s"), Data(holdout=0.2))
    assert splits.classes == ["a", "b"]
    assert (len(splits.train), len(splits.val)) == (8, 2)
    whole = [s.name(i) for s in (splits.train, splits.val) for i in range(len(s))]
    assert sorted(whole) == [f"s train row {i}" for i in range(10)]
    part, i = next(
        (s, i)
        for s in (splits.train, splits.val)
        for i in range(len(s))
        if s.name(i) == "s train row 3"
    )
    with pytest.raises(Unreadable, match="s train row 3"):
        part.read(i)


def test_tables_that_cannot_be_used(rows, tmp_path):
    d = rows.datasets
    d.DatasetDict(test=rows([0, 1])).save_to_disk(str(tmp_path / "a"))
    with pytest.raises(ValueError, match=r"has no split 'train', only test; add one"):
        find(str(tmp_path / "a"), Data())
    d.Dataset.from_dict({"x": [1], "label": [2]}).save_to_disk(str(tmp_path / "b"))
    with pytest.raises(ValueError, match=r"no column of images among x, label; cast one to"):
        find(str(tmp_path / "b"), Data())
    assert not table.is_table(tmp_path)
    assert np.all([table.is_table(tmp_path / name) for name in "ab"])

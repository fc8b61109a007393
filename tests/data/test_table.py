import io
import pickle
import sys

import numpy as np
import pytest
from PIL import Image

from saccade.data import table
from saccade.data.datasets import Unreadable, find
from saccade.recipes.recipe import Data


def test_the_package_to_install(tmp_path, monkeypatch):
    (tmp_path / "state.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match=r"is a Hugging Face dataset; .* pip install datasets"):
        find(str(tmp_path), Data())


@pytest.fixture
def rows():
    datasets = pytest.importorskip("datasets", reason="Hugging Face's datasets is not installed")
    datasets.disable_progress_bars()

    def made(labels, kind=None, broken=()):
        kind = kind or datasets.ClassLabel(names=["z", "a", "m"])
        cells = []
        for i in range(len(labels)):
            file = io.BytesIO()
            Image.new("RGB", (5, 4), (i, 2 * i, 3 * i)).save(file, "png")
            cells.append({"bytes": b"" if i in broken else file.getvalue(), "path": None})
        features = datasets.Features({"photo": datasets.Image(), "label": kind})
        return datasets.Dataset.from_dict({"photo": cells, "label": labels}, features=features)

    made.datasets = datasets
    return made


def test_a_dataset_with_splits(rows, tmp_path):
    labels = [0, 1, 2] * 4
    both = rows.datasets.DatasetDict(train=rows(labels), test=rows([2, -1, 1]))
    both.save_to_disk(str(tmp_path / "set"))
    found = find(str(tmp_path / "set"), Data())
    assert found.about == "set: 12 images to train on, 2 to validate, 3 classes"
    assert found.classes == ["z", "a", "m"], "in its own order"
    assert found.warnings == [
        "test: 1 rows have no label and are left out", "no validation images of 'z'",
    ]  # fmt: skip
    there = pickle.loads(pickle.dumps(found.train))
    for i in range(12):
        image, label = there.read(i)
        assert label == labels[i]
        assert image.getpixel((0, 0)) == (i, 2 * i, 3 * i)
    assert [found.val.read(i)[1] for i in range(2)] == [2, 1]
    assert found.val.name(1) == "set test row 2"


def test_one_table_with_labels_of_text(rows, tmp_path):
    rows(["b", "a"] * 5, rows.datasets.Value("string"), broken=[3]).save_to_disk(
        str(tmp_path / "s")
    )
    found = find(str(tmp_path / "s"), Data(holdout=0.2))
    assert found.classes == ["a", "b"]
    assert (len(found.train), len(found.val)) == (8, 2)
    whole = [s.name(i) for s in (found.train, found.val) for i in range(len(s))]
    assert sorted(whole) == [f"s train row {i}" for i in range(10)]
    part, i = next(
        (s, i)
        for s in (found.train, found.val)
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

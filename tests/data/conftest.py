"""Small sets of small pictures, made on the spot."""

import numpy as np
import pytest
from PIL import Image


def photo(path, seed, side=(24, 20)):
    """A picture of noise, of its own colour."""
    chance = np.random.default_rng(seed)
    pixels = chance.integers(0, 90, (side[1], side[0], 3)) + chance.integers(0, 160, 3)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels.astype(np.uint8)).save(path)
    return path


@pytest.fixture
def folder(tmp_path):
    """train/ and val/ with three classes: 8 + 4 images each."""
    for c, name in enumerate(("cat", "dog", "eel")):
        for split, count in (("train", 8), ("val", 4)):
            for i in range(count):
                photo(tmp_path / "set" / split / name / f"{i}.png", 100 * c + i + 50 * count)
    return tmp_path / "set"

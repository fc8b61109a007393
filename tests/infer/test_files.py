"""Which files the words on a command line mean, in which order, and free names for results."""

import pytest
from PIL import Image

from saccade.infer.files import free, pictures


@pytest.fixture
def folder(tmp_path):
    for name in ("frame10.png", "frame9.png", "frame9.txt", "results/frame9.png", "a/b.jpg"):
        place = tmp_path / "set" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4)).save(place, "PNG")
    return tmp_path / "set"


def test_folders_patterns_and_files_with_numbers_in_order(folder):
    def names(word, out=None):
        return [str(path.relative_to(folder)) for path in pictures(str(word), "predict", out)]

    assert names(folder) == ["a/b.jpg", "frame9.png", "frame10.png", "results/frame9.png"]
    assert names(folder, folder / "results") == ["a/b.jpg", "frame9.png", "frame10.png"]
    assert names(folder / "*.png") == ["frame9.png", "frame10.png"]
    assert names(folder / "frame9.txt") == ["frame9.txt"], "a file that is named is taken"


def test_a_word_without_pictures_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    for word in (str(tmp_path / "*.gif"), str(tmp_path / "empty")):
        with pytest.raises(FileNotFoundError, match="predict: no"):
            pictures(word, "predict")


def test_equal_names_get_numbers():
    taken = set()
    assert [free("dog", taken) for _ in range(3)] == ["dog", "dog-2", "dog-3"]

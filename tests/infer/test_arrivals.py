"""Pictures of a folder as they arrive."""

import threading
import time

import pytest

from saccade.infer.arrivals import arrivals
from tests.data.conftest import photo


def test_what_is_there_and_what_comes(tmp_path):
    place, out = tmp_path / "in", tmp_path / "in/out"
    photo(place / "b.png", 0)
    photo(out / "result.png", 0)
    parts = arrivals(str(place), out, most=3, every=0.01)
    assert [path.name for path in next(parts)] == ["b.png"]

    def later():
        time.sleep(0.05)
        photo(place / "a.png", 1)
        photo(place / "c.png", 2)

    thread = threading.Thread(target=later)
    thread.start()
    names = [path.name for part in parts for path in part]
    thread.join()
    assert sorted(names) == ["a.png", "c.png"], "each once, and none of the results"


def test_a_file_that_still_grows_is_waited_for(tmp_path):
    photo(tmp_path / "whole.png", 0)
    content = (tmp_path / "whole.png").read_bytes()
    place = tmp_path / "in"
    place.mkdir()
    growing = place / "a.png"
    growing.write_bytes(content[:9])

    def write():
        for end in (60, 120, len(content)):
            time.sleep(0.02)
            growing.write_bytes(content[:end])

    thread = threading.Thread(target=write)
    parts = arrivals(str(place), tmp_path / "out", most=1, every=0.1)
    thread.start()
    (path,) = next(parts)
    assert path.read_bytes() == content
    thread.join()


def test_no_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match="--watch: 'nowhere' is no folder"):
        next(arrivals("nowhere", tmp_path))

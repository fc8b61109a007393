import numpy as np
import pytest

from saccade.data.images import Arrays, Files, Some, Strings, Unreadable


def test_many_names_in_two_arrays():
    names = ["a.jpg", "", "ä/ö.png", "odd\udcff.gif", "x" * 300]
    strings = Strings(names)
    assert [strings[i] for i in range(len(strings))] == names
    assert len(Strings([])) == 0


def test_arrays_are_grey_pictures_in_rgb():
    pixels = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    images = Arrays("few", pixels, np.array([1, 0]), ["a", "b"])
    image, label = images.read(1)
    assert (image.mode, image.size, label) == ("RGB", (3, 2), 0)
    np.testing.assert_array_equal(np.asarray(image)[..., 2], pixels[1])
    assert images.name(1) == "few 1"


def test_some_of_a_set():
    pixels = np.arange(4, dtype=np.uint8).reshape(4, 1, 1)
    images = Arrays("few", pixels, np.array([0, 1, 0, 1]), ["a", "b"])
    some = Some(images, np.array([3, 0]))
    assert len(some) == 2
    assert some.name(0) == "few 3"
    assert some.labels.tolist() == [1, 0]
    assert np.asarray(some.read(0)[0])[0, 0, 0] == 3


def test_a_vanished_file_is_unreadable(tmp_path):
    images = Files(tmp_path, ["gone.jpg"], [0], ["a"])
    with pytest.raises(Unreadable, match=r"gone.jpg' is no readable picture \(there is no such"):
        images.read(0)

"""Numbers for objects from frame to frame."""

import numpy as np
import pytest

from saccade.infer import track
from saccade.infer.track import Tracker, overlap


def row(*boxes, score=0.9, label=0):
    n = len(boxes)
    corners = np.array(boxes, np.float32).reshape(n, 4)
    return corners, np.full(n, label), np.full(n, score, np.float32)


def test_objects_that_cross_keep_their_numbers():
    tracker = Tracker()
    for t in range(20):  # 4 pixels a frame, past each other at t = 10
        left, right = 4 * t, 80 - 4 * t
        boxes = row((left, 0, left + 20, 20), (right, 8, right + 20, 28))
        numbers = tracker(*boxes).tolist()
        assert numbers == [1, 2], t


def test_a_hidden_object_comes_back_where_it_is_expected():
    tracker = Tracker(patience=10)
    for t in range(5):
        assert tracker(*row((10 * t, 0, 10 * t + 20, 20))).tolist() == [1]
    for _ in range(6):
        assert tracker(*row()).tolist() == []
    assert tracker(*row((110, 0, 130, 20))).tolist() == [1], "ten pixels a frame further"
    for _ in range(11):
        tracker(*row())
    assert tracker(*row((230, 0, 250, 20))).tolist() == [0], "after its patience it is another"
    assert tracker(*row((240, 0, 260, 20))).tolist() == [2]


def test_boxes_of_a_low_score_go_on_but_do_not_begin():
    tracker = Tracker(high=0.5)
    tracker(*row((0, 0, 20, 20)))
    tracker(*row((1, 0, 21, 20)))
    assert tracker(*row((2, 0, 22, 20), score=0.2)).tolist() == [1]
    assert tracker(*row((90, 0, 99, 20), score=0.2)).tolist() == [0]
    assert tracker(*row((90, 0, 99, 20), score=0.2)).tolist() == [0]


def test_a_box_that_is_there_once_is_no_track():
    tracker = Tracker()
    tracker(*row())
    assert tracker(*row((0, 0, 9, 9))).tolist() == [0]
    assert tracker(*row((50, 50, 59, 59))).tolist() == [0]
    assert tracker(*row((51, 50, 60, 59))).tolist() == [1]


def test_another_class_is_another_object():
    tracker = Tracker()
    tracker(*row((0, 0, 20, 20), label=0))
    assert tracker(*row((0, 0, 20, 20), label=1)).tolist() == [0]


def test_without_scipy(monkeypatch):
    values = np.random.default_rng(0).random((6, 4))
    pairs = track._greedy(values)
    assert len({i for i, _ in pairs}) == len({j for _, j in pairs}) == 4
    assert pairs[0] == np.unravel_index(values.argmax(), values.shape)


def test_overlap():
    a, b = np.array([[0.0, 0, 10, 10]]), np.array([[0.0, 5, 10, 15], [20, 20, 30, 30]])
    np.testing.assert_allclose(overlap(a, b), [[1 / 3, 0]])
    with pytest.raises(ValueError, match="patience of 1 or more"):
        Tracker(patience=0)

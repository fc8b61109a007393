"""Batches give the answers of a plain loop, in its order."""

import threading
import time

import numpy as np
import pytest
import torch
from PIL import Image

from saccade.data.picture import rgb
from saccade.infer.batches import in_background, predictions


class Mean(torch.nn.Module):
    """A task that answers with the mean of an image, and remembers how many it saw at once."""

    def __init__(self):
        super().__init__()
        self.together = []

    def forward(self, image, size):
        self.together.append(len(image))
        return {"mean": image.mean((1, 2, 3))}

    infer = forward


def transform(photo):
    return torch.from_numpy(np.array(photo)).permute(2, 0, 1).float()


def predict(output, sizes):
    return list(zip(output["mean"].tolist(), sizes, strict=True))


def answers(paths, batch, task=None):
    results = predictions(paths, task or Mean(), transform, predict, torch.device("cpu"), batch)
    return list(results)


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """Pictures of two sizes; the fourth is damaged, and the last one missing."""
    folder, chance = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    paths = []
    for i in range(11):
        size = (40, 50, 3) if i % 3 else (64, 33, 3)
        paths.append(folder / f"{i}.png")
        Image.fromarray(chance.integers(0, 255, size, np.uint8)).save(paths[-1])
    paths[3].write_bytes(paths[3].read_bytes()[:100])
    return [*paths, folder / "gone.png"]


@pytest.mark.parametrize("batch", [1, 4, 100])
def test_answers_are_those_of_a_loop(paths, batch):
    task = Mean()
    results = answers(paths, batch, task)
    assert [answer.path for answer in results] == paths, "in their order"
    assert [answer.path.name for answer in results if answer.error] == ["3.png", "gone.png"]
    assert "there is no such file" in results[-1].error
    for answer in results:
        if not answer.error:
            photo = rgb(answer.path, "")
            mean, size = answer.prediction
            assert mean == pytest.approx(transform(photo).mean().item(), rel=1e-5)
            assert size == answer.size == (photo.height, photo.width)
    assert max(task.together) == {1: 1, 4: 3, 100: 7}[batch], "those of one size together"


def test_nothing_is_asked_of_no_pictures(paths):
    assert answers([], 4) == []
    with pytest.raises(ValueError, match="at least one picture at a time"):
        answers(paths, 0)


def test_many_that_are_damaged_do_not_stop_it(tmp_path):
    (tmp_path / "x.png").write_bytes(b"")
    assert [bool(a.error) for a in answers([tmp_path / "x.png"] * 9, 2)] == [True] * 9


def test_work_in_the_background_keeps_its_order_and_its_errors():
    def late(i):
        time.sleep(0.02 * (i % 3 == 0))
        return i, threading.current_thread().name

    result = list(in_background(late, range(20)))
    assert [i for i, _ in result] == list(range(20))
    assert threading.current_thread().name not in {name for _, name in result}

    def broken(i):
        raise OSError(f"disk full at {i}")

    with pytest.raises(OSError, match="disk full at 0"):
        list(in_background(broken, range(3)))

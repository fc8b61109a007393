"""mIoU, against plain numpy, whole or in shares."""

import numpy as np
import pytest
import torch

from saccade.tasks.segment.overlap import Overlap

NAMES = ("a", "b", "c", "d", "e")


def reference(truths, guesses, classes):
    """Class by class over all pixels of all images, in the words of the definition."""
    truth = np.concatenate([t.ravel() for t in truths])
    guess = np.concatenate([g.ravel() for g in guesses])
    known = truth != 255
    truth, guess = truth[known], guess[known]
    ious, accuracies = [], []
    for c in range(classes):
        both = np.sum((truth == c) & (guess == c))
        either = np.sum((truth == c) | (guess == c))
        if either:
            ious.append(both / either)
        if np.sum(truth == c):
            accuracies.append(both / np.sum(truth == c))
    return 100 * np.mean(ious), 100 * np.mean(truth == guess), 100 * np.mean(accuracies)


def pictures(seed=0, absent=4):
    chance = np.random.default_rng(seed)
    truths, guesses = [], []
    for i in range(7):
        shape = (20 + i, 31 - i)
        truth = chance.integers(0, absent, shape).astype(np.uint8)
        guess = np.where(chance.random(shape) < 0.6, truth, chance.integers(0, absent, shape))
        truth[chance.random(shape) < 0.1] = 255
        truths.append(truth)
        guesses.append(guess.astype(np.uint8))
    return truths, guesses


def counted(metric, pairs):
    for truth, guess in pairs:
        metric.count(torch.from_numpy(truth), torch.from_numpy(guess))
    return metric


def test_it_is_the_definition():
    truths, guesses = pictures()
    guesses[0][0, 0] = 4  # predicted, though in no mask: an IoU of nought
    truths[0][0, 0] = 1
    figures = counted(Overlap(NAMES), zip(truths, guesses, strict=True)).compute()
    expected = reference(truths, guesses, 5)
    assert list(figures) == ["miou", "pixel_accuracy", "mean_class", "images"]
    assert list(figures.values())[:3] == pytest.approx(expected, abs=1e-6)
    assert figures["images"] == 7


def test_a_class_in_neither_has_no_iou():
    truths, guesses = pictures(absent=3)
    metric = counted(Overlap(NAMES), zip(truths, guesses, strict=True))
    expected = reference(truths, guesses, 5)
    assert list(metric.compute().values())[:3] == pytest.approx(expected, abs=1e-6)
    rows = metric.tables()["per_class"]
    table = {key: [row[key] for row in rows] for key in rows[0]}
    assert table["IoU"][3:] == [None, None]
    assert table["class"] == list(NAMES)
    assert sum(table["pixels"]) == sum((t != 255).sum() for t in truths)
    assert np.mean(table["IoU"][:3]) == pytest.approx(expected[0])


def test_shares_of_processes_add_up_exactly():
    pairs = list(zip(*pictures(), strict=True))
    whole = counted(Overlap(NAMES), pairs)
    sum_ = Overlap(NAMES)
    for part in (pairs[:3], pairs[3:4], pairs[4:]):
        sum_.add(counted(Overlap(NAMES), part).state())
    assert sum_.compute() == whole.compute()
    assert torch.equal(sum_.matrix, whole.matrix)


def test_it_reads_logits_at_the_masks_own_size():
    metric = Overlap(NAMES)
    logits = torch.full((2, 5, 4, 4), -9.0)
    logits[0, 1] = logits[1, 3] = 9.0
    output = {"logits": logits, "size": torch.tensor([[16, 16], [12, 16]])}
    masks = [torch.ones(20, 21, dtype=torch.uint8), torch.full((7, 9), 3, dtype=torch.uint8)]
    metric.update(output, {"mask": masks})
    assert metric.compute()["miou"] == 100
    assert int(metric.matrix.sum()) == 20 * 21 + 7 * 9


def test_nothing_to_count():
    with pytest.raises(ValueError, match="no image was read"):
        Overlap(NAMES).compute()
    blank = np.full((4, 4), 255, np.uint8)
    with pytest.raises(ValueError, match="no pixel has a label"):
        counted(Overlap(NAMES), [(blank, np.zeros((4, 4), np.uint8))]).compute()

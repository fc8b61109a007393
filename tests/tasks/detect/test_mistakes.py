import pytest
import torch

from saccade.tasks.detect import mistakes

CAT, DOG = 0, 1


def image(truth=(), guesses=(), crowd=()):
    """(class, box) of what is there, (class, score, box) of what is predicted."""
    crowded = torch.tensor([i in crowd for i in range(len(truth))], dtype=torch.bool)
    return {
        "truth": torch.tensor([box for _, box in truth]).float().reshape(-1, 4),
        "classes": torch.tensor([name for name, _ in truth]).long(),
        "crowd": crowded,
        "boxes": torch.tensor([box for *_, box in guesses]).float().reshape(-1, 4),
        "labels": torch.tensor([name for name, *_ in guesses]).long(),
        "scores": torch.tensor([score for _, score, _ in guesses]).float(),
    }


HERE, NEAR, FAR = (0, 0, 20, 20), (2, 0, 22, 20), (60, 60, 80, 80)


@pytest.mark.parametrize(
    ("truth", "guesses", "matrix", "says"),
    [
        ([(CAT, HERE)], [(CAT, 0.9, NEAR)], {(CAT, CAT): 1}, (0, 0)),
        ([(CAT, HERE)], [(DOG, 0.9, NEAR)], {(CAT, DOG): 1}, (1, 1)),
        ([(CAT, HERE)], [(CAT, 0.9, FAR)], {(CAT, 2): 1, (2, CAT): 1}, (1, 1)),
        ([(CAT, HERE)], [(CAT, 0.2, HERE)], {(CAT, 2): 1}, (1, 0)),
        ([(CAT, HERE)], [], {(CAT, 2): 1}, (1, 0)),
        ([], [(DOG, 0.9, HERE)], {(2, DOG): 1}, (0, 1)),
        # One stands for one: the second box on a cat is of nothing, and so is the better one of
        # another class.
        ([(CAT, HERE)], [(CAT, 0.9, NEAR), (CAT, 0.5, HERE)], {(CAT, CAT): 1, (2, CAT): 1}, (0, 1)),
        ([(CAT, HERE)], [(CAT, 0.4, NEAR), (DOG, 0.9, HERE)], {(CAT, CAT): 1, (2, DOG): 1}, (0, 1)),
        (
            [(CAT, HERE), (DOG, NEAR)],
            [(DOG, 0.9, HERE), (CAT, 0.8, NEAR)],
            {(CAT, CAT): 1, (DOG, DOG): 1},
            (0, 0),
        ),
    ],
)
def test_what_is_taken_for_what(truth, guesses, matrix, says):
    one = image(truth, guesses)
    counted = mistakes.confusion([one], 2)
    cells = {(i, j): n for i, row in enumerate(counted) for j, n in enumerate(row) if n}
    assert cells == matrix
    fault = mistakes.fault(one)
    assert (fault.missed, fault.wrong) == says
    assert fault.boxes == len(truth)


def test_a_crowd_counts_neither_way():
    one = image(
        [(CAT, (0, 0, 100, 100)), (DOG, FAR)],
        [(CAT, 0.9, HERE), (CAT, 0.9, (90, 90, 190, 190)), (DOG, 0.9, FAR)],
        crowd=[0],
    )
    cells = mistakes.confusion([one], 2)
    assert cells == [[0, 0, 0], [0, 1, 0], [1, 0, 0]], "in the crowd nothing, beyond it one"
    assert mistakes.fault(one) == (0, 1, 1)


def test_boxes_that_are_none_are_of_nothing():
    one = image([(CAT, HERE)], [(CAT, 0.9, (0, 0, float("nan"), 4))])
    assert mistakes.confusion([one], 2)[CAT] == [0, 0, 1]


def test_each_true_and_each_sure_box_counts_once():
    """Rows are the truth, columns what was said, whatever is drawn."""
    for seed in range(20):
        chance = torch.Generator().manual_seed(seed)
        n, m = (int(torch.randint(0, 12, (), generator=chance)) for _ in range(2))

        def boxes(count, chance=chance):
            corner = torch.randint(0, 30, (count, 2), generator=chance)
            return torch.cat(
                (corner, corner + torch.randint(5, 40, (count, 2), generator=chance)), 1
            )

        labels = torch.randint(0, 3, (n + m,), generator=chance).tolist()
        scores = torch.rand(m, generator=chance).tolist()
        one = image(
            list(zip(labels[:n], boxes(n).tolist(), strict=True)),
            list(zip(labels[n:], scores, boxes(m).tolist(), strict=True)),
        )
        matrix = torch.tensor(mistakes.confusion([one], 3))
        assert matrix.sum(1)[:3].tolist() == [labels[:n].count(c) for c in range(3)]
        sure = [c for c, s in zip(labels[n:], scores, strict=True) if s >= mistakes.SURE]
        assert matrix.sum(0)[:3].tolist() == [sure.count(c) for c in range(3)]
        fault = mistakes.fault(one)
        assert fault.missed == n - int(matrix.diagonal().sum())
        assert fault.wrong == len(sure) - int(matrix.diagonal().sum())


def test_the_worst_image_comes_first():
    faults = [mistakes.Fault(*numbers) for numbers in ((0, 0, 3), (1, 4, 3), (3, 2, 3), (0, 5, 0))]
    order = sorted(range(4), key=lambda i: faults[i].order)
    assert order == [2, 1, 3, 0]
    assert faults[1].caption == "1 of 3 boxes missed, 4 predicted wrongly"
    assert mistakes.Fault(1, 0, 1).caption == "1 of 1 box missed, 0 predicted wrongly"

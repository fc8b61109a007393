import os
import random

import numpy as np
import pytest
import torch

from saccade.data import augment, datasets
from saccade.data.augment import Mix
from saccade.data.loader import Batch, Loader, alike, resampled
from saccade.recipes.augment import Augment
from saccade.recipes.recipe import Data

from .conftest import photo

ALL = Augment(
    size=17, rand="rand-m9-n2-mstd0.5", jitter=0.3, jitter_share=0.8, grey=0.2, erase=0.5,
    mixup=0.8, cutmix=1.0,
)  # fmt: skip
COLOUR = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)


@pytest.fixture
def images(folder):
    return datasets.find(str(folder), Data()).train


def loader(images, augmented=ALL, **options):
    options = {"batch": 8, "mix": Mix(augmented)} | options
    return Loader(images, augment.train(augmented, *COLOUR), **options)


def joined(steps):
    """Steps as one batch each."""
    batches = []
    for parts in steps:
        target = {k: torch.cat([p.target[k] for p in parts]) for k in parts[0].target}
        image, index, size = (
            torch.cat([getattr(p, k) for p in parts]) for k in ("image", "index", "size")
        )
        batches.append(Batch(image, target, index, size))
    return batches


def same(a, b):
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        assert torch.equal(x.index, y.index)
        assert torch.equal(x.image, y.image)
        assert x.target.keys() == y.target.keys()
        assert all(torch.equal(x.target[k], y.target[k]) for k in x.target)


# -- alike ----------------------------------------------------------------------------------


def test_steps_take_images_that_are_alike(images):
    like = np.arange(len(images)) % 3 == 0
    batches = loader(images, batch=4, like=like.astype(int))
    epochs = [[step.index.numpy() for step in joined(batches.epoch(n))] for n in range(3)]
    for steps in epochs:
        mixed = [len(set(like[step])) > 1 for step in steps]
        assert not any(mixed[:-1])  # 8 and 16 of 24: no step is left over
        assert len({*np.concatenate(steps)}) == 4 * len(steps)
    assert not np.array_equal(epochs[0], epochs[1])
    again = [step.index.numpy() for step in joined(batches.epoch(1, start=2))]
    assert np.array_equal(again, epochs[1][2:])


def test_what_is_left_over_is_mixed_and_not_lost():
    order, like = np.random.default_rng(0).permutation(11), np.array([0] * 6 + [1] * 5)
    batches = alike(order, like, 4, np.random.default_rng(1))
    assert sorted(batches) == list(range(11))
    assert len(set(like[batches[:4]])) == len(set(like[batches[4:8]])) == 1


# -- the same, however it is done -----------------------------------------------------------


@pytest.mark.parametrize("repeats", [1, 3])
def test_a_resumed_epoch_is_the_unbroken_one(images, repeats):
    whole = joined(loader(images, repeats=repeats).epoch(5))
    assert len(whole) == 3
    for k in range(4):
        same(joined(loader(images, repeats=repeats).epoch(5, start=k)), whole[k:])


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_change_nothing(images, workers):
    parallel = loader(images, workers=workers, repeats=2)
    for epoch in (0, 1):
        same(joined(parallel.epoch(epoch)), joined(loader(images, repeats=2, part=4).epoch(epoch)))
    next(parallel.epoch(2))  # an epoch left in the middle
    same(joined(parallel.epoch(3, start=1)), joined(loader(images, repeats=2).epoch(3, start=1)))
    parallel.close()


@pytest.mark.parametrize(("world", "part"), [(1, 4), (1, 3), (1, 6), (2, None), (2, 2), (4, None)])
@pytest.mark.parametrize("repeats", [1, 3])
def test_parts_and_processes_change_nothing(images, world, part, repeats):
    ranks = [
        list(loader(images, world=world, rank=r, part=part, repeats=repeats).epoch(1))
        for r in range(world)
    ]
    union = [[b for parts in steps for b in parts] for steps in zip(*ranks, strict=True)]
    for rank in ranks:
        sizes = [len(batch) for batch in rank[0]]
        assert sum(sizes) == 8 // world
        assert max(sizes) <= (part or 8)
        assert all(size % 2 == 0 for size in sizes)
    same(joined(union), joined(loader(images, repeats=repeats).epoch(1)))


def test_the_seed_and_the_epoch_change_everything(images):
    (a, *_), (b, *_), (c, *_) = (
        joined(loader(images, seed=seed).epoch(n)) for seed, n in ((0, 0), (0, 1), (1, 0))
    )
    for x, y in ((a, b), (a, c), (b, c)):
        assert not torch.equal(x.index, y.index)
        assert not torch.equal(x.target["share"], y.target["share"])


def test_chance_is_by_position(images):
    """The same image at another position looks different."""
    once = loader(images, mix=None, shuffle=False, batch=24)
    (first,), (twice,) = joined(once.epoch(0)), joined(once.epoch(1))
    assert torch.equal(first.index, twice.index)
    assert not any(torch.equal(a, b) for a, b in zip(first.image, twice.image, strict=True))


@pytest.mark.parametrize("workers", [0, 1])
def test_global_chance_is_left_alone(images, workers, untyped):  # beartype draws lots itself
    def states():
        return random.getstate(), np.random.get_state(), torch.get_rng_state()

    before = states()
    batches = loader(images, workers=workers)
    for _ in batches.epoch(0):
        after = states()
        assert before[0] == after[0]
        np.testing.assert_equal(before[1], after[1])
        assert torch.equal(before[2], after[2])
    batches.close()


# -- what is in a batch ---------------------------------------------------------------------


def test_an_epoch_holds_each_image_once(images):
    steps = joined(loader(images, mix=None).epoch(0))
    index = torch.cat([step.index for step in steps])
    assert sorted(index.tolist()) == list(range(24))
    assert index.tolist() != list(range(24))
    for step in steps:
        assert step.image.shape == (8, 3, 17, 17)
        assert step.image.dtype == torch.float32
        assert step.target["label"].tolist() == images.labels[step.index].tolist()
        assert step.target.keys() == {"label"}


@pytest.mark.parametrize(("batch", "repeats"), [(8, 2), (8, 3), (12, 3), (24, 4)])
def test_repeats(images, batch, repeats):
    steps = joined(loader(images, batch=batch, repeats=repeats, mix=None).epoch(0))
    assert len(steps) == 24 // batch
    seen = []
    for step in steps:
        index = step.index.tolist()
        counts = [index.count(i) for i in set(index)]
        assert len(counts) == -(-batch // repeats)
        assert max(counts) == repeats
        assert min(counts) >= repeats - 1
        assert all(a != b for a, b in zip(index[0::2], index[1::2], strict=True))
        assert len(np.unique(step.image.numpy(), axis=0)) == batch, "each augmented anew"
        seen += set(index)
    assert len(seen) == len(set(seen)), "steps share no image"


def test_partners_change_between_repeats(images):
    (step, *_) = joined(loader(images, repeats=2).epoch(0))
    pairs = [frozenset(pair) for pair in step.index.view(-1, 2).tolist()]
    assert len(set(pairs)) == len(pairs)


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("batch", [5, 7, 24, 100])
def test_evaluation_sees_each_image_once(images, world, batch):
    plain = augment.train(Augment(size=8), *COLOUR)
    ranks = [
        Loader(images, plain, batch=batch, world=world, rank=r, shuffle=False, whole=False)
        for r in range(world)
    ]
    assert {len(rank) for rank in ranks} == {-(-24 // batch)}
    steps = [list(rank.epoch(0)) for rank in ranks]
    assert {len(step) for step in steps} == {-(-24 // batch)}
    index = [i for step in steps for parts in step for b in parts for i in b.index.tolist()]
    assert sorted(index) == list(range(24))
    if world == 1:
        assert index == list(range(24))


# -- unreadable images ----------------------------------------------------------------------


@pytest.fixture
def damaged(folder):
    """Two of 24 training images are broken; one of 12 to validate."""
    (folder / "train/cat/3.png").write_bytes(b"")
    broken = folder / "train/dog/5.png"
    broken.write_bytes(broken.read_bytes()[:300])
    (folder / "val/eel/0.png").write_bytes(b"no picture")
    return datasets.find(str(folder), Data())


@pytest.mark.parametrize("workers", [0, 2])
def test_an_unreadable_image_is_replaced_and_listed(damaged, workers):
    images = damaged.train
    batches = loader(images, workers=workers, limit=0.1)
    steps = joined(batches.epoch(0))
    again = joined(batches.epoch(1)) and joined(batches.epoch(0))
    batches.close()
    same(steps, again)
    same(steps, joined(loader(images, world=1, part=2, limit=0.1).epoch(0)))
    assert all(len(step) == 8 for step in steps)
    index = torch.cat([step.index for step in steps])
    names = [images.name(i) for i in index.tolist()]
    assert not any(name in batches.bad for name in names)
    assert {os.path.relpath(name, images.root) for name in batches.bad} == {
        "train/cat/3.png", "train/dog/5.png",
    }  # fmt: skip
    labels = torch.cat([step.target["label"] for step in steps])
    assert labels.tolist() == images.labels[index].tolist()


def test_an_unreadable_image_is_left_out_of_evaluation(damaged):
    plain = augment.train(Augment(size=8), *COLOUR)
    batches = Loader(damaged.val, plain, batch=1, shuffle=False, whole=False, limit=0.1)
    steps = list(batches.epoch(0))
    assert [len(parts) for parts in steps] == [1] * 8 + [0] + [1] * 3
    assert len(batches.bad) == 1


def test_too_many_unreadable_images_stop(damaged):
    with pytest.raises(ValueError, match=r"2 of 24 images cannot be read, more than the 5.0% that"):
        list(loader(damaged.train, limit=0.05).epoch(0))


@pytest.mark.parametrize("workers", [0, 1])
def test_nothing_readable(tmp_path, workers):
    for i in range(60):
        path = photo(tmp_path / "ab"[i % 2] / f"{i}.png", i)
        path.write_bytes(b"")
    images = datasets.find(str(tmp_path), Data()).train
    batches = loader(images, workers=workers, limit=1.0)
    with pytest.raises(
        ValueError, match=r"of 54 images cannot be read, and hardly any can; repair"
    ):
        list(batches.epoch(0))


# -- what cannot be -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch": 25}, r"a step takes 25 images, the set has 24; try loop.batch=24"),
        ({"batch": 0}, r"at least 1 each, got batch=0"),
        ({"part": 0}, r"at least 1 each"),
        ({"batch": 8, "world": 3}, r"processes must share a batch evenly, got batch=8 world=3"),
        ({"batch": 6, "world": 2}, r"mixing pairs neighbours, so parts must be even"),
        ({"part": 1}, r"mixing pairs neighbours"),
        ({"batch": 8, "repeats": 5}, r"repeats need whole batches of two images or more"),
        ({"whole": False, "mix": None, "repeats": 2}, r"repeats need whole batches"),
    ],
)
def test_refused(images, options, words):
    with pytest.raises(ValueError, match=words):
        loader(images, **options)


def test_an_unknown_start(images):
    with pytest.raises(ValueError, match="an epoch has 3 steps, got start=4"):
        loader(images).epoch(0, start=4)


def test_one_epoch_at_a_time(images):
    batches = loader(images)
    first = batches.epoch(0)
    next(first)
    next(batches.epoch(1))
    with pytest.raises(RuntimeError, match="another epoch was begun"):
        next(first)


def test_images_come_as_often_as_they_should():
    often = np.array([1.0, 1.0, 2.0, 4.0] * 25)
    counts = np.zeros(100)
    for seed in range(200):
        order = resampled(often, np.random.default_rng(seed))
        assert len(order) == 100
        times = np.bincount(order, minlength=100)
        assert (np.abs(times - often / 2) < 1).all(), "the share, rounded up or down"
        counts += times
    np.testing.assert_allclose(counts / 200, often / 2, atol=0.12)
    assert resampled(often, np.random.default_rng(0)).tolist() != sorted(order.tolist())
    alike = resampled(np.ones(7), np.random.default_rng(0))
    assert sorted(alike.tolist()) == list(range(7)), "all once where all are alike"

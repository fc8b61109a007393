import pickle

import numpy as np
import pytest
import torch
from PIL import Image

from saccade.data import augment
from saccade.data.augment import Mix
from saccade.data.batch_augment import Together, draws
from saccade.data.images import Arrays, Files, Some
from saccade.data.loader import Loader
from saccade.recipes.augment import Augment
from saccade.recipes.augment import Test as Seen

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)
SIDE = 8


def numbers(count, side=SIDE, seed=0):
    chance = np.random.default_rng(seed)
    return chance.integers(0, 256, (count, 3, side, side)).astype(np.uint8)


def pictures(count=24):
    return Arrays("noise", numbers(count), np.arange(count) % 4, list("abcd"))


def image_set(**options):
    return augment.train(Augment(size=SIDE, interpolation="bilinear", **options), MEAN, STD)


def normalised(pixels):
    mean, std = (torch.tensor(t)[:, None, None] for t in (MEAN, STD))
    return (torch.from_numpy(pixels.copy()).float() / 255 - mean) / std


def test_each_picture_is_one_of_the_shifts_mirrored_or_not():
    pixels, pad = numbers(200), 2
    image = image_set(pad=pad).block(pixels, draws((1, 2), 0, 200))
    spread = np.pad(pixels, ((0, 0), (0, 0), (pad, pad), (pad, pad)), mode="reflect")
    seen = set()
    for i in range(200):
        options = {}
        for top in range(2 * pad + 1):
            for left in range(2 * pad + 1):
                cut = spread[i, :, top : top + SIDE, left : left + SIDE]
                for mirrored in (False, True):
                    options[top, left, mirrored] = cut[..., ::-1] if mirrored else cut
        equal = [key for key, cut in options.items()
                 if torch.allclose(image[i], normalised(cut), atol=1e-5)]  # fmt: skip
        assert len(equal) == 1
        seen.add(equal[0])
    assert len(seen) > 45, "all of the 50 ways, but for chance"


def test_cutout_takes_one_square_that_may_leave_the_picture():
    pixels = np.full((300, 3, SIDE, SIDE), 255, np.uint8)
    image = image_set(pad=0, flip=0.0, cutout=4).block(pixels, draws((3,), 0, 300))
    holes = (image == 0).all(1)  # B H W
    assert torch.equal(holes, (image == 0).any(1))
    rows, columns = holes.any(2), holes.any(1)
    assert torch.equal(holes, rows[:, :, None] & columns[:, None])
    sides = rows.sum(1)
    assert sides.max() == 4
    assert sides.min() == 2
    assert rows.float().mean(0).min() > 0.2, "anywhere"


def test_shares():
    pixels = numbers(1000)
    plain = image_set(pad=0, flip=0.0).block(pixels, draws((0,), 0, 1000))
    assert torch.allclose(plain, normalised(pixels), atol=1e-5)
    for share in (0.0, 0.3, 1.0):
        image = image_set(pad=0, flip=share).block(pixels, draws((0,), 0, 1000))
        mirrored = (image == plain.flip(3)).all((1, 2, 3)).float().mean()
        assert abs(mirrored - share) < 0.05


def test_chance_is_of_seed_epoch_and_position_alone():
    whole = draws((1, 5, 0), 0, 50)
    np.testing.assert_array_equal(draws((1, 5, 0), 17, 8), whole[17:25])
    for other in (draws((1, 6, 0), 0, 50), draws((1, 5, 1), 0, 50), draws((1, 5, 0), 50, 50)):
        assert not np.isin(other, whole).any()


@pytest.mark.parametrize("mix", [None, Mix(Augment(mixup=0.5))])
def test_parts_processes_and_resumed_epochs_are_the_same_bits(mix):
    options = {"batch": 8, "seed": 4, "mix": mix}
    transform = image_set(pad=2, cutout=3)
    steps = [parts[0] for parts in Loader(pictures(), transform, **options).epoch(2)]
    for other in (
        {"part": 2}, {"workers": 1}, {"world": 2, "rank": 0}, {"world": 2, "rank": 1}
    ):  # fmt: skip
        loader = Loader(pictures(), transform, **options, **other)
        (parts,) = list(loader.epoch(2, start=2))
        loader.close()
        image = torch.cat([part.image for part in parts])
        first = 4 * other.get("rank", 0)
        assert torch.equal(image, steps[2].image[first : first + len(image)])
        label = torch.cat([part.target["label"] for part in parts])
        assert torch.equal(label, steps[2].target["label"][first : first + len(image)])


def test_evaluation_at_once_equals_one_by_one():
    images = Some(pictures(), np.arange(23)[::-1].copy())
    transform = augment.test(Seen(size=SIDE, crop=1.0), MEAN, STD)
    batches = Loader(images, transform, batch=5, shuffle=False, whole=False).epoch(0)
    for (batch,) in batches:
        for image, i, label in zip(batch.image, batch.index, batch.target["label"], strict=True):
            picture, truth = images.read(int(i))
            assert torch.equal(image, transform(picture))
            assert label == truth
        assert batch.size.tolist() == [[SIDE, SIDE]] * len(batch)


def test_grey_pictures_and_those_of_other_sizes(tmp_path):
    grey = Arrays("grey", numbers(6)[:, 0], np.arange(6) % 2, list("ab"))
    loader = Loader(grey, image_set(pad=0, flip=0.0), batch=6, shuffle=False)
    ((batch,),) = loader.epoch(0)
    assert torch.allclose(batch.image, normalised(grey.pixels[:, None].repeat(3, 1)), atol=1e-5)
    for n, size in enumerate([(8, 8), (20, 11), (3, 5)]):
        Image.new("RGB", size, (9, 99, 200)).save(tmp_path / f"{n}.png")
    files = Files(tmp_path, ["0.png", "1.png", "2.png"], [0, 1, 0], list("ab"))
    ((batch,),) = Loader(files, image_set(pad=2), batch=3).epoch(0)
    assert batch.image.shape == (3, 3, SIDE, SIDE)
    assert not batch.image.std((2, 3)).any(), "of one colour, also beyond the edge"
    assert augment.test(Seen(size=SIDE, crop=0.9), MEAN, STD).block(numbers(2), None) is None


def test_it_travels_and_says_what_it_does():
    transform = image_set(pad=2, cutout=3)
    assert isinstance(transform, Together)
    assert transform.names == ["crop", "flip", "cutout"]
    there, drawn = pickle.loads(pickle.dumps(transform)), draws((0,), 0, 9)
    assert torch.equal(there.block(numbers(9), drawn), transform.block(numbers(9), drawn))
    assert "pad=2" in repr(transform)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cutout": 8}, "augment.cutout: goes with augment.pad"),
        ({"pad": 8}, "augment.pad: less than the side"),
        ({"pad": 1, "rand": "rand-m9"}, "which rand cannot be; set augment.rand off"),
        ({"pad": 1, "erase": 0.5}, "which erase cannot be"),
        ({"pad": -1}, "augment.pad: 0 or more"),
    ],
)
def test_what_does_not_go_together_is_refused(options, words):
    with pytest.raises(ValueError, match=words):
        Augment(size=SIDE, **options)


def test_mirrors_alternate_by_epoch():
    """Without shifts a picture is itself or its mirror: the other one in the next epoch."""
    images = pictures()
    seen = []
    for epoch in range(3):
        loader = Loader(images, image_set(pad=0, alternate=True), batch=8, seed=3)
        batches = [part for parts in loader.epoch(epoch) for part in parts]
        order = torch.cat([part.index for part in batches]).argsort()
        seen.append(torch.cat([part.image for part in batches])[order])
    own = normalised(images.pixels)
    mirrored = [(one - own.flip(3)).abs().amax((1, 2, 3)) < 1e-5 for one in seen]
    plain = [(one - own).abs().amax((1, 2, 3)) < 1e-5 for one in seen]
    assert all(torch.equal(a, ~b) for a, b in zip(plain, mirrored, strict=True))
    assert 6 <= int(mirrored[0].sum()) <= 18
    assert torch.equal(mirrored[0], ~mirrored[1])
    assert torch.equal(mirrored[0], mirrored[2])
    with pytest.raises(ValueError, match=r"set augment\.pad=4"):
        Augment(size=SIDE, alternate=True)

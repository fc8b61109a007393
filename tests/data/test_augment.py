import math
import pickle
import random

import numpy as np
import pytest
import torch
from PIL import Image
from timm.data import create_transform
from timm.data.mixup import Mixup

from saccade.data import augment
from saccade.data.augment import Mix
from saccade.recipes import book
from saccade.recipes.augment import Augment
from saccade.recipes.augment import Test as Seen

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)
FULL = Augment(
    size=24, rand="rand-m9-n2-mstd0.5", jitter=0.3, jitter_share=0.8, grey=0.2, erase=0.25
)


@pytest.fixture
def photo():
    chance = np.random.default_rng(0)
    return Image.fromarray(chance.integers(0, 256, (37, 50, 3), np.uint8))


def seed(n):
    random.seed(n)
    np.random.seed(n)
    torch.manual_seed(n)


# -- one image ------------------------------------------------------------------------------


def test_an_image_becomes_a_tensor(photo):
    for transform in (augment.train(FULL, MEAN, STD), augment.test(Seen(size=24), MEAN, STD)):
        x = transform(photo)
        assert x.shape == (3, 24, 24)
        assert x.dtype == torch.float32
        assert x.is_contiguous()


def test_a_label_becomes_a_target(photo):
    x, target = augment.test(Seen(size=24), MEAN, STD)(photo, 7)
    assert target == {"label": 7}
    assert torch.equal(x, augment.test(Seen(size=24), MEAN, STD)(photo))


def test_normalised(photo):
    x = augment.Normalise(MEAN, STD)(photo)
    expected = np.asarray(photo) / 255
    for c in range(3):
        torch.testing.assert_close(
            x[c].double(), torch.tensor((expected[..., c] - MEAN[c]) / STD[c]), atol=1e-5, rtol=1e-5
        )


def test_what_is_done_is_said():
    assert augment.train(FULL, MEAN, STD).names == [
        "crop", "flip", "RandAugment", "jitter", "grey", "erasing",
    ]  # fmt: skip
    assert augment.train(Augment(flip=0.0), MEAN, STD).names == ["crop"]
    assert augment.test(Seen(), MEAN, STD).names == ["resize", "centre"]
    assert Mix(Augment(mixup=0.8, cutmix=1.0)).names == ["mixup", "cutmix"]
    assert Mix(Augment(cutmix=1.0)).names == ["cutmix"]
    assert Mix(Augment()).names == []


RECIPES = {name: r for name, r in book.RECIPES.items() if isinstance(r.augment, Augment)}


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_can_be_built_and_sent_to_workers(name, photo):
    recipe = RECIPES[name]
    for transform in (
        augment.train(recipe.augment, MEAN, STD), augment.test(recipe.test, MEAN, STD),
    ):  # fmt: skip
        there = pickle.loads(pickle.dumps(transform))
        seed(1)
        here = transform(photo)
        seed(1)
        assert torch.equal(here, there(photo))


def live(transform, kind):
    return next(
        step
        for outer in transform.steps
        for step in (outer, *getattr(outer, "transforms", ()))
        if type(step).__name__ == kind
    )


def test_fields_reach_their_steps():
    chosen = Augment(
        size=30, scale=(0.2, 0.9), ratio=(0.5, 2.0), interpolation="bilinear", flip=0.3,
        rand="rand-m5-n3", jitter=0.4, jitter_share=0.7, grey=0.1, erase=0.6,
    )  # fmt: skip
    transform = augment.train(chosen, MEAN, STD)
    crop = live(transform, "Crop")
    assert (crop.size, crop.scale, crop.ratio) == ((30, 30), (0.2, 0.9), (0.5, 2.0))
    assert crop.interpolation.value == "bilinear"
    assert live(transform, "RandomHorizontalFlip").p == 0.3
    rand = live(transform, "RandAugment")
    assert (rand.num_layers, rand.ops[0].magnitude) == (3, 5)
    assert rand.ops[0].hparams["img_mean"] == (128, 102, 76)
    assert rand.ops[0].hparams["translate_const"] == 13
    assert live(transform, "RandomApply").p == 0.7
    assert live(transform, "ColorJitter").brightness == live(transform, "ColorJitter").saturation
    assert live(transform, "ColorJitter").contrast == (0.6, 1.4)
    assert live(transform, "ColorJitter").hue is None
    assert live(transform, "RandomGrayscale").p == 0.1
    assert live(transform, "RandomErasing").probability == 0.6


def test_evaluation_is_timms(photo):
    for side, crop in ((24, 0.875), (24, 1.0), (31, 0.9)):
        theirs = create_transform(
            (3, side, side), interpolation="bicubic", mean=MEAN, std=STD, crop_pct=crop
        )
        ours = augment.test(Seen(size=side, crop=crop), MEAN, STD)
        torch.testing.assert_close(ours(photo), theirs(photo), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("side", [(1, 1), (1, 3), (2, 1), (1, 40_000), (40_000, 1), (9000, 3)])
def test_strips_and_specks(side):
    image = Image.new("RGB", side, (255, 0, 127))
    for transform in (augment.train(FULL, MEAN, STD), augment.test(Seen(size=24), MEAN, STD)):
        for n in range(5):
            seed(n)
            assert transform(image).shape == (3, 24, 24)


def test_the_middle_of_a_strip():
    image = Image.new("RGB", (900, 10))
    image.paste((255, 255, 255), (445, 0, 455, 10))
    x = augment.test(Seen(size=10, crop=1.0), (0.0,) * 3, (1.0,) * 3)(image)
    assert x.mean() > 0.95


@pytest.mark.parametrize("word", ["rand-z9", "autoaugment", "rand-m9-nx", "m9"])
def test_no_policy(word):
    with pytest.raises(ValueError, match=r"augment.rand: no policy of timm's, got"):
        augment.train(Augment(rand=word), MEAN, STD)


def test_no_share():
    with pytest.raises(ValueError, match=r"test.crop: 0.1 to 1, got 224"):
        augment.test(Seen(crop=224), MEAN, STD)


# -- mixing ---------------------------------------------------------------------------------


def batch(B, side=(9, 7)):
    image = torch.randn(B, 3, *side)
    return image, torch.arange(B) + 10


def mixed(mix, image, label, seed):
    return mix(image.clone(), label, seed)


def test_mixup_is_its_equation():
    image, label = batch(6)
    mixture, target = mixed(Mix(Augment(mixup=0.8)), image, label, 3)
    s = target["share"][0].item()
    assert 0 < s < 1
    assert set(target["share"].tolist()) == {s}
    assert target["label"].tolist() == [10, 11, 12, 13, 14, 15]
    assert target["other"].tolist() == [11, 10, 13, 12, 15, 14]
    for i in range(6):
        torch.testing.assert_close(mixture[i], s * image[i] + (1 - s) * image[i ^ 1])


def test_cutmix_takes_a_box_of_its_neighbour():
    image, label = batch(4, (32, 24))
    for n in range(8):
        mixture, target = mixed(Mix(Augment(cutmix=1.0)), image, label, n)
        for i in range(4):
            own, others = (mixture[i] == image[i]).all(0), (mixture[i] == image[i ^ 1]).all(0)
            assert (own ^ others).all()
            rows, columns = others.any(1), others.any(0)
            assert others.sum() == rows.sum() * columns.sum(), "a rectangle"
            assert target["share"][i].item() == pytest.approx(own.float().mean().item())


@pytest.mark.parametrize("n", range(6))
def test_parts_mixed_apart_equal_the_whole(n):
    mix = Mix(Augment(mixup=0.8, cutmix=1.0, mix=0.8))
    image, label = batch(10)
    whole, label_shares = mixed(mix, image, label, n)
    for cuts in ((2, 4, 4), (6, 4), (2,) * 5):
        parts = [
            mixed(mix, a, b, n) for a, b in zip(image.split(cuts), label.split(cuts), strict=True)
        ]
        assert torch.equal(whole, torch.cat([x for x, _ in parts]))
        for key in label_shares:
            assert torch.equal(label_shares[key], torch.cat([t[key] for _, t in parts]))


@pytest.mark.parametrize("B", [1, 3, 7])
def test_the_last_of_an_odd_batch_stays_itself(B):
    image, label = batch(B, (32, 24))
    for options in ({"mixup": 0.8}, {"cutmix": 1.0}):
        mixture, target = mixed(Mix(Augment(**options)), image, label, 3)
        assert torch.equal(mixture[-1], image[-1])
        assert target["share"][-1] == 1
        assert target["other"][-1] == label[-1]
        assert all(not torch.equal(mixture[i], image[i]) for i in range(B - 1))


def test_how_often_what_is_mixed():
    image, label = batch(2, (16, 16))
    mix = Mix(Augment(mixup=0.8, cutmix=1.0, switch=0.25, mix=0.6))
    kinds = {"none": 0, "cut": 0, "mixed": 0}
    for n in range(600):
        mixture, target = mixed(mix, image, label, n)
        if target["share"][0] == 1:
            kinds["none"] += 1
        elif (mixture[0] == image[0]).any() or (mixture[0] == image[1]).any():
            kinds["cut"] += 1
        else:
            kinds["mixed"] += 1
    for kind, share in (("none", 0.4), ("cut", 0.15), ("mixed", 0.45)):
        assert kinds[kind] / 600 == pytest.approx(share, abs=4 * math.sqrt(0.25 / 600)), kinds


def test_shares_are_distributed_as_timms():
    """The same beta distributions, and boxes cut off at the border alike."""
    image, label = batch(2, (32, 32))
    for ours, theirs in (({"mixup": 0.8}, (0.8, 0.0)), ({"cutmix": 1.0}, (0.0, 1.0))):
        mix = Mix(Augment(**ours))
        a = [mixed(mix, image, label, n)[1]["share"][0].item() for n in range(1500)]
        np.random.seed(0)
        timm = Mixup(*theirs, label_smoothing=0, num_classes=12)
        b = [timm(image.clone(), label - 10)[1][0, 0].item() for _ in range(1500)]
        gap = np.abs(
            np.searchsorted(np.sort(a), np.linspace(0, 1, 50)) / 1500
            - np.searchsorted(np.sort(b), np.linspace(0, 1, 50)) / 1500
        )
        assert gap.max() < 1.95 * math.sqrt(2 / 1500)  # Kolmogorov and Smirnov, one in a thousand


def test_chance_comes_from_the_seed_alone():
    image, label = batch(4)
    mix = Mix(Augment(mixup=0.8, cutmix=1.0))
    states = np.random.get_state()[1].copy(), torch.get_rng_state()
    mixtures = [mixed(mix, image, label, n)[0] for n in (1, 2, 1)]
    assert torch.equal(mixtures[0], mixtures[2])
    assert not torch.equal(mixtures[0], mixtures[1])
    assert (np.random.get_state()[1] == states[0]).all()
    assert torch.equal(torch.get_rng_state(), states[1])

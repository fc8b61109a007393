"""Image and mask move together; an evaluated mask is not touched."""

import pickle

import numpy as np
import pytest
import torch
from PIL import Image

from saccade.data.masks import IGNORED, augment
from saccade.data.masks.augment import MaskCrop, MaskResize, fitted
from saccade.recipes import book
from saccade.recipes.segment import MaskAugment, MaskTest
from tests.data.scenes import COLOURS, scene

GREY = (0.5, 0.5, 0.5), (1.0, 1.0, 1.0)


def pair(H=60, W=90):
    """A picture that is its mask: class c is painted in colour c."""
    _, mask = scene(np.random.default_rng(3), H, W)
    return Image.fromarray(COLOURS[mask].astype(np.uint8)), mask


def classes_of(image):
    """The class whose colour is nearest to each pixel's."""
    pixels = (image.permute(1, 2, 0) + 0.5) * 255
    apart = (pixels[:, :, None] - torch.tensor(COLOURS, dtype=torch.float32)).norm(dim=-1)
    return apart.argmin(-1)


@pytest.mark.parametrize("seed", range(6))
def test_the_mask_follows_the_image(seed):
    torch.manual_seed(seed)
    photo, mask = pair()
    transform = augment.train(MaskAugment(short=60, crop=64, scale=(0.7, 2.0)), *GREY)
    image, target = transform(photo, mask)
    assert image.shape == (3, 64, 64)
    assert target["mask"].shape == (64, 64)
    assert target["mask"].dtype == torch.uint8
    assert type(image) is type(target["mask"]) is torch.Tensor
    known = target["mask"] != IGNORED
    agree = classes_of(image)[known] == target["mask"][known].long()
    assert agree.float().mean() > 0.93, "all but the blended borders"
    beyond = image[:, ~known]
    assert (beyond.abs() < 0.003).all(), "there, the mean colour in whole numbers"


def test_flips_and_crops_are_drawn_anew_and_come_again():
    photo, mask = pair()
    transform = augment.train(MaskAugment(short=60, crop=32, jitter=0.3), *GREY)

    def drawn(seed):
        torch.manual_seed(seed)
        return transform(photo, mask)

    assert torch.equal(drawn(1)[0], drawn(1)[0])
    assert torch.equal(drawn(1)[1]["mask"], drawn(1)[1]["mask"])
    assert not torch.equal(drawn(1)[0], drawn(2)[0])


def test_sizes():
    assert fitted((360, 480), 512, 2048) == (512, 683)
    assert fitted((100, 1000), 512, 2048) == (205, 2048)
    assert fitted((3, 1000), 512, 2048) == (32, 2048)
    torch.manual_seed(0)
    photo, mask = pair(60, 90)
    rescale = MaskResize(30, 60, (0.5, 2.0))
    image = torch.from_numpy(np.array(photo)).permute(2, 0, 1)
    sides = {rescale(image, torch.from_numpy(mask))[0].shape[1] for _ in range(40)}
    assert min(sides) == 32  # the least that a network is shown
    assert max(sides) in range(50, 61)


def test_a_square_of_one_class_is_drawn_again():
    mask = torch.zeros(64, 256, dtype=torch.uint8)
    mask[:, 200:] = 1
    image = torch.zeros(3, 64, 256, dtype=torch.uint8)
    for single, least in ((0.75, 30), (1.0, 0)):
        torch.manual_seed(0)
        cut = MaskCrop(64, single, (0, 0, 0))
        mixed = sum(len(cut(image, mask)[1].unique()) == 2 for _ in range(40))
        assert mixed >= least
        assert single < 1 or mixed < 25


def test_an_evaluated_mask_is_the_one_on_disk():
    photo, mask = pair(61, 90)
    transform = augment.test(MaskTest(short=40, long=50), *GREY)
    image, target = transform(photo, mask)
    assert image.shape == (3, 34, 50)
    assert np.array_equal(target["mask"].numpy(), mask)
    assert torch.equal(transform(photo), image)


RECIPES = [n for n, r in book.RECIPES.items() if isinstance(r.augment, MaskAugment)]


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_can_be_built_and_sent_to_workers(name):
    recipe = book.RECIPES[name]
    photo, mask = pair()
    for transform in (
        augment.train(recipe.augment, *GREY), augment.test(recipe.test, *GREY),
    ):  # fmt: skip
        again = pickle.loads(pickle.dumps(transform))
        torch.manual_seed(1)
        image, _ = transform(photo, mask)
        torch.manual_seed(1)
        assert torch.equal(image, again(photo, mask)[0])


def test_the_steps_say_what_they_do():
    transform = augment.train(MaskAugment(jitter=0.1), *GREY)
    assert transform.names == ["resize", "crop", "flip", "jitter"]
    assert "MaskResize(short=512, long=2048, scale=(0.5, 2.0))" in repr(transform)
    assert "MaskTestTransform(short=512" in repr(augment.test(MaskTest(), *GREY))
    assert augment.train(MaskAugment(flip=0.0), *GREY).names == ["resize", "crop"]

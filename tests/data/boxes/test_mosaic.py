import pickle

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import tv_tensors

from saccade.data.boxes import augment
from saccade.data.boxes.mosaic import Gathering, mixup, mosaic
from saccade.data.loader import Loader
from saccade.recipes import book
from saccade.recipes.detect import BoxAugment

BLACK = (0, 0, 0)
PLAIN = (0.0,) * 3, (1.0,) * 3


def painted(grey, H=40, W=52, seed=0):
    """A rectangle of a grey on black, its box and its mask."""
    chance = np.random.default_rng((grey, seed))
    x0, y0 = int(chance.integers(0, W - 8)), int(chance.integers(0, H - 8))
    x1, y1 = int(chance.integers(x0 + 4, W + 1)), int(chance.integers(y0 + 4, H + 1))
    pixels = torch.zeros(3, H, W, dtype=torch.uint8)
    pixels[:, y0:y1, x0:x1] = grey
    kind = tv_tensors.BoundingBoxes
    boxes = kind(torch.tensor([[x0, y0, x1, y1]]).float(), format="XYXY", canvas_size=(H, W))
    target = {
        "boxes": boxes, "labels": torch.tensor([grey]), "masks": tv_tensors.Mask(pixels[:1] > 0),
    }  # fmt: skip
    return tv_tensors.Image(pixels), target


def agree(image, target):
    """Every pixel of a grey lies in its box, the box is no larger, and the mask says the same."""
    for box, grey, mask in zip(target["boxes"].tolist(), target["labels"].tolist(),
                               target["masks"], strict=True):  # fmt: skip
        own = image[0] == grey
        rows, columns = own.any(1).nonzero().flatten(), own.any(0).nonzero().flatten()
        edges = [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]
        assert box == [int(edge) for edge in edges]
        assert torch.equal(mask.bool(), own)


@pytest.mark.parametrize("seed", range(12))
def test_a_mosaic_holds_four_images_and_their_boxes_fit(seed):
    torch.manual_seed(seed)
    sizes = [(40, 52), (30, 90), (64, 20), (25, 25)]
    parts = [painted(60 + 40 * i, *size, seed) for i, size in enumerate(sizes)]
    image, target = mosaic((60, 80), parts, BLACK)
    assert image.shape == (3, 60, 80)
    assert target["masks"].shape == (len(target["boxes"]), 60, 80)
    agree(image, target)
    gone = {60, 100, 140, 180} - set(target["labels"].tolist())
    for grey in gone:  # cut away but for a rest
        _, whole = parts[(grey - 60) // 40]
        assert int((image[0] == grey).sum()) < 0.11 * int(whole["masks"].sum())


def test_all_quarters_meet_in_a_point():
    """Images that are large enough leave no place free, and each is in its own corner."""
    torch.manual_seed(3)
    sheets = []
    for grey in (10, 20, 30, 40):
        _, target = painted(99, 100, 100)
        sheets.append(
            (tv_tensors.Image(torch.full((3, 100, 100), grey, dtype=torch.uint8)), target)
        )
    image, _ = mosaic((50, 70), sheets, BLACK)
    assert image[0, 0, 0] == 10
    assert image[0, 0, -1] == 20
    assert image[0, -1, 0] == 30
    assert image[0, -1, -1] == 40
    assert (image > 0).all()


@pytest.mark.parametrize("size", [(40, 52), (20, 90), (90, 90)])
def test_mixup_shows_both_with_their_boxes(size):
    torch.manual_seed(1)
    image, target = mixup(painted(100), painted(201, *size), BLACK)
    assert image.shape == (3, 40, 52)
    bright = image[0] > 0
    union = torch.zeros(40, 52, dtype=torch.bool)
    for (x0, y0, x1, y1), mask in zip(target["boxes"].int().tolist(), target["masks"], strict=True):
        union[y0:y1, x0:x1] = True
        assert bright[y0:y1, x0:x1].all()
        assert int(mask.sum()) == (y1 - y0) * (x1 - x0)
    assert target["labels"].tolist()[0] == 100
    if len(target["boxes"]) == 2 and size == (40, 52):  # of a larger one, a rest may have no box
        assert torch.equal(bright, union)


# -- through transform and loader -----------------------------------------------------------


class Painted:
    """Six pictures of one rectangle each; one of them cannot be read."""

    def __init__(self, unreadable=None):
        self.unreadable = unreadable

    def __len__(self):
        return 6

    def read(self, i):
        from saccade.data.picture import Unreadable

        if i == self.unreadable:
            raise Unreadable(self.name(i), "damaged")
        image, target = painted(40 + 30 * i, 48, 64)
        photo = Image.fromarray(image.permute(1, 2, 0).numpy())
        boxes = target["boxes"].as_subclass(torch.Tensor)
        return photo, {
            "boxes": boxes, "labels": torch.tensor([i]), "crowd": torch.tensor([False]),
            "area": torch.ones(1), "id": i,
        }  # fmt: skip

    def name(self, i):
        return str(i)


FOUR = BoxAugment(
    short=(48,), long=64, flip=0.5, mosaic=0.7, mixup=0.4, together=2, zoom=(0.8, 1.2), rotate=5
)


def epoch(n, images=None, workers=0, start=0, **loader):
    transform = augment.train(FOUR, *PLAIN)
    steps = Loader(
        images or Painted(), transform, batch=2, workers=workers, seed=5, limit=0.5, **loader
    )
    try:
        return [parts[0] for parts in steps.epoch(n, start)]
    finally:
        steps.close()


def test_an_epoch_is_the_same_however_it_is_read():
    whole = epoch(1)
    for other in (epoch(1, workers=1), [*epoch(1)[:1], *epoch(1, start=1)], epoch(1, part=2)):
        for a, b in zip(whole, other, strict=True):
            assert torch.equal(a.image, b.image)
            assert all(map(torch.equal, a.target["boxes"], b.target["boxes"]))
    assert not torch.equal(epoch(0)[0].image, whole[0].image)


def test_images_are_put_together_in_the_first_epochs_alone():
    def most(n):
        return max(len(labels) for batch in epoch(n) for labels in batch.target["labels"])

    assert most(0) > 1 or most(1) > 1
    assert most(2) == most(3) == 1


def test_another_takes_the_place_of_one_that_cannot_be_read():
    for n in range(2):
        for batch in epoch(n, Painted(unreadable=4)):
            assert 4 not in torch.cat(list(batch.target["labels"])).tolist()


def test_how_often_and_how_many():
    torch.manual_seed(0)
    gathering = Gathering(0.25, 0.5, 3)
    counts = [len(gathering.others(10, 0)) for _ in range(2000)]
    for count, share in ((0, 0.375), (1, 0.375), (3, 0.125), (4, 0.125)):
        assert counts.count(count) / 2000 == pytest.approx(share, abs=0.04)
    assert gathering.others(10, 3) == []
    assert not Gathering(0.0, 0.0)
    assert max(max(gathering.others(4, 0), default=0) for _ in range(200)) == 3


def test_it_is_said_and_sent():
    transform = pickle.loads(pickle.dumps(augment.train(FOUR, *PLAIN)))
    assert transform.names == ["resize", "warp", "flip", "mosaic (70%)", "mixup (40%)"]
    assert "Gathering(mosaic=0.7" in repr(transform)


def test_the_papers_recipes_do_none_of_it():
    plain = BoxAugment()
    new = ("mosaic", "mixup", "rotate", "shift", "zoom", "shear", "perspective", "hsv", "rare")
    papers = [r for word in ("sasa", "qna", "linglo") for r in book.of_family(word).values()]
    boxes = [r.augment for r in papers if isinstance(r.augment, BoxAugment)]
    assert len(boxes) > 6
    for one in boxes:
        assert all(getattr(one, name) == getattr(plain, name) for name in new)

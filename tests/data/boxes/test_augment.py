import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision import tv_tensors

from saccade.data.boxes import augment
from saccade.data.loader import Loader
from saccade.recipes import book
from saccade.recipes.detect import BoxAugment, BoxTest

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)
PLAIN = (0.0,) * 3, (1.0,) * 3
FULL = BoxAugment(short=(24, 32), long=60, scale=(0.5, 2.0), crop=30, flip=0.5, jitter=0.3)


def noise(W=50, H=37):
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (H, W, 3), np.uint8))


def annotated(boxes, crowd=None):
    boxes = torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4)
    n = len(boxes)
    return {
        "boxes": boxes,
        "labels": torch.arange(n),
        "crowd": torch.tensor([False] * n if crowd is None else crowd, dtype=torch.bool),
        "area": (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]),
        "id": 7,
    }


# -- boxes stay with what they surround -----------------------------------------------------


@st.composite
def scenes(draw):
    """A rectangle of whole pixels in a picture, and what is done to both."""
    W, H = draw(st.integers(2, 70)), draw(st.integers(2, 70))
    x0, y0 = draw(st.integers(0, W - 1)), draw(st.integers(0, H - 1))
    x1, y1 = draw(st.integers(x0 + 1, W)), draw(st.integers(y0 + 1, H))
    low = draw(st.floats(0.3, 1.5))
    how = {
        "short": tuple(draw(st.lists(st.integers(8, 90), min_size=1, max_size=3))),
        "long": draw(st.integers(20, 130)),
        "scale": (low, draw(st.floats(low, 2.0))),
        "crop": draw(st.none() | st.integers(5, 80)),
        "flip": draw(st.sampled_from([0.0, 0.5, 1.0])),
    }
    return (W, H), (x0, y0, x1, y1), how, draw(st.integers(0, 10_000))


@given(scenes())
@settings(max_examples=150, deadline=None)
def test_a_rectangle_stays_in_its_box(scene):
    (W, H), box, how, seed = scene
    how = BoxAugment(**how)
    pixels = np.zeros((H, W, 3), np.uint8)
    pixels[box[1] : box[3], box[0] : box[2]] = 255
    torch.manual_seed(seed)
    transform = augment.train(how, *PLAIN)
    x, target = transform(Image.fromarray(pixels), annotated([box]))
    bright = x[0] > 0.51
    rows, columns = bright.any(1).nonzero().flatten(), bright.any(0).nonzero().flatten()
    if not len(target["boxes"]):
        assert how.crop is not None, "only a crop takes boxes away"
        assert min(len(rows), len(columns)) <= 1, "what is left is no pixel wide or high"
        return
    assert target["labels"].tolist() == [0]
    x0, y0, x1, y1 = target["boxes"][0].tolist()
    h, w = bright.shape
    assert 0 <= x0 < x1 <= w
    assert 0 <= y0 < y1 <= h
    for places, low, high in ((columns, x0, x1), (rows, y0, y1)):
        if len(places):  # a pixel's centre; at the border the filter is cut off and leans inwards
            assert low - 0.1 <= places[0] + 0.5
            assert places[-1] + 0.5 <= high + 0.1
    blur = max(1.0, max(how.short) * how.scale[1] / min(W, H))  # a pixel of the picture at most
    if min(x1 - x0, y1 - y0) >= 4 * blur:  # and the box is no larger than what it surrounds
        assert abs(columns[0] - x0) <= blur
        assert abs(columns[-1] + 1 - x1) <= blur
        assert abs(rows[0] - y0) <= blur
        assert abs(rows[-1] + 1 - y1) <= blur


@given(scenes())
@settings(max_examples=50, deadline=None)
def test_sizes_are_what_was_asked(scene):
    (W, H), box, how, seed = scene
    how = BoxAugment(**how)
    torch.manual_seed(seed)
    x, _ = augment.train(how, *PLAIN)(Image.new("RGB", (W, H)), annotated([box]))
    h, w = x.shape[-2:]
    assert x.dtype == torch.float32
    assert x.is_contiguous()
    if how.crop is not None:
        assert max(h, w) <= how.crop
    else:
        assert max(h, w) <= how.long * how.scale[1] + 1
        assert min(h, w) <= max(how.short) * how.scale[1] + 1


# -- what is kept ---------------------------------------------------------------------------


def test_crowds_teach_nothing():
    target = annotated([[1, 2, 9, 9], [3, 3, 20, 30], [5, 5, 9, 30]], crowd=[False, True, False])
    how = BoxAugment(short=(37,), long=100, flip=0.0)
    x, annotation = augment.train(how, MEAN, STD)(noise(), target)
    assert x.shape == (3, 37, 50)
    assert annotation["labels"].tolist() == [0, 2]
    assert annotation["boxes"].tolist() == [[1, 2, 9, 9], [5, 5, 9, 30]]
    assert set(annotation) == {"boxes", "labels"}
    assert type(annotation["boxes"]) is torch.Tensor, "a worker sends it on"


def test_a_crop_takes_boxes_with_their_labels():
    target = annotated([[0, 0, 4, 4], [46, 33, 50, 37], [20, 10, 30, 20], [0, 0, 50, 37]])
    seen = set()
    for seed in range(30):
        torch.manual_seed(seed)
        crop = augment.BoxCrop(12)
        image, annotation = crop(augment._bytes(noise()), _wrapped(target))
        assert image.shape == (3, 12, 12)
        for box, label in zip(
            annotation["boxes"].tolist(), annotation["labels"].tolist(), strict=True
        ):
            seen.add(label)
            assert 0 <= box[0] < box[2] <= 12
            assert label != 3 or box == [0, 0, 12, 12]
        assert 3 in annotation["labels"]
    assert seen == {0, 1, 2, 3}


def _wrapped(target):
    boxes = augment.tv_tensors.BoundingBoxes(target["boxes"], format="XYXY", canvas_size=(37, 50))
    return {"boxes": boxes, "labels": target["labels"]}


def test_small_boxes_that_are_whole_stay():
    how = BoxAugment(short=(12,), long=100, crop=6, flip=0.0)
    target = annotated([[20, 10, 20.5, 10.5]])  # a sixth of a pixel after the resize
    targets = [augment.train(how, MEAN, STD)(noise(), target)[1] for _ in range(40)]
    assert {len(f["boxes"]) for f in targets} == {0, 1}, "in or out, but not cut"
    for f in targets:
        for box in f["boxes"].tolist():
            assert box[2] - box[0] == pytest.approx(0.5 * 16 / 50, rel=0.02)


def test_no_boxes_at_all():
    for seed in range(10):
        torch.manual_seed(seed)
        _, annotation = augment.train(FULL, MEAN, STD)(noise(), annotated([]))
        assert annotation["boxes"].shape == (0, 4)
        assert annotation["labels"].shape == (0,)
        assert annotation["labels"].dtype == torch.int64


def test_evaluation_leaves_the_annotation_alone():
    target = annotated([[1, 2, 9, 9], [3, 3, 20, 30]], crowd=[False, True])
    transform = augment.test(BoxTest(short=74, long=1000), MEAN, STD)
    x, annotation = transform(noise(), target)
    assert x.shape == (3, 74, 100)
    assert annotation["original"].tolist() == [37, 50]
    assert annotation["original"].dtype == torch.int64
    for key in target:
        assert annotation[key] is target[key]
    assert torch.equal(transform(noise()), x), "without a target, the tensor alone"
    assert "original" not in target


@pytest.mark.parametrize(
    ("side", "short", "long", "becomes"),
    [
        ((50, 37), 74, 1000, (74, 100)),
        ((37, 50), 74, 1000, (100, 74)),
        ((100, 50), 80, 120, (60, 120)),
        ((640, 480), 800, 1333, (800, 1067)),
        ((640, 427), 800, 1333, (800, 1199)),
        ((9000, 3), 800, 1333, (32, 1333)),
        ((1, 1), 800, 1333, (800, 800)),
    ],
)
def test_short_and_long_sides(side, short, long, becomes):
    x = augment.test(BoxTest(short=short, long=long), MEAN, STD)(Image.new("RGB", side))
    assert x.shape[-2:] == becomes


def test_pixels_are_pils():
    """Antialiased bilinear, up and down; bytes are rounded once more, so by one of 255."""
    for side in ((25, 18), (120, 90)):
        shape = augment.test(BoxTest(short=side[1], long=500), *PLAIN)
        x = shape(noise())
        theirs = noise().resize((x.shape[2], x.shape[1]), Image.Resampling.BILINEAR)
        gap = (x - torch.tensor(np.asarray(theirs) / 255).permute(2, 0, 1)).abs().max()
        assert gap < 1.01 / 255


def test_normalised():
    x = augment.test(BoxTest(short=37, long=50), MEAN, STD)(noise())
    expected = np.asarray(noise()) / 255
    for c in range(3):
        reference = torch.tensor((expected[..., c] - MEAN[c]) / STD[c])
        torch.testing.assert_close(x[c].double(), reference, atol=1e-5, rtol=1e-5)


# -- what is said, and where chance comes from ----------------------------------------------


def test_what_is_done_is_said():
    assert augment.train(FULL, MEAN, STD).names == [
        "resize", "multiscale jitter", "crop", "flip", "colour jitter",
    ]  # fmt: skip
    assert augment.train(BoxAugment(flip=0.0), MEAN, STD).names == ["resize"]
    several = BoxAugment(short=(480, 512))
    assert augment.train(several, MEAN, STD).names == ["resize", "multiscale jitter", "flip"]
    assert augment.test(BoxTest(), MEAN, STD).names == ["resize"]
    assert "Crop(30)" in repr(augment.train(FULL, MEAN, STD))
    assert "short=(800,), long=1333" in repr(augment.test(BoxTest(), MEAN, STD))


def test_fields_reach_their_steps():
    resize, crop, flip, jitter = augment.train(FULL, MEAN, STD).steps
    assert (resize.short, resize.long, resize.scale) == ((24, 32), 60, (0.5, 2.0))
    assert (crop.size, flip.p, jitter.contrast) == (30, 0.5, (0.7, 1.3))


def test_how_often_each_size_is_drawn():
    resize = augment.BoxResize((10, 20, 40), 1000)
    drawn = [min(resize.side(100, 200)) for _ in range(600)]
    for side in (10, 20, 40):
        assert drawn.count(side) == pytest.approx(200, abs=50)
    free = augment.BoxResize((100,), 1000, (0.5, 2.0))
    drawn = sorted(free.side(100, 150)[0] for _ in range(600))
    assert drawn[0] < 60
    assert drawn[-1] > 190
    assert drawn[300] == pytest.approx(125, abs=12)


@pytest.mark.parametrize("wrong", [{"short": ()}, {"scale": (0.0, 1.0)}, {"scale": (2.0, 1.0)}])
def test_sizes_that_are_none(wrong):
    with pytest.raises(ValueError, match=r"augment.short and augment.scale: .* try \(800,\)"):
        augment.train(BoxAugment(**wrong), MEAN, STD)


def test_chance_comes_from_the_seed_alone():
    target = annotated([[1, 2, 30, 30]])
    transform = augment.train(FULL, MEAN, STD)
    there = pickle.loads(pickle.dumps(transform))
    for n in range(5):
        torch.manual_seed(n)
        x, a = transform(noise(), target)
        torch.manual_seed(n)
        y, b = there(noise(), target)
        assert torch.equal(x, y)
        assert torch.equal(a["boxes"], b["boxes"])


class Scenes:
    """Pictures with 0 to 3 boxes."""

    def __len__(self):
        return 8

    def read(self, i):
        return noise(40 + i, 30), annotated([[k, k, k + 9, k + 9] for k in range(i % 4)])

    def name(self, i):
        return str(i)


@pytest.mark.parametrize("workers", [0, 1])
def test_through_the_loader(workers):
    how = BoxTest(short=30, long=60)
    loader = Loader(
        Scenes(), augment.test(how, MEAN, STD), batch=4, shuffle=False, whole=False,
        workers=workers,
    )  # fmt: skip
    try:
        for step, parts in enumerate(loader.epoch(0)):
            target = parts[0].target
            assert [len(b) for b in target["boxes"]] == [0, 1, 2, 3]
            widths = [40 + 4 * step + k for k in range(4)]
            assert target["original"].tolist() == [[30, w] for w in widths]
            assert target["id"].tolist() == [7] * 4
    finally:
        loader.close()


def test_a_strip_stays_wide_enough_for_a_network():
    strip = Image.new("RGB", (1000, 4))
    boxes = torch.tensor([[100.0, 1, 200, 3]])
    target = {"boxes": boxes, "labels": torch.tensor([0]), "crowd": torch.tensor([False])}
    image, annotation = augment.train(BoxAugment(short=(64,), long=96, jitter=0, flip=0), *PLAIN)(
        strip, target
    )
    assert image.shape == (3, 32, 96)
    assert torch.allclose(annotation["boxes"], torch.tensor([[9.6, 8, 19.2, 24]]))
    assert augment.test(BoxTest(short=64, long=96), *PLAIN)(strip).shape == (3, 32, 96)


# -- DETR's random part ---------------------------------------------------------------------


def test_half_of_detrs_images_are_parts():
    """Half of the images: short side to 400, 500 or 600, a part of 384 to 600 cut out, resized."""
    recipe = book.find("qna_t_detr").augment
    transform = augment.train(recipe, *PLAIN)
    parts, wholes = [], []
    for seed in range(120):
        torch.manual_seed(seed)
        step, resize = transform.steps[:2]
        image, target = torch.zeros(3, 240, 320, dtype=torch.uint8), {"boxes": corners(320, 240)}
        cut, _ = step(image, {**target, "labels": torch.zeros(1)})
        (wholes if cut.shape == image.shape else parts).append(cut.shape[1:])
        if cut.shape != image.shape:
            seen, _ = resize(cut, {})
            assert min(seen.shape[1:]) in recipe.short or max(seen.shape[1:]) == recipe.long
    assert 45 <= len(parts) <= 75
    sides = [side for shape in parts for side in shape]
    assert 384 <= min(sides) < 400
    assert 580 < max(sides) <= 600


def corners(W, H):
    return tv_tensors.BoundingBoxes([[0.0, 0.0, W, H]], format="XYXY", canvas_size=(H, W))


def test_boxes_follow_detrs_part():
    """A rectangle of its own colour stays in its box, through part, resize and flip."""
    photo = Image.new("RGB", (320, 240))
    photo.paste((255, 0, 0), (100, 60, 180, 140))
    recipe = replace(book.find("qna_t_detr").augment, part=1.0)
    transform = augment.train(recipe, *PLAIN)
    left = 0
    for seed in range(12):
        torch.manual_seed(seed)
        x, target = transform(photo, annotated([[100, 60, 180, 140]]))
        if not len(target["boxes"]):
            continue
        left += 1
        red = (x[0] > 0.5).nonzero()
        box = torch.cat([red.amin(0).flip(0), red.amax(0).flip(0) + 1])
        assert (box - target["boxes"][0]).abs().max() <= 3
    assert left > 6

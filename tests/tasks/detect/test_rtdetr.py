"""RT-DETR's losses by their names, what its queries say, and that it learns."""

import pytest
import torch
from torchvision.ops import box_iou

from saccade.models import rtdetr
from saccade.recipes.detect import RTDetr
from saccade.tasks.detect.rtdetr import RTDetrTask

pytest.importorskip("transformers")
CLASSES = ("cat", "dog", "owl")


def task(**words):
    torch.manual_seed(0)
    settings = RTDetr(
        **{
            "dim": 32, "decoder": 2, "heads": 2, "hidden": 32, "queries": 9, "levels": 2,
            "expand": 0.5, "denoising": 8, **words,
        }
    )  # fmt: skip
    return RTDetrTask(rtdetr.build("linglo_nano", 3, settings), CLASSES, settings)


def scene():
    boxes = [torch.tensor([[10.0, 20, 60, 50], [0, 0, 30, 30]]), torch.zeros(0, 4)]
    labels = [torch.tensor([2, 0]), torch.zeros(0, dtype=torch.int64)]
    size = torch.tensor([[60, 90], [50, 40]])
    return torch.randn(2, 3, 60, 90), size, {"boxes": boxes, "labels": labels}


def test_losses_are_transformers_own():
    mine = task().train()
    image, size, target = scene()
    inputs = mine.inputs(image, size, target)
    shares = inputs[2][0]["boxes"] * torch.tensor([96.0, 64, 96, 64])  # of 60 x 90, filled up
    torch.testing.assert_close(shares[0], torch.tensor([35.0, 35, 50, 30]))
    torch.manual_seed(1)
    terms = mine.loss(mine(*inputs), target)
    assert list(terms) == ["classes", "boxes", "overlap", "shaken"]
    torch.manual_seed(1)
    theirs = mine.net.detr(mine.net.filled(image), labels=inputs[2])
    torch.testing.assert_close(sum(terms.values()), theirs.loss)
    sum(terms.values()).backward()
    assert mine.net.detr.model.denoising_class_embed.weight.grad.abs().sum() > 0


def test_without_shaken_boxes():
    mine = task(denoising=0)
    image, size, target = scene()
    terms = mine.loss(mine(*mine.inputs(image, size, target)), target)
    assert list(terms) == ["classes", "boxes", "overlap"]


def test_a_batch_without_boxes_has_the_same_terms_and_gradients():
    """Processes add up their terms one by one, and wait for every parameter's gradient."""
    mine = task()
    image, size, target = scene()
    empty = {"boxes": [target["boxes"][1]] * 2, "labels": [target["labels"][1]] * 2}
    terms = mine.loss(mine(*mine.inputs(image, size, empty)), empty)
    assert list(terms) == ["classes", "boxes", "overlap", "shaken"]
    assert terms["boxes"] == terms["overlap"] == terms["shaken"] == 0
    assert terms["classes"] > 0
    sum(terms.values()).backward()
    resting = {n for n, p in mine.net.named_parameters() if p.grad is None}
    assert all(n.startswith("detr.model.backbone.model.norms") for n in resting), resting


@torch.no_grad()
def test_what_is_found_lies_in_pixels_of_the_picture():
    mine = task(queries=2, most=3, score=0.2).eval()
    image, size, _ = scene()
    output = mine(image, size)
    output["boxes"] = torch.tensor([[[0.5, 0.5, 0.25, 0.5], [0.0, 0.0, 0.5, 0.5]]] * 2)
    output["logits"] = torch.tensor([[[-9.0, 2.0, -9.0], [1.0, -9.0, 0.0]]] * 2)
    first, second = mine.predict(output, [(120, 180), (50, 40)])
    assert first.labels.tolist() == [1, 0, 2]  # two of one query: each class by itself
    assert first.scores.tolist() == pytest.approx([0.8808, 0.7311, 0.5], rel=1e-3)
    # the whole is 64 x 96, of which 60 x 90 are image; the picture is twice that
    assert first.boxes[0].tolist() == pytest.approx([72, 32, 120, 96])
    assert first.boxes[1].tolist() == pytest.approx([0, 0, 48, 32])
    assert (second.boxes <= torch.tensor([40.0, 50, 40, 50])).all()
    assert len(mine.predict(output, None, score=0.6)[0].scores) == 2
    # a graph's outputs, of an image without padding
    raw = {"logits": output["logits"], "boxes": output["boxes"], "size": size}
    assert torch.equal(mine.predict(raw, [(120, 180), (50, 40)])[0].boxes, first.boxes)


def test_numbers_that_are_lost_are_the_loops_to_tell():
    mine = task()
    image, size, target = scene()
    output = mine(*mine.inputs(image, size, target))
    output["boxes"] = output["boxes"] * float("nan")
    assert all(not term.isfinite() for term in mine.loss(output, target).values())


@pytest.mark.slow
def test_it_learns_one_square():
    mine = task(denoising=10).train()
    image = torch.zeros(1, 3, 64, 64)
    image[..., 16:48, 8:40] = 2.0
    image = image.repeat(2, 1, 1, 1)
    box, size = torch.tensor([[8.0, 16, 40, 48]]), torch.tensor([[64, 64]] * 2)
    target = {"boxes": [box] * 2, "labels": [torch.tensor([1])] * 2}
    optimiser = torch.optim.AdamW(mine.parameters(), lr=2e-3)
    for _ in range(40):
        terms = mine.loss(mine(*mine.inputs(image, size, target)), target)
        optimiser.zero_grad()
        sum(terms.values()).backward()
        optimiser.step()
    mine.eval()
    with torch.no_grad():
        boxes, labels, _ = mine.predict(mine(image, size))[0]
    assert labels[0] == 1
    assert box_iou(boxes[:1], box).item() > 0.7

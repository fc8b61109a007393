"""DETR's losses by their names, and what its queries found."""

import pytest
import torch
from torch import nn
from torchvision.ops import box_iou

from saccade.models import detr
from saccade.recipes.detect import Detr
from saccade.tasks.detect.detr import DetrTask

pytest.importorskip("transformers")
CLASSES = ("cat", "dog", "owl")


def task(**words):
    settings = Detr(
        **{"dim": 32, "encoder": 1, "decoder": 3, "heads": 4, "hidden": 64, "queries": 6, **words}
    )
    net = detr.build("qna_nano", 3, settings)
    return DetrTask(net, CLASSES, settings)


def scene():
    boxes = [torch.tensor([[10.0, 20, 60, 50], [0, 0, 30, 30]]), torch.zeros(0, 4)]
    labels = [torch.tensor([2, 0]), torch.zeros(0, dtype=torch.int64)]
    size = torch.tensor([[64, 96], [50, 40]])
    return torch.randn(2, 3, 64, 96), size, {"boxes": boxes, "labels": labels}


@pytest.mark.parametrize("auxiliary", [True, False])
def test_losses_are_transformers_own(auxiliary):
    mine = task(auxiliary=auxiliary).eval()
    image, size, target = scene()
    terms = mine.loss(mine(image, size), target)
    assert list(terms) == ["classes", "boxes", "overlap"]
    shares = target["boxes"][0] / torch.tensor([96.0, 64, 96, 64])
    centre = torch.cat(((shares[:, :2] + shares[:, 2:]) / 2, shares[:, 2:] - shares[:, :2]), 1)
    labels = [
        {"class_labels": target["labels"][0], "boxes": centre},
        {"class_labels": target["labels"][1], "boxes": torch.zeros(0, 4)},
    ]
    theirs = mine.net.detr(image, pixel_mask=detr.masked(image, size), labels=labels)
    torch.testing.assert_close(sum(terms.values()), theirs.loss, atol=1e-5, rtol=1e-5)
    layers = 3 if auxiliary else 1
    boxes = [v for k, v in theirs.loss_dict.items() if k.startswith("loss_bbox")]
    assert len(boxes) == layers
    torch.testing.assert_close(terms["boxes"], 5 * sum(boxes), atol=1e-5, rtol=1e-5)
    assert mine.net.detr.config.eos_coefficient == 0.1


def test_images_without_boxes():
    mine = task()
    image, size, target = scene()
    empty = {"boxes": [target["boxes"][1]] * 2, "labels": [target["labels"][1]] * 2}
    terms = mine.loss(mine(image, size), empty)
    assert terms["boxes"] == terms["overlap"] == 0
    sum(terms.values()).backward()
    assert mine.net.detr.class_labels_classifier.weight.grad.abs().sum() > 0


def test_more_boxes_than_queries():
    mine = task(queries=2)
    image, size, _ = scene()
    corners = torch.rand(2, 5, 2) * 30
    target = {
        "boxes": torch.cat((corners, corners + 5), -1),
        "labels": torch.zeros(2, 5, dtype=int),
    }
    assert all(t.isfinite() for t in mine.loss(mine(image, size), target).values())


def test_parts_with_as_many_boxes_add_up():
    mine = task().eval()
    image, _, target = scene()
    target = {k: [v[0], v[0]] for k, v in target.items()}
    whole = mine.loss(mine(image), target)
    parts = [
        mine.loss(mine(image[i : i + 1]), {k: v[i : i + 1] for k, v in target.items()})
        for i in range(2)
    ]
    for name, value in whole.items():
        mean = (parts[0][name] + parts[1][name]) / 2
        torch.testing.assert_close(mean, value, atol=1e-5, rtol=1e-4)


def test_what_was_found_in_pixels_of_the_picture():
    mine = task()
    logits = torch.full((2, 6, 4), -9.0)
    logits[..., 3] = 0.0
    logits[0, 4, 1], logits[0, 2, 0] = 3.0, 1.0
    boxes = torch.tensor([0.5, 0.5, 0.5, 0.25]).repeat(2, 6, 1)
    boxes[0, 4] = torch.tensor([0.1, 0.5, 0.4, 0.2])
    output = {"logits": logits, "boxes": boxes, "size": torch.tensor([[64, 96], [50, 40]])}
    detections = mine.predict(output, [(100, 200), (50, 40)])[0]
    assert len(detections.boxes) == 6
    assert detections.labels[:2].tolist() == [1, 0]
    assert detections.scores[0].item() == pytest.approx(logits[0, 4].softmax(-1)[1].item())
    torch.testing.assert_close(
        detections.boxes[0], torch.tensor([0.0, 40.0, 60.0, 60.0])
    )  # clipped
    torch.testing.assert_close(detections.boxes[1], torch.tensor([50.0, 37.5, 150.0, 62.5]))
    assert (detections.scores[:-1] >= detections.scores[1:]).all()
    mine.score = 0.5
    sure = mine.predict(output)
    assert [len(f.boxes) for f in sure] == [2, 0]
    assert sure[0].boxes.shape[1] == 4


def test_nothing_of_the_criterion_is_trained_or_saved():
    mine = task()
    assert all(name.startswith("net.detr.") for name in mine.state_dict())
    assert mine.no_weight_decay() <= dict(mine.named_parameters()).keys()


@pytest.mark.slow
def test_it_learns_one_square():
    torch.manual_seed(0)
    mine = task(dropout=0.0, decoder=2)
    image = torch.zeros(1, 3, 64, 64)
    image[:, :, 10:40, 20:60] = 1.0
    target = {"boxes": torch.tensor([[[20.0, 10, 60, 40]]]), "labels": torch.tensor([[1]])}
    optimiser = torch.optim.AdamW(mine.parameters(), lr=1e-3)
    for _ in range(60):
        loss = sum(mine.loss(mine(image), target).values())
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(mine.parameters(), 0.5)
        optimiser.step()
    detections = mine.eval().predict(mine(image))[0]
    assert detections.labels[0] == 1
    assert box_iou(detections.boxes[:1], target["boxes"][0]).item() > 0.7


def test_numbers_that_are_lost_are_the_loops_to_tell():
    detr = task()
    image, size, target = scene()
    terms = detr.loss(detr(image * torch.nan, size), target)
    assert all(value.isnan() for value in terms.values())
    sum(terms.values()).backward()

"""The dense detector's losses and boxes, held against torchvision's RetinaNet."""

import math

import pytest
import torch
from torch import nn
from torchvision.models.detection import RetinaNet as Theirs
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.retinanet import RetinaNetHead
from torchvision.ops import box_iou

from saccade.models import retinanet
from saccade.recipes.detect import RetinaNet
from saccade.tasks.detect.retinanet import RetinaNetTask

CLASSES = ("cat", "dog", "owl")


def task(**words):
    settings = RetinaNet(dim=32, depth=4, **words)
    net = retinanet.build("linglo_nano", 3, settings)
    return RetinaNetTask(net, CLASSES, settings)


class Levels(nn.Module):
    """Our backbone and pyramid, as torchvision takes one."""

    out_channels = 32

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, image):
        levels = self.net.pyramid(self.net.backbone(image)[-3:])
        return dict(enumerate(levels))


class Ours(AnchorGenerator):
    """Our anchors, as torchvision takes them."""

    def __init__(self, anchors):
        super().__init__()
        self.anchors = anchors

    def num_anchors_per_location(self):
        return [9]

    def forward(self, image_list, feature_maps):
        anchors = self.anchors([tuple(x.shape[2:]) for x in feature_maps])
        return [anchors for _ in image_list.image_sizes]


def as_torchvisions(task):
    net = task.net
    head = RetinaNetHead(32, 9, 3)
    for ours, theirs, last in (
        (net.classify, head.classification_head, head.classification_head.cls_logits),
        (net.locate, head.regression_head, head.regression_head.bbox_reg),
    ):
        for mix, conv in zip(ours.mix, theirs.conv, strict=True):
            conv[0].load_state_dict(mix.state_dict())
        last.load_state_dict(ours.last.state_dict())
    return Theirs(
        Levels(net), 3, min_size=128, max_size=256, image_mean=[0.0] * 3, image_std=[1.0] * 3,
        anchor_generator=Ours(task.anchors), head=head, detections_per_img=100,
    )  # fmt: skip


def scene():
    images = torch.randn(3, 3, 128, 192)
    boxes = [
        torch.tensor([[10.0, 20.0, 60.0, 90.0], [100.0, 10.0, 130.0, 40.0], [3.0, 3.0, 9.0, 7.0]]),
        torch.zeros(0, 4),
        torch.tensor([[0.0, 0.0, 192.0, 128.0]]),
    ]
    labels = [torch.tensor([0, 2, 1]), torch.zeros(0, dtype=torch.int64), torch.tensor([1])]
    return images, {"boxes": boxes, "labels": labels}


def test_losses_are_torchvisions():
    mine = task()
    theirs = as_torchvisions(mine)
    mine.eval()  # no dropped paths
    theirs.train()
    theirs.backbone.eval()
    images, target = scene()
    listed = [
        {"boxes": b, "labels": c} for b, c in zip(target["boxes"], target["labels"], strict=True)
    ]
    expected = theirs(list(images), listed)
    terms = mine.loss(mine(images), target)
    torch.testing.assert_close(terms["classes"], expected["classification"], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(terms["boxes"], expected["bbox_regression"], atol=1e-5, rtol=1e-5)


def test_found_boxes_are_torchvisions():
    mine = task()
    mine.net.classify.last.bias.data += 2.5  # so that thousands are sure enough to be sorted out
    mine.net.locate.last.weight.data *= 0.1
    theirs = as_torchvisions(mine).eval()
    mine.eval()
    images, _ = scene()
    with torch.no_grad():
        expected = theirs(list(images))
        detections = mine.predict(mine(images))
    for a, b in zip(detections, expected, strict=True):
        assert len(a.boxes) == 100
        torch.testing.assert_close(a.boxes, b["boxes"], atol=1e-4, rtol=1e-5)
        torch.testing.assert_close(a.scores, b["scores"], atol=1e-5, rtol=1e-5)
        assert torch.equal(a.labels, b["labels"])


def test_parts_add_up_to_the_batch():
    mine = task().eval()
    images, target = scene()
    whole = mine.loss(mine(images), target)
    parts = [
        mine.loss(mine(images[i : i + 1]), {k: v[i : i + 1] for k, v in target.items()})
        for i in range(3)
    ]
    for name, value in whole.items():
        mean = torch.stack([part[name] for part in parts]).mean()
        torch.testing.assert_close(mean, value, atol=1e-5, rtol=1e-4)


def test_padding_takes_no_part():
    mine = task(score=0.0, most=1000)
    images, target = scene()
    size = torch.tensor([[128, 192], [70, 100], [128, 192]])
    output = mine.eval()(images, size)
    before = mine.loss(output, target)
    x, y = ((output["anchors"][:, i] + output["anchors"][:, i + 2]) / 2 for i in (0, 1))
    beyond = (x >= 100) | (y >= 70)
    louder = output["logits"].clone()
    louder[1, beyond] += 20.0
    after = mine.loss({**output, "logits": louder}, target)
    torch.testing.assert_close(after, before)
    for boxes, labels, scores in mine.predict({**output, "logits": louder}):
        assert len(boxes) == len(labels) == len(scores) > 0
    boxes = mine.predict({**output, "logits": louder})[1].boxes
    assert boxes[:, 0::2].max() <= 100
    assert boxes[:, 1::2].max() <= 70
    assert (boxes[:, 2:] > boxes[:, :2]).all()


def test_boxes_are_found_in_pixels_of_the_picture():
    mine = task().eval()
    mine.net.classify.last.bias.data += 3.0
    images, _ = scene()
    output = mine(images, torch.tensor([[128, 192], [96, 96], [64, 128]]))
    own = mine.predict(output)
    large = mine.predict(output, [(256, 768), (96, 96), (64, 64)])
    for a, b, scale in zip(own, large, ((4, 2), (1, 1), (0.5, 1)), strict=True):
        torch.testing.assert_close(a.boxes * torch.tensor(scale * 2), b.boxes)
        assert torch.equal(a.scores, b.scores)


def test_matching_by_hand():
    mine = task()
    anchors = torch.tensor(
        [[0.0, 0, 10, 10], [0, 0, 10, 6], [0, 0, 10, 4.5], [20, 0, 30, 10], [50, 50, 60, 60]]
    )
    boxes = torch.tensor([[0.0, 0, 10, 10], [24, 0, 44, 20]])
    # itself; 0.6; 0.45, between; 0.136, yet the best of the second box; background
    assert mine.matched(anchors, boxes).tolist() == [0, 0, -2, 1, -1]
    assert mine.matched(anchors, boxes[:0]).tolist() == [-1] * 5


def test_settings_are_used():
    images, target = scene()
    torch.manual_seed(3)
    usual = task().eval()
    output = usual(images)
    loss = usual.loss(output, target)["classes"]
    usual.alpha = 0.75
    assert usual.loss(output, target)["classes"] != loss
    usual.alpha, usual.gamma = 0.25, 0.0
    assert usual.loss(output, target)["classes"] > loss
    louder = {**output, "logits": output["logits"] + 4.0}
    assert all(len(detections.boxes) <= 7 for detections in _with(usual, most=7).predict(louder))
    sure = _with(usual, score=0.6).predict(louder)
    assert all((detections.scores > 0.6).all() for detections in sure)
    apart = _with(usual, score=0.0, overlap=0.0, most=1000).predict(louder)
    for detections in apart:
        for label in range(3):
            boxes = detections.boxes[detections.labels == label]
            assert (box_iou(boxes, boxes).fill_diagonal_(0) == 0).all()
    assert task(least=2.0).anchors.least == 2.0


def _with(task, **changes):
    for name, value in changes.items():
        setattr(task, name, value)
    return task


@pytest.mark.slow
def test_a_few_steps_teach_a_tiny_one_where_a_square_is():
    torch.manual_seed(0)
    mine = task(most=5)
    images = torch.zeros(4, 3, 64, 64)
    boxes = torch.tensor([[8.0, 8, 28, 28], [30, 10, 56, 36], [10, 30, 34, 54], [26, 28, 52, 54]])
    for image, (x0, y0, x1, y1) in zip(images, boxes.int().tolist(), strict=True):
        image[:, y0:y1, x0:x1] = 1.0
    target = {"boxes": boxes[:, None], "labels": torch.zeros(4, 1, dtype=torch.int64)}
    optimiser = torch.optim.AdamW(mine.parameters(), lr=2e-3)
    for _ in range(60):
        loss = sum(mine.loss(mine(images), target).values())
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(mine.parameters(), 1.0)
        optimiser.step()
    mine.eval()
    for detections, box in zip(mine.predict(mine(images)), boxes, strict=True):
        assert box_iou(detections.boxes[:1], box[None]).item() > 0.5
        assert detections.labels[0] == 0
    assert math.isfinite(loss.item())


def test_losses_are_summed_in_full_precision():
    mine = task().eval()
    images, target = scene()
    with torch.autocast("cpu", torch.bfloat16):
        output = mine(images)
    terms = mine.loss(output, target)
    assert all(term.dtype == torch.float32 for term in terms.values())

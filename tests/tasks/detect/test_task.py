"""What all detectors share."""

import dataclasses
import sys

import pytest
import torch

from saccade.models import detr, retinanet, rtdetr
from saccade.recipes import bounds
from saccade.recipes.detect import Detr, RetinaNet, RTDetr
from saccade.tasks.detect.detr import DetrTask
from saccade.tasks.detect.retinanet import RetinaNetTask
from saccade.tasks.detect.rtdetr import RTDetrTask
from saccade.tasks.detect.task import Detections, sizes_of, targets, to_original


def test_sizes_are_the_whole_batch_unless_told():
    image = torch.zeros(2, 3, 64, 96)
    assert sizes_of(image, None).tolist() == [[64, 96], [64, 96]]
    own = torch.tensor([[64, 96], [40, 50]])
    assert sizes_of(image, own) is own


def test_targets_come_stacked_or_as_a_list():
    boxes, labels = torch.rand(2, 3, 4), torch.zeros(2, 3, dtype=torch.int64)
    stacked = targets({"boxes": boxes, "labels": labels}, torch.device("cpu"))
    listed = targets({"boxes": list(boxes), "labels": list(labels)}, torch.device("cpu"))
    for (a, b), (c, d) in zip(stacked, listed, strict=True):
        assert torch.equal(a, c)
        assert torch.equal(b, d)
    (empty, _), *_ = targets(
        {"boxes": [torch.zeros(0)], "labels": [labels[0, :0]]}, torch.device("cpu")
    )
    assert empty.shape == (0, 4)


def test_boxes_grow_with_the_picture():
    boxes = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    assert to_original(boxes, (10, 20), (20, 80)).tolist() == [[4.0, 4.0, 12.0, 8.0]]
    assert Detections._fields == ("boxes", "labels", "scores")


def test_names_must_fit_the_network():
    net = retinanet.build("linglo_nano", 2, dim=32, depth=0)
    with pytest.raises(ValueError, match="knows 2 classes, got 3 names"):
        RetinaNetTask(net, ("a", "b", "c"), RetinaNet())
    task = RetinaNetTask(net, ("a", "b"), RetinaNet())
    assert task.ids == [1, 2]
    assert task.best == "AP"
    assert RetinaNetTask(net, ("a", "b"), RetinaNet(), ids=[7, 9]).ids == [7, 9]


@pytest.mark.parametrize(
    ("words", "build", "make"),
    [
        (RetinaNet(dim=32, depth=1), retinanet.build, RetinaNetTask),
        (Detr(dim=32, heads=2, encoder=1, decoder=1, hidden=32), detr.build, DetrTask),
        (RTDetr(dim=32, heads=2, decoder=1, hidden=32), rtdetr.build, RTDetrTask),
    ],
)
def test_every_word_of_a_recipes_task_is_read(words, build, make, monkeypatch):
    read = set()
    clerks = {dataclasses.__file__, bounds.__file__}

    def noted(self, name):
        if sys._getframe(1).f_code.co_filename not in clerks:
            read.add(name)
        return object.__getattribute__(self, name)

    monkeypatch.setattr(type(words), "__getattribute__", noted)
    make(build("qna_nano", 2, words), ("a", "b"), words)
    assert {field.name for field in dataclasses.fields(words)} - read == set()

import torch
from torchvision import tv_tensors

from saccade.data.boxes.target import cut, joined, select
from tests.data.boxes.test_mosaic import agree, painted


def test_a_part_has_its_own_boxes_and_masks():
    for seed in range(10):
        image, target = painted(200, 40, 52, seed)
        part, left = cut(image, target, 8, 10, (20, 30))
        assert part.shape == (3, 20, 30)
        agree(part, left)


def test_a_rest_is_no_object():
    image, target = painted(200, 40, 52)
    target["boxes"][0] = torch.tensor([0.0, 0, 10, 10])
    _, left = cut(image, target, 8, 0, (20, 30), share=0.1)
    assert len(left["labels"]) == 1, "a fifth of it"
    _, left = cut(image, target, 8, 0, (20, 30), share=0.3)
    assert len(left["labels"]) == len(left["masks"]) == 0


def test_kinds_stay():
    (_, one), (_, two) = painted(50), painted(60)
    both = joined([one, two], (40, 52))
    some = select(both, torch.tensor([False, True]))
    assert some["labels"].tolist() == [60]
    assert isinstance(some["boxes"], tv_tensors.BoundingBoxes)
    assert isinstance(some["masks"], tv_tensors.Mask)
    assert some["boxes"].canvas_size == (40, 52)

import numpy as np
import pytest
import torch

from saccade.tasks.instances.mask_precision import MaskPrecision
from saccade.tasks.instances.task import Instances

H, W = 40, 60


def mask(x0, y0, x1, y1):
    drawn = torch.zeros(H, W, dtype=torch.bool)
    drawn[y0:y1, x0:x1] = True
    return drawn


def counted(truth, guesses):
    """Masks of class 0; boxes all say the whole image, so that masks alone decide."""
    n, m = len(truth), len(guesses)
    everywhere = torch.tensor([[0.0, 0, W, H]])
    answer = Instances(
        everywhere.repeat(m, 1), torch.zeros(m).long(), torch.linspace(0.9, 0.5, m),
        torch.stack(guesses) if m else torch.zeros(0, H, W, dtype=torch.bool),
    )  # fmt: skip
    metric = MaskPrecision(("thing",), (3,), lambda output, sizes: [answer])
    target = {
        "boxes": [everywhere.repeat(n, 1)], "labels": [torch.zeros(n).long()],
        "crowd": [torch.zeros(n).bool()], "area": [torch.tensor([float(t.sum()) for t in truth])],
        "masks": [torch.stack(truth).to(torch.uint8)], "id": torch.tensor([5]),
        "original": torch.tensor([[H, W]]), "index": torch.tensor([0]),
    }  # fmt: skip
    metric.update({}, target)
    return metric


def test_masks_and_boxes_are_counted_apart():
    truth = mask(10, 10, 30, 30)
    figures = counted([truth], [truth]).compute()
    assert next(iter(figures)) == "mask_AP"
    assert figures["mask_AP"] == figures["AP"] == pytest.approx(100)
    sixty = mask(10, 10, 30, 22)  # an overlap of .6: right at .50, .55 and .60
    figures = counted([truth], [sixty]).compute()
    assert figures["mask_AP"] == pytest.approx(30)
    assert figures["mask_AP50"] == pytest.approx(100)
    assert figures["mask_AP75"] == 0
    assert figures["AP"] == pytest.approx(100), "the boxes are the same"
    assert figures["images"] == 1
    figures = counted([truth], [mask(40, 10, 60, 30)]).compute()
    assert (figures["mask_AP"], figures["AP"]) == (0, pytest.approx(100))
    assert counted([truth], []).compute()["mask_AP"] == 0


def test_sizes_are_those_of_masks():
    """A small object by its own area, however large its box."""
    small = mask(0, 0, 20, 20)
    figures = counted([small], [small]).compute()
    assert figures["mask_APs"] == pytest.approx(100)
    assert "mask_APm" not in figures


def test_what_coco_reads_holds_the_masks():
    from faster_coco_eval import COCO, COCOeval_faster

    truth, guess = mask(10, 10, 30, 30), mask(10, 10, 30, 22)
    metric = counted([truth], [guess])
    (row,) = metric.results()
    assert row["category_id"] == 3
    known = COCO(print_function=lambda *_: None)
    known.dataset = metric.annotations(lambda i: f"{i}.png")
    known.createIndex()
    decoded = known.annToMask(known.dataset["annotations"][0])
    np.testing.assert_array_equal(decoded, truth.numpy())
    guesses = known.loadRes([{k: v for k, v in row.items() if k != "bbox"}])
    again = COCOeval_faster(known, guesses, "segm", print_function=lambda *_: None)
    again.run()
    assert 100 * again.stats[0] == pytest.approx(metric.compute()["mask_AP"])


def test_shares_of_processes_add_up():
    truth, guess = mask(10, 10, 30, 30), mask(10, 10, 30, 22)
    one, whole = counted([truth], [guess]), counted([truth], [guess])
    empty = MaskPrecision(("thing",), (3,), lambda output, sizes: [])
    empty.add(one.state())
    assert empty.compute() == whole.compute()
    assert empty.tables()["per_class"][0]["AP"] == pytest.approx(30), "of masks"

import pytest
import torch

from saccade import tasks
from saccade.data import boxes
from saccade.engine import make
from saccade.engine.distributed import Group
from saccade.models import saved
from saccade.recipes.recipe import Data, change
from saccade.tasks.instances.task import TERMS, _instances
from tests.engine.instance_runs import OUTLINED, outlines_folder

CLASSES = ("disc", "star")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return outlines_folder(tmp_path_factory.mktemp("outlined"))


def batches(data, recipe, net):
    images = boxes.find(str(data), Data(), outlines=True).train
    (parts, *_) = make.training(recipe, images, net, Group()).epoch(0)
    return parts[0]


def test_every_parameter_learns_from_every_term(data):
    task = make.task(OUTLINED, CLASSES).train()
    part = batches(data, OUTLINED, task.net)
    assert [m.shape[1:] for m in part.target["masks"]] == [tuple(s) for s in part.size.tolist()]
    terms = task.loss(task(part.image, part.size), part.target)
    assert set(terms) == set(TERMS.values())
    assert all(float(term) > 0 for term in terms.values())
    torch.stack(list(terms.values())).sum().backward()
    unmoved = [name for name, p in task.named_parameters() if p.grad is None]
    assert unmoved == []


def test_mosaics_and_warps_bring_their_masks(data):
    recipe = change(OUTLINED, augment__mosaic=1.0, augment__rotate=20.0)
    task = make.task(recipe, CLASSES).train()
    part = batches(data, recipe, task.net)
    for masks, corners, size in zip(
        part.target["masks"], part.target["boxes"], part.size.tolist(), strict=True
    ):
        assert masks.shape == (len(corners), *size)
        for mask, (x0, y0, x1, y1) in zip(masks, corners.tolist(), strict=True):
            rows, columns = mask.nonzero().T
            assert x0 <= columns.min() + 1
            assert columns.max() <= x1
            assert y0 <= rows.min() + 1
            assert rows.max() <= y1


def test_images_without_objects_teach_the_background():
    task = make.task(OUTLINED, CLASSES).train()
    target = {
        "boxes": [torch.zeros(0, 4)], "labels": [torch.zeros(0).long()],
        "masks": [torch.zeros(0, 64, 80, dtype=torch.uint8)],
    }  # fmt: skip
    terms = task.loss(task(torch.rand(1, 3, 64, 80)), target)
    sum(terms.values()).backward()
    assert all(term.isfinite() for term in terms.values())
    assert all(p.grad is not None for p in task.parameters()), "DDP waits for all of them"


def test_predictions_are_in_the_pictures_pixels():
    task = make.task(OUTLINED, CLASSES).eval()
    image = torch.rand(2, 3, 64, 80)
    output = task(image)
    answers = task.predict(output, [(128, 160), (64, 80)], score=0.0)
    for answer, (H, W) in zip(answers, ((128, 160), (64, 80)), strict=True):
        assert answer.masks.shape == (len(answer.boxes), H, W)
        assert len(answer.boxes)
        assert (answer.boxes[:, 2:] <= torch.tensor([W, H]) + 1e-3).all()
    assert set(answers[0].labels.tolist()) <= {0, 1}
    assert torch.allclose(answers[0].scores, task.predict(output, None, 0.0)[0].scores)
    (none, _) = task.predict(output, None, score=1.0)
    assert none.masks.shape == (0, 64, 80)


def test_a_mask_is_pasted_where_its_box_lies():
    shares = torch.zeros(1, 1, 28, 28)
    shares[:, :, :, :14] = 1.0  # the left half
    answer = {
        "boxes": torch.tensor([[10.0, 5, 30, 25]]), "labels": torch.tensor([2]),
        "scores": torch.tensor([0.5]), "masks": shares,
    }  # fmt: skip
    one = _instances(answer, (32, 40), (64, 80))
    assert one.boxes.tolist() == [[20, 10, 60, 50]]
    assert one.labels.tolist() == [1]
    rows, columns = one.masks[0].nonzero().T
    edges = [int(n) for n in (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)]
    assert edges == pytest.approx([20, 10, 40, 50], abs=2)
    assert one.masks[0].sum() > 0.9 * 20 * 40


def test_saved_and_read_again(tmp_path):
    task = make.task(OUTLINED, CLASSES).eval()
    path = saved.save(task.net, tmp_path / "net.safetensors")
    again = saved.load(path)
    image = torch.rand(1, 3, 64, 80)
    for a, b in zip(task.net(image), again(image), strict=True):
        torch.testing.assert_close(a, b)


def test_export_is_refused_in_a_sentence():
    task = make.task(OUTLINED, CLASSES).eval()
    with pytest.raises(ValueError, match="export a RetinaNet instead"):
        task.raw(torch.rand(1, 3, 64, 80))
    assert tasks.of(OUTLINED).command == "detect"

"""UperNet and Mask2Former as recipes: trained for a step, saved, opened, and what they are."""

import numpy as np
import pytest
import torch
from PIL import Image

from saccade.engine import session
from saccade.recipes import segment
from saccade.recipes.recipe import change
from saccade.tasks.segment.task import SegmentTask, balanced

pytest.importorskip("transformers")


def scenes(place):
    """Images whose left part is red and of class 0; a few pixels are of class 2."""
    for split in ("train", "val"):
        for n in range(4):
            pixels = np.full((64, 64, 3), 90, np.uint8)
            mask = np.ones((64, 64), np.uint8)
            pixels[:, : 16 + 8 * n, 0], mask[:, : 16 + 8 * n] = 230, 0
            mask[:2, -2:] = 2
            for kind, array in (("images", pixels), ("masks", mask)):
                (place / kind / split).mkdir(parents=True, exist_ok=True)
                Image.fromarray(array).save(place / kind / split / f"{n}.png")
    (place / "classes.json").write_text('{"classes": ["red", "grey", "rare"]}')
    return place


@pytest.mark.parametrize("name", ["segment_upernet", "segment_mask2former"])
def test_a_run(name, tmp_path):
    recipe = change(
        segment.RECIPES[name], schedule__epochs=1, schedule__warmup=0, loop__batch=2,
        data__workers=0, augment__short=64, augment__crop=64, test__short=64, task__dim=32,
    )  # fmt: skip
    out = tmp_path / "run"
    session.train(recipe, str(scenes(tmp_path / "set")), str(out))
    loaded = session.open_model(str(out), torch.device("cpu"), "segment")
    with torch.no_grad():
        output = loaded.task(torch.randn(1, 3, 64, 80))
    assert output["logits"].shape == (1, 3, 16, 20)
    (labels,) = loaded.task.predict(output, [(64, 80)])
    assert labels.shape == (64, 80)


def test_rare_classes_weigh_more():
    pixels = [900, 90, 10, 0]
    assert balanced(pixels, 0.0) is None
    weights = balanced(pixels, 0.5)
    assert sum(w * n for w, n in zip(weights, pixels, strict=True)) == pytest.approx(1000)
    assert weights[1] / weights[0] == pytest.approx(10**0.5)
    assert weights[2] / weights[0] == pytest.approx(90**0.5)
    assert max(balanced([10**9, 10**6, 1], 1.0)) <= 10


def test_weights_reach_the_loss():
    net = torch.nn.Conv2d(3, 2, 4, 4)
    net.forward = lambda image, coarse: torch.nn.Conv2d.forward(net, image)
    image, mask = torch.randn(1, 3, 16, 16), torch.zeros(1, 16, 16, dtype=torch.uint8)
    mask[:, :4] = 1
    plain = SegmentTask(net, ("a", "b"))
    heavy = SegmentTask(net, ("a", "b"), weights=[1.0, 3.0])
    target, output = {"mask": mask}, plain(image)
    only = mask.clone()
    only[mask == 0] = 255
    rare = plain.loss(output, {"mask": only})["cross_entropy"]
    more = heavy.loss(output, target)["cross_entropy"] - plain.loss(output, target)["cross_entropy"]
    torch.testing.assert_close(more, 2 * rare)
    assert "weights" not in heavy.state_dict()

import json

import pytest
from PIL import Image

from saccade import tasks
from saccade.data import boxes
from saccade.engine import make
from saccade.engine.distributed import Group
from saccade.recipes.recipe import change
from tests.engine.detect_runs import FIRST, THINGS, boxes_folder


def test_wide_and_tall_images_are_not_padded_to_each_other(tmp_path):
    folder = boxes_folder(tmp_path)
    file = folder / "annotations/instances_train.json"
    plain = json.loads(file.read_text())
    for about in plain["images"][::2]:
        about["width"], about["height"] = about["height"], about["width"]
        name = folder / "images/train" / about["file_name"]
        Image.open(name).transpose(Image.Transpose.ROTATE_90).save(name)
    file.write_text(json.dumps(plain))
    images = boxes.find(str(folder), THINGS.data).train
    assert images.tall.tolist() == [1, 0] * 4
    shapes = {}
    for together in (False, True):
        recipe = change(THINGS, augment__alike=together)
        net = tasks.of(recipe).network(recipe, 2, {})
        loader = make.training(recipe, images, net, Group())
        shapes[together] = [tuple(step[0].image.shape[2:]) for step in loader.epoch(0)]
    assert sorted(shapes[True]) == [(64, 80), (80, 64)]
    assert (96, 96) in shapes[False]


def test_images_of_rare_classes_come_more_often(tmp_path):
    """Repeat factors: the root of the share that is asked for over the class's own."""
    folder = boxes_folder(tmp_path)
    file = folder / "annotations/instances_train.json"
    plain = json.loads(file.read_text())
    first = plain["images"][0]["id"]
    for box in plain["annotations"]:  # slabs are in one image of eight
        box["category_id"] = FIRST + (box["image_id"] == first)
    file.write_text(json.dumps(plain))
    images = boxes.find(str(folder), THINGS.data).train
    assert images.often(0.5).tolist() == [2.0] + [1.0] * 7
    assert images.often(0.1).tolist() == [1.0] * 8
    recipe = change(THINGS, augment__rare=1.0)
    loader = make.training(recipe, images, tasks.of(recipe).network(recipe, 2, {}), Group())
    seen = [i for n in range(8) for step in loader.epoch(n) for i in step[0].index.tolist()]
    assert len(seen) == 64
    assert seen.count(0) == pytest.approx(64 * 8**0.5 / (8**0.5 + 7 * (8 / 7) ** 0.5), abs=4)

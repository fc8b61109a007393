import json

from PIL import Image

from saccade import tasks
from saccade.data import boxes
from saccade.engine import make
from saccade.engine.distributed import Group
from saccade.recipes.recipe import change
from tests.engine.detect_runs import THINGS, boxes_folder


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

"""Examples of an evaluation are read again and drawn."""

import base64
import io

import numpy as np
from PIL import Image

from saccade import tasks
from saccade.data.picture import Unreadable
from saccade.engine import examples, make
from saccade.tasks.segment.pixels import IGNORED
from tests.data.scenes import NAMES, scene
from tests.engine.dense_runs import SEGMENT


class Scenes:
    def name(self, i):
        return f"some/where/{i}.png"

    def read(self, i):
        if i == 7:
            raise Unreadable("7.png", "it has gone")
        photo, mask = scene(np.random.default_rng(i))
        mask[:3] = IGNORED
        return photo, mask


def test_the_truth_lies_beside_the_prediction():
    task = make.task(SEGMENT, tuple(NAMES)).eval()
    definition = tasks.of(SEGMENT)
    transform = definition.test_transform(SEGMENT.test, (0.5,) * 3, (0.25,) * 3)
    rows = [{"index": i, "caption": f"<{i}>"} for i in (0, 7, 1)]
    tables = {"examples": {"Hardest": rows}}
    draw_examples = examples.draw_examples(definition, task, transform, Scenes(), tables)["Hardest"]
    assert [row["caption"] for row in draw_examples] == ["<0>; 0.png", "<1>; 1.png"]
    with Image.open(io.BytesIO(base64.b64decode(draw_examples[0]["jpeg"]))) as sheet:
        assert sheet.width > 2 * 52, "two pictures and their legends"


def test_tables_without_examples_have_none():
    assert examples.draw_examples(tasks.TASKS["classify"], None, None, None, {}) == {}

import pytest
import torch

from saccade.data.datasets import find
from saccade.engine import make, session
from saccade.engine.distributed import Group
from saccade.engine.evaluate import evaluate, precision
from saccade.recipes.recipe import change
from tests.engine.classify_runs import PLAIN, fit, folder


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return find(str(folder(tmp_path_factory.mktemp("colours"))), PLAIN.data).val


def test_every_image_is_counted_once_and_nothing_is_left_changed(images):
    task = make.task(PLAIN, ("blue", "green", "red"))
    before = {k: v.clone() for k, v in task.state_dict().items()}
    metric = evaluate(task, make.evaluation(PLAIN, images, task.net, Group()), Group())
    assert metric.compute()["images"] == len(images) == 9
    assert [sum(row) for row in metric.tables()["confusion"]] == [3, 3, 3]
    assert all(torch.equal(before[k], v) for k, v in task.state_dict().items())


def test_precision_by_name():
    with precision("bf16", torch.device("cpu")):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16
    with precision("fp32", torch.device("cpu")):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32


def test_what_is_left_out_is_known(tmp_path):
    data = folder(tmp_path / "data")
    run = fit(change(PLAIN, schedule__epochs=1), data, tmp_path / "run")
    (data / "val" / "red" / "0.png").write_bytes(b"broken")
    metric = session.evaluate(run.folder, str(data))
    assert metric.compute()["images"] == 8
    assert [name.endswith("red/0.png") for name in metric.unread] == [True]

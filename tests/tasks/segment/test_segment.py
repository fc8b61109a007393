"""Pixels told apart, from a folder to figures, through the one loop."""

import dataclasses
import inspect

import pytest
import torch

import saccade
from saccade import tasks
from saccade.data.masks import augment
from saccade.engine import make, session
from saccade.engine.run import Run
from saccade.recipes.augment import Test
from saccade.recipes.recipe import change
from saccade.recipes.segment import MaskAugment, MaskTest, Segment
from saccade.report.summary import Summary
from saccade.tasks.segment import network
from saccade.tasks.segment.task import SegmentTask
from tests.data.scenes import NAMES, folder
from tests.engine import shared_runs
from tests.engine.classify_runs import apart, fit
from tests.engine.dense_runs import SEGMENT


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return shared_runs.segmenter(tmp_path_factory)


@pytest.fixture(scope="module")
def data(trained):
    return trained[0]


@pytest.fixture(scope="module")
def run(trained):
    return trained[1]


def test_it_learns_and_the_model_comes_back(run, data):
    lines = run.lines()
    assert max(line["val"]["miou"] for line in lines) > 45  # one class everywhere: below 20
    losses = [sum(line["loss"].values()) for line in run.lines("steps.jsonl")]
    assert sum(losses[-4:]) < 0.7 * sum(losses[:4])
    ready = session.open_model(run.folder)
    assert ready.definition.name == "segment"
    assert isinstance(ready.task, SegmentTask)
    assert ready.classes == NAMES
    assert ready.test == MaskTest(short=40, long=80)
    best = max(line["val"]["miou"] for line in lines)
    assert session.evaluate(run.folder).compute()["miou"] == pytest.approx(best)
    assert session.evaluate(run.folder, str(data)).compute()["miou"] == pytest.approx(best)


def test_one_at_a_time_or_padded_together_is_the_same(run):
    one, four = (session.evaluate(run.folder, batch=n).compute()["miou"] for n in (1, 4))
    assert one == pytest.approx(four, abs=0.02)  # but for the last digits of a tie


def test_the_report_shows_the_classes(run):
    pytest.importorskip("matplotlib")
    assert (run.folder / "classes.png").stat().st_size > 2000
    page = (run.folder / "report.html").read_text()
    assert "<h2>Classes</h2>" in page
    assert "saccade segment PICTURE" in page
    assert "mIoU" in page
    one = Summary.of(run)
    assert one.figure == "miou"
    net = saccade.load(run.folder)
    assert one.parameters() == sum(p.numel() for p in net.parameters())


def test_masks_that_do_not_fit_are_told_and_left_out(data, tmp_path):
    from PIL import Image

    bad = folder(tmp_path / "data", train=24)
    Image.new("L", (9, 7)).save(bad / "masks" / "train" / "3.png")
    Image.new("L", (9, 7)).save(bad / "masks" / "val" / "1.png")
    recipe = change(SEGMENT, schedule__epochs=1, data__bad=0.3)
    result = fit(recipe, bad, tmp_path / "run")
    assert set(result.read_json("findings.json")) == {"another size"}
    assert len(result.read_json("findings.json")["another size"]) == 2
    assert result.read_json("bad.json") == {}
    assert result.lines()[-1]["val"]["images"] == 3


def tell(data, model, out):
    figures = session.evaluate(model, str(data), batch=2, device="cpu").compute()
    if torch.distributed.is_initialized() is False:
        (out / f"{figures['images']}-{figures['miou']:.9f}").touch()


@pytest.mark.slow
def test_processes_count_what_one_counts(run, data, tmp_path):
    assert apart(tell, data, run.folder, tmp_path, ranks=2) == [0, 0]
    (path,) = tmp_path.iterdir()
    alone = session.evaluate(run.folder, str(data), batch=1).compute()
    assert path.name == f"4-{alone['miou']:.9f}"


def test_the_backbone_starts_from_a_classifier_or_a_segmenter(run, tmp_path):
    net = saccade.build("linglo_nano", num_classes=5)
    path = saccade.save(net, tmp_path / "net.safetensors")
    segmenter = make.model(change(SEGMENT, model__start=str(path)), 3)
    own, theirs = segmenter.backbone.body.state_dict(), net.backbone.state_dict()
    assert all(torch.equal(own[name], theirs[name]) for name in own)
    again = make.model(change(SEGMENT, model__start=str(run.folder)), 7)
    trained = saccade.load(run.folder).backbone.state_dict()
    assert all(torch.equal(v, trained[k]) for k, v in again.backbone.state_dict().items())
    with pytest.raises(ValueError, match=r"set model\.name=linglo_nano"):
        make.model(change(SEGMENT, model__start=str(path), model__name="qna_nano"), 3)


def test_its_words_belong_to_it():
    assert tasks.of(SEGMENT).name == "segment"
    assert tasks.of(SEGMENT).example_sides(SEGMENT) == (32,)
    with pytest.raises(ValueError, match="takes test of kind MaskTest"):
        tasks.of(change(SEGMENT, test=Test()))
    with pytest.raises(ValueError, match="did you mean 'qna_nano'"):
        make.model(change(SEGMENT, model__name="qna_nan"), 3)
    source = inspect.getsource(network) + inspect.getsource(augment)
    for group, name in (
        (Segment, "settings"), (MaskAugment, "augment"), (MaskTest, "test"),
    ):  # fmt: skip
        for field in dataclasses.fields(group):
            read = [f"{owner}.{field.name}" in source for owner in name.split("|")]
            assert any(read), f"{group.__name__}.{field.name} is idle"


def test_windows_of_the_recipe_reach_the_task(run):
    recipe = change(SEGMENT, task__window=64, task__overlap=0.25)
    task = make.task(recipe, tuple(NAMES), notes={"ids": [1, 5, 9]})
    assert (task.window, task.overlap, task.ids) == (64, 0.25, [1, 5, 9])
    with pytest.raises(ValueError, match=r"segment.window: 64 or more"):
        change(SEGMENT, task__window=8)
    assert Run.open(run.folder).recipe.task.window is None

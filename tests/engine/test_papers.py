"""What a run by a paper's recipe really does: read off the live objects after some steps."""

import pytest
import torch
from torch import nn

from saccade.data.images import Files
from saccade.engine import make, session
from saccade.engine.train import Training
from saccade.layers.branches import DepthwiseBranch
from saccade.layers.sasa import StandAloneAttention
from saccade.recipes import book
from saccade.recipes.augment import Test
from saccade.recipes.detect import BoxAugment, BoxTest
from saccade.recipes.recipe import change
from saccade.report.summary import Summary
from tests.engine.classify_runs import At, folder
from tests.engine.detect_runs import boxes_folder


def shrunk(name, model, **changes):
    """A paper's recipe on a model, images and batch so small that a step takes no time."""
    small = {
        "model__name": model, "data__workers": 0, "augment__size": 32,
        "test": Test(size=32, crop=1.0), "loop__batch": 8, "loop__precision": "fp32",
        "schedule__epochs": 2, "schedule__warmup": 0,
    }  # fmt: skip
    return change(book.find(name), **{**small, **changes})


def fit(recipe, data, out):
    return session.train(recipe, str(data), out, device="cpu")


@pytest.fixture
def steps(monkeypatch):
    """The Training after every step, for a function that is appended here."""
    watchers, advance = [], Training.advance

    def watched(self, parts, stop=False):
        for watch in watchers:
            watch(self, "before")
        stopping = advance(self, parts, stop)
        for watch in watchers:
            watch(self, "after")
        return stopping

    monkeypatch.setattr(Training, "advance", watched)
    return watchers


def test_sasa_averages_weights_and_statistics_at_0_9999(tmp_path, steps):
    """A.2: both decays hold from the first step on; nothing grows into them."""
    expected, inputs, live = {}, [], {}

    def seen(norm, inward):
        if norm.training:
            inputs.append(inward[0].detach().double().mean((0, 2, 3)))

    def follow(training, when):
        norm = next(m for m in training.task.modules() if isinstance(m, nn.BatchNorm2d))
        weights = {name: p.detach().double() for name, p in training.task.named_parameters()}
        if when == "before":
            if not expected:
                expected.update({name: p.clone() for name, p in weights.items()})
                live.update(training=training, norm=norm, began=norm.running_mean.double().clone())
                live["start"] = dict(expected)
                norm.register_forward_pre_hook(seen)
            return
        for name, p in weights.items():
            expected[name] = 0.9999 * expected[name] + 0.0001 * p

    steps.append(follow)
    fit(shrunk("sasa", "sasa_nano"), folder(tmp_path / "data", train=7, val=1), tmp_path / "run")
    assert len(inputs) == live["training"].step == 4
    for name, value in live["training"].average.values.items():
        moved = (expected[name] - live["start"][name]).abs().max()
        apart = (value.double() - expected[name]).abs().max()
        assert apart <= 0.02 * moved + 1e-6 * value.abs().max(), name  # float32's last digits
    mean = live["began"]
    for batch in inputs:
        mean = 0.9999 * mean + 0.0001 * batch
    assert mean.abs().max() > 0
    torch.testing.assert_close(live["norm"].running_mean.double(), mean, rtol=1e-3, atol=1e-9)


def test_qna_without_regularisation_drops_no_path(tmp_path, steps):
    """Table 2's "AugReg: None": in training, the same images give the same answer every time."""
    apart = []

    def twice(training, when):
        if when == "after":
            image = torch.randn(8, 3, 32, 32)
            first, second = (training.task(image)["logits"] for _ in range(2))
            assert training.task.training
            apart.append((first - second).abs().max().item())

    steps.append(twice)
    data = folder(tmp_path / "data", train=3, val=1)
    fit(shrunk("qna_heads", "qna_nano", schedule__epochs=1), data, tmp_path / "none")
    assert apart
    assert max(apart) == 0
    fit(shrunk("qna_t", "qna_nano", schedule__epochs=1, model__drop_path=0.5), data, tmp_path / "t")
    assert apart[-1] > 0


@pytest.mark.parametrize(("options", "alike"), [({}, True), ({"branch_norm": False}, False)])
def test_linglo_normalises_the_branches_of_its_positions(options, alike):
    """3.2: a branch's scale is its norm's alone; seven times its weights are the same network."""
    recipe = shrunk("linglo_b0", "linglo_nano", model__drop_path=0.0, model__options=options)
    net = make.model(recipe, 4).train()
    x = torch.randn(8, 3, 32, 32)
    with torch.no_grad():
        before = net(x)
        for branch in (m for m in net.modules() if isinstance(m, DepthwiseBranch)):
            branch.conv.weight.mul_(7)
        gap = (net(x) - before).abs().max()
    assert (gap < 0.01 * before.std()) == alike


@pytest.mark.parametrize("name", ["linglo_b0_semantic_fpn", "linglo_b0_retinanet"])
def test_linglo_draws_new_layers_by_xavier(name):
    """Sections 4.2 and 4.3, off the weights of the network that a run begins with."""
    net = make.task(change(book.find(name), model__name="linglo_nano"), tuple("abc")).net
    own = set(net.backbone.parameters())
    new = [m for m in net.modules() if isinstance(m, nn.Conv2d) and m.weight not in own]
    assert len(new) > 10
    for conv in new:
        outward, inward, *kernel = conv.weight.shape
        xavier = (2 / ((inward + outward) * kernel[0] * kernel[1])) ** 0.5
        assert conv.weight.std().item() == pytest.approx(xavier, rel=0.1)
        assert conv.weight.abs().max() <= 3**0.5 * xavier


def test_sasa_chooses_by_training_images_and_validates_once(tmp_path, monkeypatch):
    """A.2: 4% of train/ choose the model, val/ is read at the end and at no other time."""
    read, real = [], Files.read

    def noted(self, i):
        read.append(self.name(i))
        return real(self, i)

    monkeypatch.setattr(Files, "read", noted)
    data = folder(tmp_path / "data", train=25, val=2)
    recipe = shrunk("sasa", "sasa_nano", schedule__epochs=1, loop__batch=36)
    message = Sentences()
    run = session.train(recipe, str(data), tmp_path / "run", device="cpu", watch=lambda: message)
    counts = run.read_json("data.json")
    assert {part: counts[part]["images"] for part in counts} == {"train": 72, "val": 3, "final": 6}
    assert {line["val"]["images"] for line in run.lines()} == {3}
    validation = [str(data / "val") in name for name in read]
    assert sum(validation) == 6
    assert all(validation[-6:])
    final = run.read_json("final.json")["val"]
    assert final["images"] == 6
    assert final["top1"] == session.evaluate(run.folder, device="cpu").compute()["top1"]
    assert session.evaluate(run.folder, split="tune", device="cpu").compute()["images"] == 3
    assert "3 held out of them to choose the best model by, 6 to validate" in message.lines[0]
    assert "on the 6 validation images, seen once" in message.lines[-1]
    assert any("final: " in sentence for sentence in Summary.of(run).sentences())
    read.clear()
    session.resume(run.folder, device="cpu")
    assert not any(str(data / "val") in name for name in read)


class Sentences(At):
    """Remember what is said."""

    def __init__(self):
        super().__init__(0, None)
        self.lines = []

    def say(self, sentence):
        self.lines.append(sentence)


def test_sasas_fully_attentional_detector_trains(tmp_path, steps):
    """A.3 word for word, on a real set: above the backbone, attention takes every step."""
    moved, before = set(), {}

    def follow(training, when):
        for name, m in training.task.net.named_modules():
            if isinstance(m, StandAloneAttention) and not name.startswith("backbone."):
                weight = m.value.weight.detach().clone()
                if when == "before":
                    before[name] = weight
                elif not torch.equal(weight, before[name]):
                    moved.add(name)

    steps.append(follow)
    recipe = change(
        book.find("sasa_retinanet50_all"), model__name="sasa_nano", data__workers=0,
        task__dim=32, augment=BoxAugment(short=(64,), long=96), test=BoxTest(short=64, long=96),
        loop__batch=2, loop__precision="fp32", schedule__epochs=1, schedule__warmup=0,
    )  # fmt: skip
    fit(recipe, boxes_folder(tmp_path / "data", train=2, val=1), tmp_path / "run")
    assert moved == set(before)
    assert len(moved) == 3 + 2 + 2 * 5  # smoothing, two coarser levels, two heads

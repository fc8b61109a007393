"""What docs/own-layer.md says: a layer from outside goes through every command."""

import re
import sys

import numpy as np
import pytest
import timm
import timm.data
import torch
from torch import nn

import saccade
from saccade import outside, view
from saccade.engine.run import Run
from saccade.models import linglo, zoo
from saccade.recipes import book
from tests.cli.conftest import run as run  # the command line, as a fixture
from tests.cli.conftest import typed as typed
from tests.engine.classify_runs import folder
from tests.test_house import ROOT

PAGE = (ROOT / "docs/own-layer.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
SMALL = ("--epochs", "2", "--batch", "4", "--size", "32", "--set", "data.workers=0")


@pytest.fixture
def layer_file(tmp_path, monkeypatch):
    """The page's file in a folder of its own; all that it registers is gone afterwards."""
    path = tmp_path / "mean_attention.py"
    path.write_text(BLOCKS[0])
    registries = (outside.MODULES, zoo.VARIANTS, linglo.MIXERS, view.BY_WEIGHTS, book.RECIPES)
    before = [dict(registry) for registry in registries]
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    yield path
    sys.modules.pop("mean_attention", None)
    for registry, content in zip(registries, before, strict=True):
        registry.clear()
        registry.update(content)


def test_it_has_forty_lines():
    assert len(BLOCKS[0].strip().splitlines()) <= 40


def test_a_layer_goes_through_every_command(run, layer_file, tmp_path):
    data = folder(tmp_path / "data")
    photo = next(data.rglob("*.png"), None) or next(data.rglob("*.jpg"))
    words = ("--import", "mean_attention")
    code, out = run("train", "scratch", "--data", str(data), "--model", "linglo_nano_mean",
                    "--out", "one", *SMALL, *words)  # fmt: skip
    assert code == 0, out
    assert Run.open("one").plain()["imports"] == {"linglo_nano_mean": "mean_attention"}
    model = saccade.load("one")
    assert type(model.backbone.stages[0].blocks[0].mix).__name__ == "MeanAttention"
    assert all(m.sum((1, 2)) == pytest.approx(1, abs=1e-3) for m in model.attention(photo).values())
    for command in (
        ("resume", "one"),
        ("eval", "one"),
        ("predict", str(photo), "--model", "one"),
        ("view", str(photo), "--model", "one"),
        ("export", "one", "--out", "one.onnx"),
    ):
        code, out = run(*command, *words)
        assert code == 0, (command, out)
    outside.MODULES.clear()
    for command in (("resume", "one"), ("eval", "one"), ("report", "one")):
        code, out = run(*command)
        assert code == 1
        message = " ".join(out.split())
        assert "was made with 'mean_attention', which saccade does not import by itself" in message
        assert "add --import mean_attention" in message
    with pytest.raises(ValueError, match="in Python: import it first"):
        saccade.load("one")


def test_a_file_never_imports(layer_file, tmp_path):
    """Not even a module that lies beside it, or one whose name is no name."""
    (tmp_path / "evil.py").write_text("open('marker', 'w')")
    model = saccade.build("linglo_nano", num_classes=2)
    for module, says in (("evil", "add --import evil"), ("os; evil", "not as saccade writes it")):
        outside.MODULES["linglo_nano"] = module
        path = saccade.save(model, tmp_path / "m.safetensors", classes=["a", "b"])
        del outside.MODULES["linglo_nano"]
        with pytest.raises(ValueError, match=says):
            saccade.load(path)
    assert not (tmp_path / "marker").exists()


def test_models_and_functions(layer_file):
    exec(compile(BLOCKS[2], "own-layer.md", "exec"), {"saccade": saccade, "nn": nn})
    net = timm.create_model("plain_net", num_classes=3, widths=(8, 16, 24, 32))
    assert net(torch.zeros(2, 3, 64, 64)).shape == (2, 3)
    assert timm.data.resolve_model_data_config(net)["input_size"] == (3, 64, 64)

    @saccade.register("tiny_mean")
    def tiny(num_classes=1000, in_chans=3):
        return nn.Sequential(
            nn.Conv2d(in_chans, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
            nn.Linear(4, num_classes),
        )  # fmt: skip

    net = timm.create_model("tiny_mean", num_classes=5, in_chans=1)
    assert net(torch.zeros(1, 1, 32, 32)).shape == (1, 5)
    path = saccade.save(net, "tiny.safetensors", classes=list("abcde"))
    again = saccade.load(path)
    grey = np.random.default_rng(0).random((1, 1, 32, 32), np.float32)
    assert torch.equal(again(torch.from_numpy(grey)), net.eval()(torch.from_numpy(grey)))


@pytest.mark.parametrize(
    ("name", "thing", "says"),
    [
        ("Gate!", nn.Identity, "lower-case letters"),
        ("linglo_b1", lambda num_classes, in_chans: None, "known already"),
        ("gate", nn.Identity, None),
        ("gate", nn.Bilinear, r"built by \(dim, heads\)"),
        ("dot", nn.Linear, "has a layer named 'dot' already"),
        ("gate", 3, "is a layer's class"),
    ],
)
def test_what_cannot_be_registered(layer_file, name, thing, says):
    if says is None:
        saccade.register(name, thing, like="linglo_nano")
        assert "linglo_nano_gate" in saccade.names()
        return
    with pytest.raises((ValueError, TypeError), match=says):
        saccade.register(name, thing)


def test_modules_that_cannot_be_imported(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "broken_layer.py").write_text("1 / 0")
    for word, says in (
        ("gone_layer", "no module 'gone_layer' here or installed"),
        ("gone_layer.py", "there is no such file"),
        ("broken_layer", "it fails (ZeroDivisionError: division by zero)"),
        ("a b", "give a module's name"),
    ):
        code, out = run("list", "--import", word)
        assert code == 1
        assert says in " ".join(out.split())
    assert run("list", "--import")[0] == 2


def test_a_plugin_that_fails_is_passed_over(monkeypatch, caplog):
    class Point:
        name, module = "bad", "module_that_is_not_there"

    monkeypatch.setattr(outside.metadata, "entry_points", lambda group: [Point])
    outside.load_plugins()
    assert "'bad' cannot be imported" in caplog.text
    caplog.clear()
    monkeypatch.setenv(outside.SWITCH, "0")
    outside.load_plugins()
    assert not caplog.text

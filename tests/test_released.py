"""Files that earlier releases wrote are read, and give what they gave: for ever."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import saccade
from saccade import export
from saccade.engine.checkpoint import Checkpoints
from saccade.models import saved
from saccade.version import FORMATS, check_format
from tools.released import MODELS, picture

RELEASES = sorted((Path(__file__).parent / "released").iterdir())
release = pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.name)


def close(y, release, name):
    torch.testing.assert_close(
        torch.as_tensor(y), load_file(release / "outputs.safetensors")[name], rtol=1e-3, atol=1e-4
    )


@release
@pytest.mark.parametrize("name", MODELS)
def test_models_give_what_they_gave(release, name):
    model = saccade.load(release / f"{name}.safetensors")
    assert model.notes["classes"] == ["bright", "dark"]
    with torch.no_grad():
        close(model(picture()), release, name)


@release
def test_a_run_is_opened_and_its_checkpoint_read(release, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(release / "run", run)
    with torch.no_grad():
        close(saccade.load(run)(picture()), release, "run")
    state, _ = Checkpoints(run).load("last")
    assert state["format"] <= FORMATS["checkpoint"]
    assert state["step"] == 3


@release
def test_exported_files_give_what_they_gave(release):
    pytest.importorskip("onnxruntime")
    for name in ("run.onnx", "run.pt2"):
        y = export.runner(release / name, trusted=True)(picture().numpy())["logits"]
        close(y, release, "run")


def test_a_later_format_is_refused_in_a_sentence(tmp_path):
    model = saccade.build("linglo_nano", num_classes=2, **MODELS["linglo_nano"])
    path = saccade.save(model, tmp_path / "model.safetensors")
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        header = json.loads(file.metadata()["saccade"])
    assert header["format"] == FORMATS["model"]
    later = {"saccade": json.dumps({**header, "format": 99})}
    save_file(load_file(path), path, later)
    with pytest.raises(ValueError, match=r"has format 99, of a later saccade; .* update saccade"):
        saved.load(path)
    for number in (None, 0, FORMATS["checkpoint"]):
        check_format("checkpoint", number, "file")
    for number in (FORMATS["checkpoint"] + 1, -1, "2", 1.5, True):
        with pytest.raises(ValueError, match="of a later saccade"):
            check_format("checkpoint", number, "file")

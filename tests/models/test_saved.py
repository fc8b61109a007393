import hashlib
import json

import pytest
import timm
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import saccade
from saccade import files
from saccade.layers.sasa import StandAloneAttention
from saccade.models import detr, retinanet, saved
from saccade.models.describe import describe, timm_config
from tests.attack import evil_archive


@pytest.mark.parametrize("name", saccade.names("*_nano"))
def test_a_saved_model_comes_back_whole(tmp_path, name):
    model = saccade.build(name, num_classes=7, in_chans=1, global_pool="max").eval()
    path = saccade.save(model, tmp_path / "m.safetensors", classes=["a", "b"])
    again = saccade.load(path)
    x = torch.randn(2, 1, 64, 64)
    assert torch.equal(again(x), model(x))
    assert not again.training
    assert again.default_cfg["architecture"] == name
    assert list(tmp_path.iterdir()) == [path]


def test_overrides_reset_classifier_and_fusing_survive(tmp_path):
    model = saccade.build("linglo_nano", depths=(1, 1, 1, 1), branch_norm=True, drop_path_rate=0.3)
    model.reset_classifier(3)
    model.eval().fuse()
    again = saccade.load(saccade.save(model, tmp_path / "m.safetensors"))
    x = torch.randn(1, 3, 64, 64)
    assert torch.equal(again(x), model(x))
    assert again.num_classes == 3


@pytest.mark.parametrize("name", [[1] * 50, {"a": 1}, 7, None])
def test_a_name_that_is_no_text_begins_no_training(tmp_path, name):
    """A stranger's header says of which network its weights are."""
    about = {"format": 1, "model": {"name": name}, "notes": {}}
    save_file({"w": torch.ones(1)}, tmp_path / "m.safetensors", {"saccade": json.dumps(about)})
    assert saved.architecture(tmp_path / "m.safetensors") is None


def test_equal_models_are_equal_files(tmp_path):
    model = saccade.build("linglo_nano", num_classes=2)
    files = [saccade.save(model, tmp_path / str(i), classes=["é", '"\\n']) for i in range(12)]
    assert len({hashlib.sha256(file.read_bytes()).hexdigest() for file in files}) == 1
    assert saccade.load(files[0]).notes == {"classes": ["é", '"\\n']}
    (tmp_path / "usual").touch()
    assert files[0].stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_a_folders_model_is_no_link_to_elsewhere(tmp_path, monkeypatch):
    path = saccade.save(saccade.build("linglo_nano", num_classes=2), tmp_path / "other.safetensors")
    monkeypatch.chdir(tmp_path)
    for folder in ("run", "hub/models--x/snapshots/1"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "model.safetensors").symlink_to(path)
        with pytest.raises(ValueError, match="link out of its folder"):
            saccade.load(folder)
    blob = tmp_path / "hub/models--x/blobs/1234"
    blob.parent.mkdir()
    blob.write_bytes(path.read_bytes())
    (tmp_path / "hub/models--x/snapshots/1/model.safetensors").unlink()
    (tmp_path / "hub/models--x/snapshots/1/model.safetensors").symlink_to("../../blobs/1234")
    assert saccade.load("hub/models--x/snapshots/1").num_classes == 2


@pytest.mark.parametrize("ending", ["pt2", "pt", "pth", "onnx"])
def test_programs_and_pickles_are_not_opened(tmp_path, ending):
    path = tmp_path / f"net.{ending}"
    path.write_bytes(evil_archive(tmp_path / "marker"))
    with pytest.raises(ValueError, match=r"may run code .*give the run or the \*\.safetensors"):
        saccade.load(path)
    assert not (tmp_path / "marker").exists()


def test_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no file .*gone.safetensors"):
        saccade.load(tmp_path / "gone.safetensors")


def test_a_truncated_file(tmp_path):
    path = saccade.save(saccade.build("linglo_nano"), tmp_path / "m.safetensors")
    whole = path.read_bytes()
    for length in (0, 5, 1000, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match="truncated or no safetensors file"):
            saccade.load(path)


def test_weights_without_their_model(tmp_path):
    save_file({"a": torch.zeros(2)}, tmp_path / "m.safetensors")
    with pytest.raises(ValueError, match="holds weights but not their model"):
        saccade.load(tmp_path / "m.safetensors")


def test_weights_of_another_model(tmp_path):
    model = saccade.build("linglo_nano", num_classes=5)
    about = {"saccade": json.dumps({"model": {**describe(model), "num_classes": 6}})}
    save_file(model.state_dict(), tmp_path / "m.safetensors", metadata=about)
    with pytest.raises(ValueError, match=r"another model: 'head.fc.weight' is \(5, 112\) there"):
        saccade.load(tmp_path / "m.safetensors")
    state = dict(model.state_dict())
    with pytest.raises(ValueError, match=r"it has no 'head.fc.bias'"):
        saved.fill(model, {k: v for k, v in state.items() if k != "head.fc.bias"}, "x")
    with pytest.raises(ValueError, match="'extra' has no place here"):
        saved.fill(model, {**state, "extra": torch.zeros(1)}, "x")


def test_a_failed_save_keeps_the_older_file(tmp_path, monkeypatch):
    path = saccade.save(saccade.build("linglo_nano"), tmp_path / "m.safetensors")
    before = path.read_bytes()

    def full(handle):
        raise OSError("no space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        saccade.save(saccade.build("linglo_nano"), path)
    assert path.read_bytes() == before


DETECTORS = {
    "retinanet": lambda: retinanet.build(
        "linglo_nano", 3, settings={"dim": 32, "depth": 1, "norm": True}, heads=[1, 2, 4, 7]
    ),
    "retinanet of timm": lambda: retinanet.build("resnet18", 3, dim=32, depth=1, in_chans=1),
    "detr": lambda: detr.build(
        "qna_nano", 3, dim=32, encoder=1, decoder=1, heads=2, hidden=32, queries=4, window=5
    ),
}


@pytest.mark.parametrize("kind", DETECTORS)
def test_a_saved_detector_comes_back_whole(tmp_path, kind):
    if kind == "detr":
        pytest.importorskip("transformers")
    net = DETECTORS[kind]().eval()
    path = saccade.save(net, tmp_path / "m.safetensors", classes=["a", "b", "c"])
    again = saccade.load(path)
    x = torch.randn(1, 1 if "timm" in kind else 3, 64, 96)
    with torch.no_grad():
        ours, theirs = net(x), again(x)
    if kind == "detr":
        ours, theirs = (list(out.values()) for out in (ours, theirs))
    else:
        ours, theirs = ([*out[0], *out[1]] for out in (ours, theirs))
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert not again.training
    assert again.notes == {"classes": ["a", "b", "c"]}
    assert describe(again) == describe(net)
    assert timm_config(again)["architecture"] == timm_config(net)["architecture"]
    # cut short it is refused in one sentence, and so is a kind of another day
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="truncated or no safetensors file"):
        saccade.load(path)
    about = {"model": {**describe(net), "kind": "yolo"}, "notes": {}}
    save_file(net.state_dict(), path, metadata={"saccade": json.dumps(about)})
    with pytest.raises(ValueError, match="is a 'yolo', which this version does not know"):
        saccade.load(path)


def test_a_fused_detector_survives(tmp_path):
    net = DETECTORS["retinanet"]().eval().fuse()
    again = saccade.load(saccade.save(net, tmp_path / "m.safetensors"))
    x = torch.randn(1, 3, 64, 96)
    with torch.no_grad():
        assert torch.equal(net(x)[0][0], again(x)[0][0])


# -- defaults that changed ------------------------------------------------------------------


def border(model):
    layers = (m for m in model.modules() if isinstance(m, StandAloneAttention))
    return next(layers).border


def without_border(path):
    """The file as an earlier version wrote it."""
    with safe_open(path, "pt") as file:
        about = json.loads(file.metadata()["saccade"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    assert about["model"].pop("border") == "mask"
    save_file(tensors, path, {"saccade": json.dumps(about)})
    return path


def test_files_that_state_no_border_are_of_the_time_of_zeros(tmp_path):
    model = saccade.build("sasa_nano", num_classes=3).eval()
    path, x = saccade.save(model, tmp_path / "m.safetensors"), torch.randn(1, 3, 32, 32)
    assert border(saccade.load(path)) == "mask"
    assert torch.equal(saccade.load(path)(x), model(x))
    old = saccade.load(without_border(path))
    zeros = saccade.build("sasa_nano", num_classes=3, border="zero").eval()
    zeros.load_state_dict(model.state_dict())
    assert torch.equal(old(x), zeros(x))
    again = saccade.load(saccade.save(old, tmp_path / "again.safetensors"))
    assert torch.equal(again(x), zeros(x)), "written anew, it says what it is"


def test_detectors_state_the_border_of_their_backbone(tmp_path):
    path = saccade.save(retinanet.build("sasa_nano", 2, dim=16, depth=1), tmp_path / "d")
    assert border(saccade.load(path)) == "mask"
    assert border(saccade.load(without_border(path))) == "zero"


def test_weights_in_the_box_keep_the_border_they_were_trained_with():
    trained, fresh = timm.create_model("sasa_nano", pretrained=True), saccade.build("sasa_nano")
    assert (border(trained), border(fresh)) == ("zero", "mask")
    assert border(saccade.load("sasa_nano")) == "zero"


@pytest.mark.parametrize("name", ["linglo_b0_chhh", "linglo_b0_cchh"])
@pytest.mark.parametrize("depths", [(2, 3, 3, 2), (3, 3, 3, 2), (1, 1, 2, 1)])
def test_an_ablation_as_it_was_built_before_still_loads(tmp_path, name, depths):
    """Two blocks were in its first stage once; a file says it in its header, or by its tensors."""
    model = saccade.build(name, depths=depths, num_classes=3).eval()
    assert tuple(describe(model)["depths"]) == depths
    assert tuple(describe(saccade.build(name))["depths"]) == (3, 3, 3, 2)
    stated = saccade.save(model, tmp_path / "new.safetensors")
    path = tmp_path / "old.safetensors"
    header = {"model": {"name": name, "num_classes": 3}, "notes": {}}
    save_file(model.state_dict(), path, {"saccade": json.dumps(header)})
    image = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        expected = model(image)
        for file in (stated, path):
            torch.testing.assert_close(saccade.load(file)(image), expected)

"""Models that go to the hub and come back, by timm's own functions, through a folder."""

import json

import pytest
import timm
import torch
from timm.models import save_for_hf

import saccade
from saccade.models import hub

CLASSES = ["ant", "bee", "cat"]
SHOWN = {"input_size": (3, 48, 48), "crop_pct": 0.9, "interpolation": "bilinear"}


def new_model(name="linglo_nano", **options):
    """As if trained: norms that saw something, no parameter where it began."""
    net = saccade.build(name, num_classes=3, **options).eval()
    for tensor in net.state_dict().values():
        if tensor.is_floating_point():
            tensor.add_(0.01 * torch.rand_like(tensor))
    return net


def same(a, b):
    x = torch.randn(2, 3, 64, 80)
    with torch.no_grad():
        return torch.equal(a.eval()(x), b.eval()(x))


def test_saved_by_timm_and_pulled_by_timm_and_by_saccade(tmp_path):
    net = new_model()
    save_for_hf(net, str(tmp_path), {"label_names": CLASSES}, safe_serialization=True)
    again = timm.create_model(f"local-dir:{tmp_path}", pretrained=True)
    assert same(again, net)
    assert again.pretrained_cfg["label_names"] == CLASSES
    for key in ("mean", "std"):
        assert tuple(again.pretrained_cfg[key]) == tuple(net.pretrained_cfg[key])
    ours = saccade.load(tmp_path)
    assert same(ours, net)
    assert not ours.training
    assert ours.notes["classes"] == CLASSES
    assert ours.notes["test"] == {"size": 64, "crop": 0.875, "interpolation": "bicubic"}


def test_another_number_of_classes_keeps_the_backbone(tmp_path):
    net = new_model()
    save_for_hf(net, str(tmp_path), safe_serialization=True)
    other = timm.create_model(f"local-dir:{tmp_path}", pretrained=True, num_classes=5).eval()
    x = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        assert other(x).shape == (1, 5)
        assert torch.equal(other.forward_features(x), net.forward_features(x))
    maps = timm.create_model(f"local-dir:{tmp_path}", pretrained=True, features_only=True).eval()
    with torch.no_grad():
        assert torch.equal(maps(x)[-1], net.forward_features(x))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("qna_nano", {"window": 5, "drop_path_rate": 0.1}),
        ("sasa_nano", {"global_pool": "max"}),
        ("linglo_nano", {"depths": (1, 1, 1, 1)}),
    ],
)
def test_written_by_saccade_with_all_it_was_built_with(tmp_path, name, options):
    net = new_model(name, **options)
    hub.write(net, tmp_path, "# card", SHOWN, classes=CLASSES, figures={"top1": 90.0})
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "README.md", "config.json", "model.safetensors",
    ]  # fmt: skip
    again = timm.create_model(f"local-dir:{tmp_path}", pretrained=True)
    assert same(again, net)
    about = timm.data.resolve_model_data_config(again)
    assert tuple(about["input_size"]) == (3, 48, 48)
    assert (about["crop_pct"], about["interpolation"]) == (0.9, "bilinear")
    assert json.loads((tmp_path / "config.json").read_text())["label_names"] == CLASSES
    ours = saccade.load(tmp_path)
    assert same(ours, net)
    assert ours.notes == {"classes": CLASSES, "figures": {"top1": 90.0}}


def test_other_than_three_colours(tmp_path):
    net = saccade.build("linglo_nano", num_classes=3, in_chans=4).eval()
    hub.write(net, tmp_path, "", {**SHOWN, "input_size": (4, 48, 48)})
    again = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    x = torch.randn(1, 4, 64, 64)
    with torch.no_grad():
        assert torch.equal(again(x), net(x))


def test_a_model_of_timm(tmp_path):
    net = timm.create_model("resnet10t", num_classes=3)
    hub.write(net, tmp_path, "", SHOWN)
    assert same(timm.create_model(f"local-dir:{tmp_path}", pretrained=True), net)


def test_a_fused_model_is_refused(tmp_path):
    with pytest.raises(ValueError, match="before fuse"):
        hub.write(new_model().fuse(), tmp_path / "x", "", SHOWN)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("group", "key", "value", "message"),
    [
        ("", "label_names", ["\x1b[2J", "b", "c"], "no list of plain words"),
        ("", "label_names", [1, 2, 3], "no list of plain words"),
        ("", "label_names", {"0": "a", "1": "b", "2": ["c"]}, "no list of plain words"),
        ("", "label_names", {"a": "b"}, "not numbered"),
        ("", "architecture", "hf-hub:someone/net", "no model named"),
        ("pretrained_cfg", "input_size", "x", "input_size is three numbers"),
        ("pretrained_cfg", "input_size", [3, 0, 0], "input_size is three numbers"),
        ("pretrained_cfg", "std", 5, "std is three numbers"),
        ("pretrained_cfg", "std", [0, 0, 0], "std is three numbers"),
        ("pretrained_cfg", "mean", [0, 0], "mean is three numbers"),
        ("pretrained_cfg", "crop_pct", "a", "crop_pct is a number"),
        ("pretrained_cfg", "interpolation", ["a"], "interpolation is a word"),
        ("model_args", "num_classes", 10**6, "is of another model"),
        ("model_args", "checkpoint_path", "/etc/passwd", "no argument 'checkpoint_path'"),
        ("model_args", "base_width", 128, "is no config of timm's"),
    ],
)
def test_a_strangers_config_is_checked_word_by_word(group, key, value, message, tmp_path):
    net = timm.create_model("resnet10t", num_classes=3)
    save_for_hf(net, str(tmp_path), {"label_names": CLASSES}, safe_serialization=True)
    config = json.loads((tmp_path / "config.json").read_text())
    (config.setdefault(group, {}) if group else config)[key] = value
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=message) as refused:
        saccade.load(tmp_path)
    assert "\n" not in str(refused.value)

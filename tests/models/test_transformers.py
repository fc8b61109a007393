"""transformers takes our models by timm's names: classifiers, pipelines and backbones."""

import pytest
import torch

import saccade
from saccade.models import hub

pytest.importorskip("transformers", reason="transformers is not installed")
TINY = {"depths": (1, 1, 1, 1), "widths": (8, 8, 16, 16), "heads": (1, 1, 2, 2)}


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.mark.slow
def test_classifiers_and_pipelines_read_our_folders(tmp_path):
    from PIL import Image
    from transformers import AutoModelForImageClassification, pipeline

    torch.manual_seed(0)
    model = saccade.build("linglo_nano", num_classes=2, **TINY).eval()
    settings = {"input_size": (3, 64, 64), "crop_pct": 1.0, "interpolation": "bilinear"}
    folder = hub.write(model, tmp_path / "hub", "", settings, classes=["bright", "dark"])
    x = torch.randn(2, 3, 64, 64)
    theirs = AutoModelForImageClassification.from_pretrained(folder).eval()
    torch.testing.assert_close(theirs(x).logits, model(x))
    assert theirs.config.id2label == {0: "bright", 1: "dark"}
    theirs.save_pretrained(tmp_path / "again")
    again = AutoModelForImageClassification.from_pretrained(tmp_path / "again").eval()
    torch.testing.assert_close(again(x).logits, model(x))
    answers = pipeline("image-classification", str(folder))(Image.new("RGB", (80, 70)))
    assert {answer["label"] for answer in answers} == {"bright", "dark"}


@pytest.mark.slow
def test_backbones_give_maps():
    from transformers import AutoBackbone, TimmBackboneConfig

    config = TimmBackboneConfig(
        backbone="linglo_nano", use_pretrained_backbone=False, out_indices=(0, 1, 2, 3)
    )
    backbone = AutoBackbone.from_config(config).eval()
    x = torch.randn(1, 3, 64, 64)
    maps = backbone(x).feature_maps
    assert [y.shape[1] for y in maps] == list(backbone.channels)


@pytest.mark.slow
def test_backbones_read_our_folders(tmp_path):
    """AutoBackbone.from_pretrained itself asks the hub about any name."""
    from transformers import AutoBackbone, TimmBackbone, TimmBackboneConfig

    torch.manual_seed(0)
    model = saccade.build("linglo_nano", num_classes=2, **TINY).eval()
    settings = {"input_size": (3, 64, 64), "crop_pct": 1.0, "interpolation": "bilinear"}
    name = f"local-dir:{hub.write(model, tmp_path / 'hub', '', settings, classes=['a', 'b'])}"
    x = torch.randn(1, 3, 64, 64)
    maps = model.forward_intermediates(x, intermediates_only=True)
    config = TimmBackboneConfig(backbone=name, out_indices=(0, 1, 2, 3))
    for backbone in (
        TimmBackbone.from_pretrained(name, out_indices=(0, 1, 2, 3)),
        AutoBackbone.from_config(config, pretrained=True),
    ):
        torch.testing.assert_close(list(backbone.eval()(x).feature_maps), list(maps))

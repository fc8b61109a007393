"""Backbones by name for detectors: saccade's and timm's behind one face."""

import pytest
import timm
import torch
from torch import nn

import saccade
from saccade.models import features

NAMES = ["linglo_nano", "qna_nano", "sasa_nano", "resnet18", "convnext_atto"]


@pytest.mark.parametrize("name", NAMES)
def test_maps_are_as_declared_and_all_of_it_learns(name):
    backbone = features.build(name)
    maps = backbone(torch.randn(2, 3, 64, 96))
    assert [x.shape[1] for x in maps] == list(backbone.widths)
    for x, stride in zip(maps, backbone.strides, strict=True):
        assert tuple(x.shape[2:]) == (-(-64 // stride), -(-96 // stride))
    assert backbone.timm_config["architecture"] == name
    sum(x.square().mean() for x in maps).backward()
    assert [n for n, p in backbone.named_parameters() if p.grad is None] == []


def test_maps_with_channels_last_are_turned():
    small = {"embed_dim": 8, "depths": (1, 1, 1, 1), "num_heads": (1, 1, 1, 1)}
    backbone = features.build("swin_tiny_patch4_window7_224", strict_img_size=False, **small)
    maps = backbone(torch.randn(1, 3, 64, 96))
    assert [tuple(x.shape[1:]) for x in maps] == [(8, 16, 24), (16, 8, 12), (32, 4, 6), (64, 2, 3)]


def test_a_family_that_ends_in_a_norm_gives_normalised_maps():
    backbone = features.build("qna_nano")
    for x in backbone(3 * torch.randn(1, 3, 64, 64)):
        torch.testing.assert_close(x.mean(1), torch.zeros_like(x[:, 0]), atol=1e-5, rtol=0)
        torch.testing.assert_close(
            x.var(1, unbiased=False), torch.ones_like(x[:, 0]), rtol=1e-2, atol=1e-2
        )
    for name in ("linglo_nano", "sasa_nano"):
        assert all(isinstance(norm, nn.Identity) for norm in features.build(name).norms)


def test_the_last_map_is_what_the_classifier_sees():
    classifier = saccade.build("qna_nano", num_classes=4).eval()
    backbone = features.build("qna_nano").eval()
    backbone.start_from(classifier)
    x = torch.randn(1, 3, 64, 64)
    torch.testing.assert_close(backbone(x)[-1], classifier.forward_features(x))
    only = timm.create_model("qna_nano", features_only=True).eval()
    features.copy_body(only, "qna_nano", classifier)
    torch.testing.assert_close(only(x)[-1], classifier.forward_features(x))


@pytest.mark.parametrize("name", ["linglo_nano", "resnet18", "convnext_atto"])
def test_weights_of_a_classifier(name):
    classifier = timm.create_model(name, num_classes=3).eval()
    backbone = features.build(name).eval()
    backbone.start_from(classifier)
    x = torch.randn(1, 3, 64, 64)
    last = classifier.forward_intermediates(x, intermediates_only=True)[-1]
    torch.testing.assert_close(backbone(x)[-1], last)


def test_other_weights_are_refused_before_any_is_copied():
    backbone = features.build("linglo_nano")
    before = {k: v.clone() for k, v in backbone.state_dict().items()}
    with pytest.raises(ValueError, match=r"weights are of a 'qna_nano' .* set model.name=qna_nano"):
        backbone.start_from(saccade.build("qna_nano"))
    with pytest.raises(ValueError, match=r"built with other options: .* here and missing there"):
        backbone.start_from(saccade.build("linglo_nano", depths=(1, 1, 1, 1)))
    assert all(torch.equal(v, before[k]) for k, v in backbone.state_dict().items())


def test_options_and_dropped_paths_reach_the_backbone():
    backbone = features.build("qna_nano", drop_path=0.3, window=5, in_chans=1)
    assert backbone.body.stages[0].blocks[0].mix.window == 5
    assert backbone.body.in_chans == 1
    rates = {m.drop_prob for m in backbone.modules() if hasattr(m, "drop_prob")}
    assert max(rates) == pytest.approx(0.3)


def test_recomputing():
    for name in ("linglo_nano", "convnext_atto"):
        backbone = features.build(name)
        backbone.set_grad_checkpointing()
        x = torch.randn(1, 3, 64, 64)
        plain = features.build(name)
        plain.load_state_dict(backbone.state_dict())
        for one in (backbone, plain):
            one.eval()
            sum(m.square().mean() for m in one(x)[-3:]).backward()
        for (n, p), q in zip(backbone.named_parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad, msg=n)


def test_names_that_give_no_maps_are_refused():
    with pytest.raises(ValueError, match="no model named 'linglo_nan'; did you mean 'linglo_nano'"):
        features.build("linglo_nan")

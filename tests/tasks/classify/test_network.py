"""Classifiers by name: saccade's and timm's, fresh or with weights to start from."""

import pytest
import torch

import saccade
from saccade.recipes.recipe import change
from saccade.tasks.classify import network
from tests.engine.classify_runs import PLAIN


def test_timm_s_models_keep_their_options_to_be_built_again(tmp_path):
    recipe = change(PLAIN, model__name="resnet10t", model__options={"output_stride": 16})
    net = network.build(recipe, 4, {"drop_path_rate": 0.0, "output_stride": 16})
    again = saccade.load(saccade.save(net.eval(), tmp_path / "net.safetensors"))
    image = torch.randn(1, 3, 64, 64)
    assert torch.equal(again(image), net(image))


def test_no_stochastic_depth_suits_every_model():
    recipe = change(PLAIN, model__name="vgg11")
    assert network.build(recipe, 3, {"drop_path_rate": 0.0}).num_classes == 3
    with pytest.raises(TypeError, match="drop_path_rate"):
        network.build(recipe, 3, {"drop_path_rate": 0.1})


def test_all_but_the_classifier_is_started_from_another(tmp_path):
    other = saccade.build("qna_nano", num_classes=7)
    path = saccade.save(other, tmp_path / "net.safetensors")
    net = saccade.build("qna_nano", num_classes=3)
    network.start(net, str(path))
    expected, got = other.backbone.state_dict(), net.backbone.state_dict()
    assert all(torch.equal(got[name], value) for name, value in expected.items())
    with pytest.raises(ValueError, match="was built with other options"):
        network.start(saccade.build("qna_nano", num_classes=3, in_chans=3, window=5), str(path))

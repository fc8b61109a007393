"""What a model says about itself is enough to build it again."""

import pytest
import timm
import torch

import saccade
from saccade.models.describe import describe, timm_config


@pytest.mark.parametrize("name", ["linglo_nano", "resnet18"])
def test_the_description_builds_the_model_again(name):
    model = timm.create_model(name, num_classes=7)
    arguments = describe(model)
    assert not arguments.pop("fused", False)
    again = timm.create_model(arguments.pop("name"), **arguments)
    shapes = {key: value.shape for key, value in model.state_dict().items()}
    assert {key: value.shape for key, value in again.state_dict().items()} == shapes


def test_timm_s_description_and_a_model_without_one():
    assert timm_config(saccade.build("qna_nano"))["architecture"] == "qna_nano"
    with pytest.raises(ValueError, match="no model of saccade or timm"):
        timm_config(torch.nn.Linear(2, 2))

"""What every task declares, and what a task gets that leaves it out."""

import dataclasses
from pathlib import Path

import pytest

import saccade
from saccade import tasks
from saccade.tasks.definition import check_timm_name, start_backbone

ROOT = Path(tasks.__file__).parent


@pytest.mark.parametrize("name", ["classify", "detect", "segment", "autoencode"])
def test_a_task_is_a_package_of_its_name(name):
    assert tasks.TASKS[name].name == name
    assert (ROOT / name / "__init__.py").is_file()


@pytest.mark.parametrize("name", ["classify", "detect", "segment", "autoencode"])
def test_what_is_declared_fits_together(name):
    """Settings can be made from nothing but what they demand, and make a transform."""
    definition = tasks.TASKS[name]
    for group in (definition.augment, definition.test):
        assert dataclasses.is_dataclass(group)
    transform = definition.test_transform(definition.test(), (0.5,) * 3, (0.5,) * 3)
    assert callable(transform)
    assert definition.data_hint


def test_a_name_that_nobody_knows_is_refused_with_the_nearest():
    check_timm_name("resnet18")
    with pytest.raises(ValueError, match="did you mean 'linglo_nano'"):
        check_timm_name("linglo_nan")


def test_a_backbone_that_does_not_fit_names_the_file(tmp_path):
    from saccade.models import semantic_fpn

    path = saccade.save(saccade.build("qna_nano"), tmp_path / "net.safetensors")
    net = semantic_fpn.build("linglo_nano", 3, dim=16, inner=16)
    with pytest.raises(ValueError, match=r"model\.start: .*net\.safetensors"):
        start_backbone(net, str(path))

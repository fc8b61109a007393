"""Tasks by their settings: groups that belong together, and the task of a saved model."""

import dataclasses

import pytest

from saccade import tasks
from saccade.recipes.detect import BoxAugment, BoxTest
from saccade.recipes.group import TaskSettings
from saccade.recipes.recipe import change
from saccade.tasks import classify
from tests.engine.classify_runs import PLAIN


def test_the_task_of_a_recipe():
    assert tasks.of(PLAIN) is classify.TASK
    assert tasks.of(PLAIN).example_sides(PLAIN) == (PLAIN.augment.size, PLAIN.test.size)


@pytest.mark.parametrize("wrong", [{"augment": BoxAugment()}, {"test": BoxTest()}])
def test_groups_of_another_task_are_refused(wrong):
    (group,) = wrong
    with pytest.raises(ValueError, match=f"a Classify task takes {group} of kind"):
        tasks.of(change(PLAIN, **wrong))


def test_the_task_of_a_saved_model():
    definition, settings = tasks.of_notes({"task": {"kind": "Classify", "smoothing": 0.2}})
    assert definition is classify.TASK
    assert settings.smoothing == 0.2
    assert tasks.of_notes({})[0] is classify.TASK, "as the first files were written"
    with pytest.raises(ValueError, match="of kind 'Juggle' is unknown"):
        tasks.of_notes({"task": {"kind": "Juggle"}})


def test_a_name_is_taken_once():
    with pytest.raises(ValueError, match="'classify' is registered already"):
        tasks.register(dataclasses.replace(classify.TASK, settings=()))
    with pytest.raises(ValueError, match="'classify' is registered already"):
        tasks.register(dataclasses.replace(classify.TASK, name="other"))
    with pytest.raises(ValueError, match="has a group named 'Classify' already"):
        type("Classify", (TaskSettings,), {})


def test_settings_of_no_task_are_refused():
    with pytest.raises(ValueError, match=r"call saccade\.tasks\.register"):
        tasks.of_settings(TaskSettings())


def test_a_network_by_its_name_in_a_paper():
    names = {}
    for name in ("linglo_nano", "linglo_b0_retinanet", "linglo_b0_semantic_fpn"):
        fresh = tasks.untrained(name)
        names[name] = tasks.of_settings(fresh.settings).name
        assert isinstance(fresh.test, tasks.of_settings(fresh.settings).test)
    assert list(names.values()) == ["classify", "detect", "segment"]
    assert tasks.untrained("linglo_b9") is None

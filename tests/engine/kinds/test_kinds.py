"""What the engine asks of a kind: words that belong together, and a model's own kind again."""

import pytest

from saccade.engine import kinds
from saccade.engine.kinds import classify
from saccade.recipes.recipe import BoxAugment, BoxTest, change
from tests.engine.classify_runs import PLAIN


def test_a_classifier_is_a_classifier():
    assert kinds.of(PLAIN) is classify.KIND
    assert kinds.of(PLAIN).verb == "predict"
    assert kinds.of(PLAIN).sides(PLAIN) == (PLAIN.augment.size, PLAIN.test.size)


@pytest.mark.parametrize("wrong", [{"augment": BoxAugment()}, {"test": BoxTest()}])
def test_words_of_another_kind_are_refused(wrong):
    (group,) = wrong
    with pytest.raises(ValueError, match=f"a Classify task takes {group} of kind"):
        kinds.of(change(PLAIN, **wrong))


def test_a_saved_model_says_its_kind():
    kind, asked = kinds.kept({"task": {"kind": "Classify", "smoothing": 0.2}})
    assert kind is classify.KIND
    assert asked.smoothing == 0.2
    assert kinds.kept({})[0] is classify.KIND, "as the first files were written"
    with pytest.raises(ValueError, match="of kind 'Juggle' is unknown"):
        kinds.kept({"task": {"kind": "Juggle"}})

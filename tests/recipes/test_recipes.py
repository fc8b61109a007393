"""The book: every recipe survives the disk, changes by dotted words, and says what it is for."""

import json
import re

import pytest

from saccade.recipes import book
from saccade.recipes.classify import Classify
from saccade.recipes.disk import from_plain, to_plain
from saccade.recipes.recipe import change, override

QUICK = book.find("quick")


@pytest.mark.parametrize("name", book.RECIPES)
def test_every_recipe_survives_the_disk(name):
    recipe = book.RECIPES[name]
    assert from_plain(json.loads(json.dumps(to_plain(recipe)))) == recipe
    assert "saccade train" in recipe.about


def test_recipes_that_earlier_versions_wrote_are_read(shared):
    """One of each task, as they were on disk when tasks had no packages of their own."""
    plain = json.loads((shared / "golden/recipes.json").read_text())
    kinds = {name: type(from_plain(one).task).__name__ for name, one in plain.items()}
    assert kinds == {
        "quick": "Classify", "distill": "Distill", "linglo_b0_retinanet": "RetinaNet",
        "detect_detr": "Detr", "segment": "Segment", "autoencode_qna": "AutoEncode",
    }  # fmt: skip
    assert from_plain(plain["quick"]).augment.scale == (0.6, 1.0)


@pytest.mark.parametrize("name", [n for n in book.CLAIMS if not n.startswith("quick")])
def test_every_paper_recipe_has_claims(name):
    assert name in book.RECIPES
    assert book.CLAIMS[name]


def test_change_reaches_inside_and_leaves_the_old_one_alone():
    new = change(QUICK, optim__lr=1.0, task=Classify(smoothing=0.3))
    assert (new.optim.lr, new.task.smoothing) == (1.0, 0.3)
    assert QUICK.optim.lr != 1.0
    assert change(QUICK, **{"loop.batch": 8}).loop.batch == 8


def test_overrides_are_typed():
    words = ["optim.lr=1e-2", "augment.scale=[0.5, 1]", "loop.ema=null", "loop.compile=true"]
    new = override(QUICK, [*words, "model.options.window=5", "model.name=qna_nano"])
    assert new.optim.lr == 0.01
    assert new.augment.scale == (0.5, 1.0)
    assert new.loop.ema is None
    assert new.loop.compile is True
    assert new.model.options == {"window": 5}
    assert new.model.name == "qna_nano"


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("optim.lrr=3", "did you mean 'lr'"),
        ("schedul.epochs=3", "a recipe has no 'schedul'; did you mean 'schedule'"),
        ("loop.epochs=3", "recipe's loop has no 'epochs'; did you mean 'schedule.epochs'"),
        ("lr=3", "did you mean 'optim.lr'"),
        ("optim=3", "set one of optim.name, optim.lr"),
        ("optim.lr=fast", "wants a number, got 'fast'"),
        ("optim.name=adamm", "one of adamw, adam, sgd, nesterov"),
        ("optim.lr", "takes KEY=VALUE"),
        ("loop.compile=maybe", "true or false"),
        ("loop.batch=1.5", "wants a whole number"),
        ("optim.lr.x=3", "'lr' has nothing inside"),
        ("optim.lr=" + "9" * 400, "wants a number, got"),
        ("loop.batch=" + "9" * 400, "loop.batch: 1 or more, got a number beyond all bounds"),
        ("opt\nim.lr=3", r"nim.lr' is no key; such as"),
    ],
)
def test_a_wrong_override_is_refused_with_the_cure(word, message):
    with pytest.raises(ValueError, match=message):
        override(QUICK, [word])


def test_unknown_names_and_versions_are_refused():
    with pytest.raises(ValueError, match="did you mean 'quick'"):
        book.find("quik")
    plain = to_plain(QUICK)
    with pytest.raises(ValueError, match=r"optim.warp is unknown"):
        from_plain({**plain, "optim": {**plain["optim"], "warp": 1}})
    with pytest.raises(ValueError, match="of kind 'Juggle'"):
        from_plain({**plain, "task": {"kind": "Juggle"}})
    with pytest.raises(ValueError, match="'loop' is missing"):
        from_plain({k: v for k, v in plain.items() if k != "loop"})


@pytest.mark.parametrize(
    "change_",
    ["optim.lr_batch=0", "loop.batch=0", "loop.keep=0", "augment.repeats=0", "augment.scale=[2,1]"],
)
def test_numbers_that_no_run_could_use_are_refused_at_once(change_):
    with pytest.raises(ValueError, match=change_.partition("=")[0]):
        override(book.find("scratch"), [change_])


def test_a_list_is_asked_for_in_words():
    with pytest.raises(ValueError, match=r"augment.scale: wants a list of 2, such as \[0.5, 1\]"):
        override(book.find("scratch"), ["augment.scale=0.5"])


@pytest.mark.parametrize("text", ["&a [*a]", "&a {k: *a}", "&a [1, [*a]]"])
def test_a_value_that_contains_itself_is_refused(text):
    with pytest.raises(ValueError, match=r"--set model\.options\.x: a value that contains itself"):
        override(book.find("quick"), [f"model.options.x={text}"])


@pytest.mark.parametrize(
    ("group", "key", "value", "message"),
    [
        ("optim", "lr", "fast", "recipe: optim.lr wants a number, got 'fast'"),
        ("optim", "name", "adamx", "recipe: optim.name wants one of adamw"),
        ("loop", "batch", True, "recipe: loop.batch wants a whole number"),
        ("loop", "batch", None, "recipe: loop.batch wants a whole number"),
        ("schedule", "steps", 3, "recipe: schedule.steps wants a list"),
        ("schedule", "end", -1, "schedule.end: 0 to 1, got -1"),
        ("model", "options", [], "recipe: model.options wants"),
        ("task", "kind", ["Classify"], "recipe: task of kind"),
    ],
)
def test_a_value_of_another_type_in_a_file_is_refused(group, key, value, message):
    plain = json.loads(json.dumps(to_plain(book.find("quick"))))
    plain[group][key] = value
    with pytest.raises(ValueError, match=re.escape(message)):
        from_plain(plain)
    with pytest.raises(ValueError, match=f"recipe: {group} is no group"):
        from_plain({**plain, group: 3})


@pytest.mark.parametrize(("kind", "border"), [("attention", "zero"), ("conv", "mask")])
def test_attention_in_a_detector_of_an_earlier_version_goes_on_with_zeros(kind, border):
    recipe = change(book.RECIPES["detect"], task__heads=kind)
    assert recipe.task.border == "mask"
    plain = to_plain(recipe)
    assert from_plain(plain) == recipe
    del plain["task"]["border"]
    assert from_plain(plain).task.border == border

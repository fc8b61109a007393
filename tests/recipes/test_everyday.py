"""The short forms of `saccade train` mean what `--set` means."""

import pytest

from saccade.cli import learn
from saccade.engine import session
from saccade.recipes import book
from saccade.recipes.recipe import override
from tests.cli.conftest import typed as typed  # the command line, as a fixture


@pytest.fixture
def trained(typed, monkeypatch, tmp_path):
    """The recipe that a command would train by."""
    monkeypatch.chdir(tmp_path)
    begun = []
    monkeypatch.setattr(session, "train", lambda recipe, *_, **__: begun.append(recipe))
    monkeypatch.setattr(learn, "_print_result", lambda *_: None)

    def call(*words):
        begun.clear()
        code, _, err = typed("train", *words)
        assert code == 0, err
        (recipe,) = begun
        return recipe

    return call


@pytest.mark.parametrize(
    ("recipe", "short", "long"),
    [
        ("quick", "--epochs 3", "schedule.epochs=3"),
        ("quick", "--batch 16", "loop.batch=16"),
        ("quick", "--lr 3e-4", "optim.lr=3e-4"),
        ("quick", "--model qna_nano", "model.name=qna_nano"),
        ("quick", "--start runs/a", "model.start=runs/a"),
        ("quick", "--seed 7", "loop.seed=7"),
        ("quick", "--size 96", "augment.size=96 test.size=96"),
        ("detect", "--size 96", None),
        ("segment", "--size 96", None),
        ("linglo_b0_semantic_fpn", "--epochs 2", "schedule.epochs=2 schedule.iterations=null"),
        ("scratch", "--epochs 2", "schedule.epochs=2 schedule.warmup=0.15"),
        ("scratch", "--epochs 4", "schedule.epochs=4"),
        ("quick", "--epochs 3 --set schedule.epochs=4 optim.clip=1",
         "schedule.epochs=4 optim.clip=1"),
    ],
)  # fmt: skip
def test_short_forms(trained, recipe, short, long):
    got = trained(recipe, "--data", "somewhere", *short.split())
    if long is not None:
        assert got == override(book.find(recipe), long.split())
    else:
        before = book.find(recipe)
        assert got.test.short == 96
        assert got.test.long == round(before.test.long * 96 / before.test.short)
        assert min(got.augment.short if recipe == "detect" else [got.augment.short]) < 200


def test_everyday_numbers_are_checked_like_others(typed):
    code, _, err = typed("train", "quick", "--epochs", "0")
    assert code == 1
    assert "schedule.epochs" in err
    code, _, err = typed("train", "quick", "--size", "0")
    assert code == 1
    assert "augment.size" in err

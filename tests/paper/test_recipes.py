"""Recipes hold what the papers print, read off what they have become; and no field is idle."""

import dataclasses
import json
import sys
from pathlib import Path

import pytest

from saccade.data import augment
from saccade.data.datasets import find
from saccade.engine import make
from saccade.engine.distributed import Group
from saccade.engine.optim import schedule
from saccade.paper import claims, recipes
from saccade.recipes import book, bounds, classify, disk, group
from saccade.recipes import recipe as words
from saccade.recipes.augment import Augment, Test
from saccade.recipes.classify import Classify, Distill
from saccade.recipes.recipe import Schedule, change
from tests.engine.classify_runs import FULL, PLAIN, fit, folder

CLAIMS = [(name, claim) for name, claims in book.CLAIMS.items() for claim in claims]


@pytest.mark.parametrize(
    ("name", "claim"), CLAIMS, ids=[f"{name}-{c.where}-{c.what}" for name, c in CLAIMS]
)
def test_the_paper(name, claim):
    measured = recipes.measure(book.find(name), claim)
    plain = json.loads(claims.FILE.read_text())["recipe"][name]
    assert measured == plain[claim.what], "write anew: python -m saccade.paper.claims recipe"
    if claim.number is None:
        assert (measured == claim.said) is not bool(claim.differs)
    else:
        assert claim.holds(measured), measured


def test_a_claim_notices_a_change():
    """The same claims, on recipes that no longer hold them."""
    wrong = {
        "epochs": change(book.find("sasa"), schedule__epochs=131),
        "learning rate": change(book.find("sasa"), optim__lr_batch=None, optim__lr=1.7),
        "warm-up epochs": change(book.find("sasa"), schedule__warmup=9),
        "warm-up": change(book.find("sasa"), schedule__warmup=0),
        "rate of stochastic depth": change(book.find("qna_t"), model__drop_path=0.0),
        "schedule": change(book.find("sasa"), schedule__shape="poly"),
        "optimiser": change(book.find("sasa"), optim__name="sgd"),
        "BN decay": change(book.find("sasa"), loop__bn_decay=0.9),
        "EMA": change(book.find("sasa"), loop__ema_ramp=True),
        "augmentation": change(book.find("qna_t"), augment__erase=0.0),
        "label smoothing": change(book.find("qna_t"), task__smoothing=0.0),
        "stochastic depth": change(book.find("qna_t"), model__drop_path=0.0),
        "positions and scales undecayed": change(book.find("qna_t"), optim__undecayed=("vectors",)),
        "weight decay": change(book.find("qna_t"), optim__weight_decay=0.1),
        "centre crop": change(book.find("linglo_b0"), test__size=256),
        "batch": change(book.find("linglo_b0"), loop__batch=512),
        "steps": change(book.find("linglo_b0_retinanet"), schedule__steps=(8.0, 10.0)),
        "short side": change(book.find("linglo_b0_retinanet"), augment__short=(640,)),
        "long side": change(book.find("linglo_b0_retinanet"), augment__long=1000),
        "new layers": change(book.find("linglo_b0_retinanet"), task__init="retinanet"),
        "backbone rate": change(book.find("qna_t_detr"), optim__backbone=1.0),
        "sides of the crop": change(book.find("qna_t_detr"), augment__part_sides=(300, 600)),
        "3x3 convolutions above the backbone": book.find("sasa_retinanet50_heads"),
        "where a convolution was strided": book.find("sasa_retinanet50_heads"),
        "end of a head": book.find("sasa_retinanet50"),
        "crop": change(book.find("sasa_retinanet50"), augment__crop=512),
        "flip": change(book.find("sasa_retinanet50"), augment__flip=0.4),
        "iterations": change(book.find("linglo_b0_semantic_fpn"), schedule__iterations=39_000),
        "random crop": change(book.find("linglo_b0_semantic_fpn"), augment__crop=480),
        "test short side": change(book.find("linglo_b0_semantic_fpn"), test__short=600),
        "image side": change(book.find("autoencode_qna"), augment__size=128),
    }
    for what, recipe in wrong.items():
        claim = next(c for _, c in CLAIMS if c.what == what)
        measured = recipes.measure(recipe, claim)
        assert not claim.holds(measured), (what, measured)


def test_every_field_of_a_recipe_is_read(tmp_path, monkeypatch):
    """Run with everything on, and note who looks at what; writing a recipe down is no reading."""
    kinds = [
        words.Model, Classify, words.Data, Augment, Test, words.Optim,
        words.Schedule, words.Loop, words.Recipe,
    ]  # fmt: skip
    read = set()
    modules = (dataclasses, words, bounds, disk, group, classify)
    clerks = {module.__file__ for module in modules}

    def noted(self, name):
        if sys._getframe(1).f_code.co_filename not in clerks:
            read.add((type(self), name))
        return object.__getattribute__(self, name)

    for kind in kinds:
        monkeypatch.setattr(kind, "__getattribute__", noted)
    data = folder(tmp_path / "data")
    run = fit(change(FULL, schedule__epochs=1), data, tmp_path / "run")
    fit(change(PLAIN, model__start=str(run.folder), schedule__epochs=1), data, tmp_path / "on")
    optim = recipes.Live(PLAIN, classes=3).optimiser
    for shape in ("step", "poly"):
        schedule(optim, Schedule(epochs=2, shape=shape, steps=(1.0,)), 4)
    assert recipes.Live(change(PLAIN, optim__name="muon"), classes=3).optimiser
    make.workers(PLAIN.data, Group())
    find(str(data / "train"), FULL.data)
    augment.train(book.find("cifar_best").augment, (0.5,) * 3, (0.5,) * 3)
    readers = {(words.Recipe, "about")}  # by `saccade recipes`
    fields = {(kind, f.name) for kind in kinds for f in dataclasses.fields(kind)}
    idle = {f"{kind.__name__}.{name}" for kind, name in fields - read - readers}
    assert idle == set()
    task = Path(words.__file__).parents[1] / "tasks" / "classify"
    source = "".join((task / name).read_text() for name in ("teacher.py", "__init__.py"))
    for field in dataclasses.fields(Distill):
        assert f"settings.{field.name}" in source, field.name

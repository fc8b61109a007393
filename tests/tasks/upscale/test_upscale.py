"""A run learns to sharpen, goes on where it stopped, and is exported."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

import saccade
from saccade.engine import session
from saccade.recipes import book
from saccade.recipes.recipe import Loop, Optim, Schedule, change
from saccade.recipes.upscale import PatchAugment, Upscale
from tests.engine.classify_runs import fit

SMALL = change(
    book.find("upscale"),
    about="small",
    task=Upscale(body="conv", dim=8, depth=1),
    data__workers=0,
    augment=PatchAugment(size=32),
    optim=Optim(name="adam", lr=5e-3),
    schedule=Schedule(epochs=40),
    loop=Loop(batch=4, evaluate_every=40),
)


def stripes(folder, count=12):
    """Sharp edges at all angles: what bicubic interpolation blurs."""
    folder.mkdir(parents=True)
    chance = np.random.default_rng(0)
    y, x = np.mgrid[:48, :48]
    for i in range(count):
        angle, width = chance.uniform(0, np.pi), chance.uniform(5, 9)
        bright = np.sin((x * np.cos(angle) + y * np.sin(angle)) * 2 * np.pi / width) > 0
        colours = chance.integers(0, 256, (2, 3))
        Image.fromarray(colours[bright.astype(int)].astype(np.uint8)).save(folder / f"{i:02}.png")
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    data = stripes(tmp_path_factory.mktemp("stripes") / "all")
    return fit(SMALL, data, tmp_path_factory.mktemp("runs") / "run"), data


def test_a_run_is_better_than_bicubic_interpolation(trained):
    run, _ = trained
    figures = json.loads((run.folder / "report.jsonl").read_text().splitlines()[-1])["val"]
    assert figures["psnr"] > figures["bicubic_psnr"] + 0.3
    assert (run.folder / "upscaled.png").stat().st_size > 1000


def test_a_trained_network_starts_one_of_another_factor(trained, tmp_path):
    run, data = trained
    recipe = change(SMALL, task__factor=4, model__start=str(run.folder), schedule__epochs=1)
    recipe = change(recipe, loop__evaluate_every=1)
    other = fit(recipe, data, tmp_path / "four")
    assert session.open_model(other.folder, torch.device("cpu"), "upscale").task.net.factor == 4
    wrong = change(recipe, task__body="qna")
    with pytest.raises(ValueError, match=r"model\.start: .* is another model"):
        fit(wrong, data, tmp_path / "wrong")


def test_another_model_is_refused(trained, tmp_path):
    _, data = trained
    with pytest.raises(ValueError, match="trains the model 'upscaler'"):
        fit(change(SMALL, model__name="qna_nano"), data, tmp_path / "run")


def test_a_run_is_a_model_for_python(trained):
    run, _ = trained
    net = saccade.load(str(run.folder))
    assert net(torch.rand(1, 3, 10, 12)).shape == (1, 3, 20, 24)

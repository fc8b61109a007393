import json

import torch

from saccade.recipes.recipe import change
from saccade.report.summary import Summary
from saccade.tasks.classify import baseline
from tests.engine.classify_runs import PLAIN, fit, folder


def test_a_linear_model_is_fitted_counted_and_kept(tmp_path):
    recipe = change(PLAIN, loop__baseline=True, schedule__epochs=1)
    run = fit(recipe, folder(tmp_path / "data"), tmp_path / "run")
    figures = json.loads((run.folder / "baseline.json").read_text())
    assert figures["top1"] == 100  # the colours differ in their mean
    assert figures["images"] == 9


def test_it_is_the_least_cross_entropy():
    torch.manual_seed(0)
    x, y = torch.randn(60, 3), torch.randint(0, 3, (60,))
    W, b = baseline.linear(x, y, 3, decay=0.1)
    p = (x @ W.T + b).softmax(1) - torch.eye(3)[y]
    assert (p.T @ x / 60 + 0.1 * W).abs().max() < 1e-3  # no slope is left
    assert p.mean(0).abs().max() < 1e-3


def test_a_run_names_what_it_is_to_beat(tmp_path):
    recipe = change(PLAIN, loop__baseline=True, schedule__epochs=1)
    run = fit(recipe, folder(tmp_path / "data"), tmp_path / "run")
    name, value = Summary.of(run).baseline
    assert (name, value) == ("a linear model on the pixels", 100)
    assert any("baseline: 100" in sentence for sentence in Summary.of(run).sentences())

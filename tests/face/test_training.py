import pytest

import saccade
from tests.engine.classify_runs import folder


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    data = folder(tmp_path_factory.mktemp("data") / "set")
    settings = {"data.workers": 0, "augment.size": 32, "test.size": 32}
    return saccade.train(
        "scratch", data, model="linglo_nano", epochs=2, batch=4, progress=False,
        settings=settings, out=tmp_path_factory.mktemp("runs") / "run",
    )  # fmt: skip


def test_a_run_has_figures_and_a_model(run):
    assert [line["epoch"] for line in run.metrics] == [1, 2]
    assert set(run.best) >= {"epoch", "top1", "loss"}
    assert run.recipe.schedule.epochs == 2
    assert run.load().notes["classes"] == list(run.classes)
    again = saccade.TrainedRun(run.folder)
    assert again.metrics == run.metrics
    assert "linglo_nano" in repr(again)


def test_a_run_draws_itself(run):
    pytest.importorskip("matplotlib")
    assert run.figure("curves").width > 100
    assert run.report().name == "report.html"
    assert "<img" in run._repr_html_()
    with pytest.raises(ValueError, match="no picture 'nothing'"):
        run.figure("nothing")

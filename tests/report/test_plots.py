import io

import numpy as np
import pytest
from PIL import Image

from saccade.files import write_json
from saccade.report.summary import Summary
from tests.report.run_folders import EPOCHS, written

matplotlib = pytest.importorskip("matplotlib")

from saccade.report import plots  # noqa: E402

NAN = float("nan")


@pytest.fixture
def texts(monkeypatch):
    """Every word that is drawn, by figure."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.text import Text

    shown_texts = []
    drawn = FigureCanvasAgg.draw

    def listen(canvas):
        shown_texts.extend(
            text.get_text() for text in canvas.figure.findobj(Text) if text.get_visible()
        )
        drawn(canvas)

    monkeypatch.setattr(FigureCanvasAgg, "draw", listen)
    return shown_texts


def opened(png):
    picture = Image.open(io.BytesIO(png))
    picture.load()
    assert picture.mode == "RGBA"
    alpha = np.asarray(picture)[..., 3]
    assert alpha.any()
    assert not alpha[0].any(), "a margin around the picture, on no ground"
    return picture


def test_curves_say_what_they_show(tmp_path, texts):
    run = written(tmp_path, best=97.3, terms=("cross_entropy", "teacher"))
    write_json(tmp_path / "baseline.json", {"name": "costs $5 or $6", "top1": 90.1})
    opened(plots.curves(Summary.of(run)))
    for word in (
        "training", "validation", "cross entropy", "teacher", "top-1", "top-5", "learning rate",
        "epoch", f"best top-1: 97.30%, epoch {EPOCHS}", r"costs \$5 or \$6: 90.1",
    ):  # fmt: skip
        assert word in texts


@pytest.fixture
def axes(monkeypatch):
    """The axes that are drawn, top to bottom."""
    drawn = []
    monkeypatch.setattr(plots, "_png", lambda figure: drawn.extend(figure.axes) or b"")
    return drawn


def test_every_loss_lies_within_the_axes(tmp_path, axes):
    """Also a term that becomes much smaller than the sum, and a single spike does not count."""
    run = written(tmp_path, terms=("classes", "boxes"))
    lines = run.lines("steps.jsonl")
    (tmp_path / "steps.jsonl").unlink()
    for i, line in enumerate(lines):
        line["loss"] = {"classes": 2.0 / (1 + i), "boxes": 1000.0 if i == 30 else 1.5}
        run.write(line, "steps.jsonl")
    plots.curves(Summary.of(run))
    losses = axes[0]
    low, _ = losses.get_ylim()
    for line in losses.get_lines()[1:]:
        values = line.get_ydata()
        assert len(values), line.get_label()
        assert low <= np.nanmin(values), line.get_label()
    assert losses.get_yscale() == "log"
    names = [line.get_label() for line in losses.get_lines()]
    assert [name for name in names if not name.startswith("_")] == [
        "training", "classes", "boxes", "validation",
    ]  # fmt: skip


def test_one_loss_stands_on_a_plain_axis(tmp_path, axes):
    plots.curves(Summary.of(written(tmp_path)))
    assert axes[0].get_yscale() == "linear"


def test_few_figures_are_drawn(tmp_path, axes):
    from saccade.tasks.detect.average_precision import FIGURES

    boxes = {name: float(i) for i, name in enumerate(FIGURES)}
    plots.curves(Summary.of(written(tmp_path / "boxes", figures=lambda _: boxes)))
    drawn = [line.get_label() for line in axes[1].get_lines()]
    assert [name for name in drawn if not name.startswith("_")] == ["AP", "AP50", "AP75", "AR100"]
    axes.clear()
    unknown = {f"own {i}": float(i) for i in range(9)}
    plots.curves(Summary.of(written(tmp_path / "own", figures=lambda _: unknown)))
    assert len([line for line in axes[1].get_lines() if line.get_label()[0] != "_"]) == 5


@pytest.mark.parametrize(
    ("epochs", "figures"),
    [
        (1, None),
        (3, lambda epoch: {"top1": NAN if epoch > 1 else 1.0, "loss": float("inf")}),
        (2, lambda _: {"top1": NAN, "top5": NAN, "loss": NAN, "images": 4}),
        (2, lambda _: {"ap": 0.3}),
        (2, lambda _: {"top1": 50.0, "loss": 1.0}),
    ],
)
def test_curves_of_what_little_there_is(tmp_path, epochs, figures):
    opened(plots.curves(Summary.of(written(tmp_path, epochs=epochs, figures=figures))))


def test_curves_without_steps(tmp_path, texts):
    run = written(tmp_path, figures=lambda _: {"top1": NAN, "loss": NAN})
    (tmp_path / "steps.jsonl").unlink()
    opened(plots.curves(Summary.of(run)))
    assert texts.count("no finite value") == 2


def test_smoothing_is_a_mean_of_neighbours():
    values = np.array([1.0, NAN, 3.0, 5.0, 1.0])
    np.testing.assert_allclose(plots.smoothed(values, least=3), [1, 2, 4, 3, 3])
    np.testing.assert_allclose(plots.smoothed(np.full(50, 2.0)), 2.0)
    assert np.isnan(plots.smoothed(np.full(3, NAN))).all()
    assert plots.smoothed(np.array([])).size == 0


def test_a_small_confusion_has_numbers_and_pairs(texts):
    opened(plots.confusion([[8, 2], [1, 3]], ["cat", "dog"]))
    assert {"cat", "dog", "80", "20", "25", "75"} <= set(texts)
    assert "cat taken for dog: 2 of 10 (20%)\ndog taken for cat: 1 of 4 (25%)" in texts


def test_a_large_confusion_has_names_and_no_numbers(texts):
    n = 60
    opened(plots.confusion((7 * np.eye(n, dtype=int)).tolist(), [f"c{i}" for i in range(n)]))
    assert "c59" in texts
    assert "100" in texts  # on the scale
    assert texts.count("100") == 1


def test_a_huge_confusion_has_neither(texts):
    n = plots.NAMED + 1
    matrix = np.eye(n, dtype=int)
    matrix[3, 5] = 4
    opened(plots.confusion(matrix.tolist(), [f"c{i}" for i in range(n)]))
    assert "c7" not in texts
    assert "c3 taken for c5: 4 of 5 (80%)" in texts


def test_names_of_any_kind(texts):
    names = ["$\\frac{1$", "a\nb\t c", "猫", "x" * 100, "", "<b>"]
    opened(plots.confusion((np.eye(6, dtype=int) * 3 + 1).tolist(), names))
    assert "a b c" in texts
    assert "x" * 21 + "…" in texts
    assert "\\$\\frac{1\\$" in texts


def test_a_class_without_images_has_no_shares(texts):
    opened(plots.confusion([[2, 0], [0, 0]], ["here", "nowhere"]))
    assert texts.count("100") == 2  # the one cell, and the scale
    assert "nan" not in texts


def test_several_runs(texts):
    lines = [
        plots.Curve("a (mean of 3 ± sd)", [1, 2], [50.0, 60.0], [1.0, 2.0]),
        plots.Curve("b", [1], [NAN], [NAN]),
        *(plots.Curve(f"c{i}", [1, 2, 3], [1.0, 2.0, 3.0], [0, 0, 0]) for i in range(8)),
    ]
    opened(plots.compare(lines, "top1"))
    assert {"a (mean of 3 ± sd)", "b", "c7", "validation top-1, %"} <= set(texts)


def test_nothing_global_is_touched():
    """A notebook's own pyplot, its figures and its settings stay as they were."""
    from matplotlib import pyplot

    before = dict(matplotlib.rcParams), pyplot.get_fignums(), matplotlib.get_backend()
    plots.confusion([[1, 0], [0, 1]], ["a", "b"])
    assert before == (dict(matplotlib.rcParams), pyplot.get_fignums(), matplotlib.get_backend())


@pytest.mark.parametrize("count", [1, 11, 150])
def test_any_number_of_classes(count):
    png = plots.classes([{"class": f"class {i}", "AP": 100 * i / count} for i in range(count)])
    with Image.open(io.BytesIO(png)) as picture:
        assert picture.size[0] > 300
        assert picture.size[1] < 3000


def test_absent_classes_and_odd_names():
    figures = {"$x_1$": 10.0, "a" * 80: 0.0, "naïve\nname": 99.9, "gone": None}
    table = [{"class": name, "IoU": share} for name, share in figures.items()]
    assert plots.classes(table).startswith(b"\x89PNG")


def test_precision_over_recall(texts):
    curves = {"mean of .50 to .95": [1.0, 0.5, 0.0], "overlap .50": [1.0, 1.0, 0.7]}
    png = plots.precision(curves, {"cat": [1.0, 0.5]})
    one = Image.open(io.BytesIO(png)).width
    assert one > 300
    drawn = " ".join(texts)
    assert "overlap .50: AP 90.0" in drawn
    assert "recall" in drawn
    assert "cat" not in drawn, "a single class is the mean of all"
    png = plots.precision(curves, {f"cat {i}": [1.0, 0.5 + i / 20] for i in range(10)})
    assert Image.open(io.BytesIO(png)).width > 1.8 * one
    assert "cat 9: AP 97.5" in texts

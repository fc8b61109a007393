import json
import sys

import numpy as np
import pytest
from PIL import Image

from saccade import view as views
from saccade import weights
from tests.cli.program import called, environment, installed

# -- how soon it answers --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "limit", "code"),
    [
        ([], 0.3, 0),
        (["--help"], 0.3, 0),
        (["--version"], 0.3, 0),
        (["help", "train"], 0.3, 0),
        (["trian"], 0.3, 2),
        (["train", "quik"], 1.5, 1),
        (["list"], 1.5, 0),
        (["recipes"], 1.5, 0),
    ],
)
@pytest.mark.parametrize("program", ["script", "module"])
def test_it_answers_at_once(program, words, limit, code, tmp_path):
    """In CPU seconds, without torch, as the program and as `python -m saccade`."""
    start = [installed(tmp_path)] if program == "script" else [sys.executable, "-m", "saccade"]
    times = []
    for _ in range(3):
        result, seconds = called(*start, *words, env=environment(SHOW_TORCH="1"))
        assert result.returncode == code, result.stderr
        times.append(seconds)
        if seconds < limit:
            break
    assert min(times) < limit
    if program == "script":
        assert result.stderr.splitlines()[-1] == "False", "torch is not imported"


@pytest.mark.slow
def test_importing_registers_every_model_with_timm():
    program = (
        "import timm, saccade; print(timm.create_model('linglo_nano', num_classes=3).num_classes)\n"
        "print(all(map(timm.is_model, saccade.names())))"
    )
    result, _ = called(sys.executable, "-c", program)
    assert result.stdout.split() == ["3", "True"], result.stderr


@pytest.mark.slow
def test_a_command_finds_models_by_itself(tmp_path):
    """The program imports no model before it is asked for one."""
    words = ["show", "qna_nano", "--size", "32", "--json"]
    result, _ = called(installed(tmp_path), *words, env=environment(SHOW_TORCH="1"))
    assert json.loads(result.stdout)["params"] == 667_782
    assert result.stderr.splitlines()[-1] == "True"


# -- looking --------------------------------------------------------------------------------


def test_list(run):
    code, out = run("list", "linglo_b?")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == [
        "model",
        "linglo_b0",
        "linglo_b1",
        "linglo_b2",
    ]
    assert "3.81" in out


def test_list_takes_a_part_of_a_name(typed):
    code, out, err = typed("list", "nano")
    assert (code, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines()[1:]] == [
        "linglo_nano", "qna_nano", "sasa_nano", "sasa_nano_conv",
    ]  # fmt: skip


def test_table_rows_are_listed_with_all(typed):
    _, out, err = typed("list", "qna")
    assert "_table" not in out
    assert "26 rows of the papers' tables: saccade list --all" in err
    assert typed("list", "qna", "--all")[1].count("_table") == 26
    assert typed("list", "qna_table4_11*")[1].count("_table") == 2, "they were asked for by name"


def test_show(run):
    code, out = run("show", "linglo_b0_cchh")
    assert code == 0
    for part in (
        "3,711,802 parameters",
        "3 x SEBasicBlock",
        "3 x Block(KeyOnlyAttention)",
        "256 x 7 x 7",
    ):
        assert part in out
    code, out = run("show", "linglo_nano", "--size", "96")
    assert "at 96 x 96" in out


def test_receptive_fields_are_measured(run):
    """Before the first attention a plain convolution sees 7 pixels; with it, everything."""
    from saccade.paper import count

    assert count.receptive_fields("linglo_nano", 64) == [64, 64, 64, 64]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("show", "linglo_b9"), "no model named 'linglo_b9'; did you mean 'linglo_b0'?"),
        (("show", "linglo_b0", "--size", "20"), "at least 32x32 pixels"),
        (("list", "nothing*"), "no model matches 'nothing*'"),
        (("paper", "bert"), "no paper named 'bert'"),
        (("view", "gone.jpg"), "no picture 'gone.jpg'"),
    ],
)
def test_what_goes_wrong_is_one_sentence(run, arguments, says):
    code, out = run(*arguments)
    assert code == 1
    assert says in out
    assert "Traceback" not in out


@pytest.mark.parametrize("model", ["linglo_nano", "qna_nano", "sasa_nano"])
def test_view_draws_a_sheet(run, tmp_path, model):
    pytest.importorskip("matplotlib")
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (50, 70, 3), np.uint8)).save(
        tmp_path / "a.png"
    )
    out = tmp_path / "sheet.png"
    code, text = run(
        "view", str(tmp_path / "a.png"), "--model", model, "--out", str(out), "--size", "64"
    )
    assert code == 0, text
    with Image.open(out) as sheet:
        assert sheet.size[0] > 300


@pytest.fixture
def photo(tmp_path):
    path = tmp_path / "photo.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (50, 70, 3), np.uint8)).save(path)
    return path


def test_evidence_is_of_what_predict_says(run, photo, monkeypatch):
    """The model sees the picture as `predict` shows it."""
    pytest.importorskip("matplotlib")
    drawn = []
    monkeypatch.setattr(views, "picture", lambda *arguments, **_: drawn.append(arguments))
    for name in weights.classifiers():
        code, out = run("predict", str(photo), "--model", name, "--json", "--top", "3")
        expected = [f"{c['label']} {100 * c['share']:.1f}%" for c in json.loads(out)["guesses"]]
        code, out = run("view", str(photo), "--model", name, "--evidence")
        assert code == 0, out
        assert drawn.pop()[4] == expected


@pytest.mark.parametrize(
    "words",
    [
        ["--model", "qna_nano", "--kernels"],
        ["--model", "sasa_nano", "--at", "20,30"],
        *(
            pytest.param(words, marks=pytest.mark.slow)
            for words in (
                ["--model", "qna_nano", "--at", "20,30"],
                ["--model", "linglo_nano", "--evidence"],
            )
        ),
    ],
)
def test_other_views(run, photo, tmp_path, words):
    pytest.importorskip("matplotlib")
    code, out = run("view", str(photo), "--out", str(tmp_path / "a.png"), *words)
    assert code == 0, out
    assert (tmp_path / "a.png").is_file()


def test_strokes_of_kernels_are_bright(run, photo, tmp_path):
    """One strong weight does not leave all others dark: the brightest percent is drawn alike."""
    pytest.importorskip("matplotlib")
    words = ("--model", "qna_nano", "--kernels", "--out", str(tmp_path / "a.png"))
    code, out = run("view", str(photo), *words)
    assert code == 0, out
    colours = np.asarray(Image.open(tmp_path / "a.png").convert("RGB")).astype(int)
    brightest = abs(colours - (253, 231, 37)).max(2) < 3  # viridis' last colour
    assert 0.003 < brightest.mean() < 0.02


@pytest.mark.parametrize(
    ("words", "most"),
    [([], 4), (["--heads", "3"], 3), (["--kernels"], 2), (["--kernels", "--heads", "all"], 32)],
)
def test_of_qnas_many_heads_a_few_are_drawn(run, photo, monkeypatch, words, most):
    sheets = []
    monkeypatch.setattr(views, "picture", lambda *arguments, **how: sheets.append((arguments, how)))
    code, out = run("view", str(photo), "--model", "qna_nano", *words)
    assert code == 0, out
    ((_, maps, _, title, names), how) = sheets[0]
    assert [*maps] == ["stage 1", "stage 2", "stage 3", "stage 4, down-sampling"]
    assert max(map(len, maps.values())) == most
    assert {stage: len(labels) for stage, labels in names.items()} == {
        stage: len(heads) for stage, heads in maps.items()
    }
    assert ("that differ most" in title) == ("all" not in words)
    assert bool(how["tile"]) == ("--kernels" in words)
    assert names["stage 1"][0].startswith("query 1, head ")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--at", "5,5"], "saliency is drawn for all pixels at once"),
        (["--model", "qna_nano", "--kernels", "--at", "5,5"], "kernels are drawn for all pixels"),
        (["--model", "sasa_nano", "--kernels"], "kernels are drawn of qna"),
        (["--model", "sasa_nano", "--at", "five"], "--at is ROW,COLUMN"),
        (["--model", "sasa_nano_conv"], "no attention to draw"),
        (["--model", "linglo_b0", "--evidence"], "evidence is a trained model's"),
        (["--size", "0"], "--size is 32 pixels or more"),
        (["--heads", "few"], "--heads is how many, such as 4, or all"),
        (["--heads", "0"], "--heads is how many, such as 4, or all"),
        (["--evidence", "--heads", "2"], "evidence is of classes, not of heads"),
        (["--out", "a.xyz"], "a .png or a .gif"),
        (["--out", "nowhere/a.png"], "no folder 'nowhere'"),
    ],
)
def test_views_that_cannot_be(run, photo, words, says):
    code, out = run("view", str(photo), *words)
    assert code == 1
    assert says in " ".join(out.split())
    assert "Traceback" not in out


def test_tour(run, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    code, out = run("tour")
    assert code == 0
    assert (tmp_path / "tour.png").is_file()
    assert "the paper's claims" in out


def test_an_unknown_command_gets_the_nearest(run):
    code, message = run("trian", "quick")
    assert code == 2
    assert "no command 'trian'; did you mean 'train'?" in message

import numpy as np
import pytest
from PIL import Image

from saccade import cli


@pytest.fixture
def run(capsys, monkeypatch):
    def call(*arguments):
        monkeypatch.setattr(cli, "console", cli.Console(width=120, no_color=True))
        try:
            cli.main(list(arguments))
            code = 0
        except SystemExit as stop:
            code = stop.code
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return call


def test_list(run):
    code, out = run("list", "linglo_b?")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == [
        "model",
        "linglo_b0",
        "linglo_b1",
        "linglo_b2",
    ]
    assert "3.77" in out


def test_show(run):
    code, out = run("show", "linglo_b0_cchh")
    assert code == 0
    for part in (
        "3,661,336 parameters",
        "2 x SEBasicBlock",
        "3 x Block(KeyOnlyAttention)",
        "256 x 7 x 7",
    ):
        assert part in out
    code, out = run("show", "linglo_nano", "--size", "96")
    assert "at 96 x 96" in out


def test_receptive_fields_are_measured(run):
    """Before the first attention a plain convolution sees 7 pixels; with it, everything."""
    from saccade import count

    assert count.receptive_fields("linglo_nano", 64) == [64, 64, 64, 64]


def test_paper(run):
    code, out = run("paper", "linglo")
    assert code == 0
    for part in ("Table 2", "3,352,032 =", "3,765,448 [1]", "not run", "differs:"):
        assert part in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("show", "linglo_b9"), "no model named 'linglo_b9'; did you mean 'linglo_b0'?"),
        (("show", "linglo_b0", "--size", "20"), "at least 32x32 pixels"),
        (("list", "nothing*"), "no model matches 'nothing*'"),
        (("paper", "bert"), "no paper named 'bert'"),
        (("bench", "linglo_b9"), "did you mean 'linglo_b0'?"),
        (("bench",), "name some models, or an operator (sasa, qna, linglo)"),
        (("bench", "sasa", "unfld"), "no peer named 'unfld'; did you mean 'unfold'?"),
        (("bench", "sasa", "--against", "unfld"), "did you mean 'unfold'?"),
        (("bench", "sasa", "--at", "4,56"), "a shape is batch,side,channels,heads"),
        (("bench", "sasa", "--at", "1,9,9,2"), "heads must divide the channels"),
        (("bench", "sasa", "--window", "4"), "window must be odd"),
        (("bench", "sasa", "--size", "64"), "--size is for models"),
        (("bench", "linglo", "--stride", "2"), "linglo has no stride"),
        (("bench", "linglo_nano", "--window", "7"), "--window is for sasa, qna and linglo"),
        (("bench", "linglo_nano", "--size", "20"), "at least 32x32 pixels"),
        (("bench", "linglo_nano", "--size", "32", "--against", "x"), "'x' is not among"),
        (("bench", "linglo_nano", "--threads", "0"), "--threads must be at least 1, got 0"),
        (("bench", "linglo_nano", "--json", "gone/a.jsonl"), "no folder 'gone' to write into"),
        (("view", "gone.jpg"), "no picture 'gone.jpg'"),
    ],
)
def test_what_goes_wrong_is_one_sentence(run, arguments, says):
    code, out = run(*arguments)
    assert code == 2
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


def test_bench(run, tmp_path):
    pytest.importorskip("matplotlib")
    files = "--json", str(tmp_path / "b.jsonl"), "--plot", str(tmp_path / "b.png")
    code, out = run(
        "bench", "linglo_nano", "resnet18", "--size", "32", "--against", "resnet18", *files
    )
    assert code == 0, out
    assert "1 x 32 x 32 pixels: forward, float32, 1 thread(s)" in out
    assert "over those of resnet18" in out
    assert "GFLOP/s in a matrix product" in out
    assert len((tmp_path / "b.jsonl").read_text().splitlines()) == 2
    assert (tmp_path / "b.png").is_file()


def test_bench_an_operator(run):
    small = "--at", "1,9x10,8,2", "--rounds", "1"
    code, out = run("bench", "sasa", "unfold", "conv", "--train", *small, "--window", "3")
    assert code == 0, out
    assert "sasa, 1 x 9 x 10 x 8, 2 heads, window 3: forward and backward" in out
    table = [line.split()[0] for line in out.splitlines() if line.strip()]
    assert [name for name in table if name in ("sasa", "unfold", "conv")] == [
        "sasa", "unfold", "conv",
    ]  # fmt: skip
    code, out = run("bench", "qna", "window", *small, "--layer", "--against", "window")
    assert code == 0, out
    assert "2 heads, layer: forward" in out


def test_bench_can_be_interrupted(run, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("saccade.bench.plain.F.scaled_dot_product_attention", interrupt)
    code, out = run("bench", "sasa", "conv", "global", "--at", "1,9,8,2", "--rounds", "1")
    assert code == 0, out
    assert "conv" in out
    assert "interrupted: figures so far" in out


def test_which_backend_is_one_line(run):
    code, out = run("bench", "--where")
    assert code == 0
    assert [line.split(":")[0] for line in out.splitlines()] == ["cpu", "cuda"]
    assert run("show", "linglo_nano")[1].splitlines()[-1] == out.splitlines()[0]


def test_tour(run, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    code, out = run("tour")
    assert code == 0
    assert (tmp_path / "tour.png").is_file()
    assert "the paper's claims" in out

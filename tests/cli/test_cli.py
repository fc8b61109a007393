import numpy as np
import pytest
from PIL import Image


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
    for part in ("Table 3", "13,045,716 =", "23,787,700 =", "38.0"):  # its detectors
        assert part in out


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


def test_tour(run, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    code, out = run("tour")
    assert code == 0
    assert (tmp_path / "tour.png").is_file()
    assert "the paper's claims" in out


def test_an_unknown_command_gets_the_nearest(run):
    code, said = run("trian", "quick")
    assert code == 2
    assert "no command 'trian'; did you mean 'train'?" in said

"""What `saccade paper` prints."""

import re

import pytest

from saccade.cli import paper
from saccade.files import write_json
from saccade.paper import claims
from tests.report.run_folders import answer, written

PARAMS, CHANGED = "deployed backbone params", "no longer as noted"


def test_paper(run):
    code, out = run("paper", "linglo")
    assert code == 0
    for part in ("Table 2", "3,352,032 =", "13,224,896 [", "not run", "differs:"):
        assert part in out
    for part in ("Table 3", "13,093,844 [", "23,883,956 [", "38.0"):  # its detectors
        assert part in out
    for part in ("swin_tiny_retinanet", "warm-up epochs", "linear complexity", "not counted:"):
        assert part in out  # other papers' networks, recipes, properties
    (last,) = re.findall(
        r"(\d+) claims, (\d+) of them cells of tables: (\d+) held, (\d+) differ \(with reason\), "
        r"(\d+) run at small scale, (\d+) not run, (\d+) not counted",
        " ".join(out.split()),
    )
    whole, cells, *parts = map(int, last)
    assert sum(parts) == whole
    assert whole > cells > 150


def test_a_program_that_no_longer_does_what_is_claimed(run, monkeypatch):
    """Neither a claim that fails nor a difference that is gone counts as held."""
    other = {("linglo_b0", "depths"): "(9, 9, 9, 9)", ("linglo_b1", PARAMS): 13_100_000}
    measured = claims.measured
    monkeypatch.setattr(
        claims, "measured", lambda row: other.get((row.name, row.claim.what)) or measured(row)
    )
    code, out = run("paper", "linglo")
    assert code == 0, out
    assert re.search(r"linglo_b0 +depths +\(2, 3, 3, 2\) +\(9, 9, 9, 9\) \[\d+\]\n", out)
    assert re.search(rf"linglo_b1 +{PARAMS} +13.1M +13,100,000 \[\d+\]\n", out)
    words = " ".join(out.split())
    assert "not as printed, and no reason is known" in words
    assert "as printed now, but noted is: counted as b0 is" in words
    assert "2 no longer as noted" in words
    heads, line = run("paper")[1].splitlines()[:2]
    assert dict(zip(re.split(r" {2,}", heads), line.split(), strict=True))[CHANGED] == "2"


def test_paper_shows_what_runs_reached(run, tmp_path, monkeypatch):
    monkeypatch.setattr("saccade.study.result.FOLDER", tmp_path)  # no studies of the package
    names = [f"n{i}" for i in range(37)]
    written(tmp_path / "pets", "linglo_b1", names=names, data="pets37", best=94.2, per_epoch=1)
    code, out = run("paper", "linglo", "--runs", str(tmp_path))
    assert code == 0, out
    (row,) = (line for line in out.splitlines() if "79.7%" in line and "linglo_b1" in line)
    assert "94.2% other data [" in row
    assert "37 classes in 'pets37'" in " ".join(out.split())
    assert "1 run at small scale" in " ".join(out.split())


def test_paper_shows_the_studies_of_the_package(run):
    code, out = run("paper", "linglo")
    assert code == 0, out
    assert "run at small scale" in " ".join(out.split())


def test_without_a_paper_all_are_summed_up(run):
    code, out = run("paper")
    assert code == 0, out
    lines = {line.split()[0]: line.split()[1:] for line in out.splitlines()}
    for family in ("linglo", "qna", "sasa"):
        claims, _, *parts = map(int, lines[family])
        assert sum(parts) == claims > 150


def test_models_of_which_the_same_is_said_share_a_row(run):
    out = run("paper", "linglo")[1]
    assert re.search(r"linglo_b0, _b1, _b2 +epochs +300 +=$", out, re.MULTILINE)
    assert len(re.findall(r"_retinanet +AP +41\.5 +not run", out)) == 2  # alike by chance
    code, text = run("paper", "linglo", "--json")
    assert code == 0
    same = [line for line in answer(text) if (line["what"], line["paper"]) == ("epochs", "300")]
    assert [line["model"] for line in same] == ["linglo_b0", "linglo_b1", "linglo_b2"]


def test_sections_and_tables_stand_in_their_order(run):
    out = run("paper", "sasa")[1]
    heads = ["appendix A.2", "poster", "Table 1", "Table 2", "k=3", "k=5", "k=7", "k=9", "k=11"]
    places = [out.index(head) for head in heads]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("names", "short"),
    [
        (["linglo_b0"], "linglo_b0"),
        (["linglo_b0", "linglo_b1"], "linglo_b0, _b1"),
        (["sasa_r50", "sasa_r50_conv"], "sasa_r50, _conv"),
        (["sasa_r50_conv", "sasa_r50"], "sasa_r50_conv, sasa_r50"),
        (["resnet50", "swin_tiny"], "resnet50, swin_tiny"),
    ],
)
def test_what_names_begin_with_stands_once(names, short):
    assert paper._short(names) == short


def test_paper_shows_what_the_studies_reached(run, tmp_path, monkeypatch):
    seeds = {str(s): {"value": 60.0 + s, "curve": [[1, 60.0 + s]], "cpu_seconds": 1.0}
             for s in range(3)}  # fmt: skip
    settings = {"position=cpe": {"parameters": 1, "seeds": seeds}}
    plain = {"figure": "top1", "data": "cifar10", "machine": "", "settings": settings}
    write_json(tmp_path / "linglo.json", plain)
    monkeypatch.setattr("saccade.study.result.FOLDER", tmp_path)
    code, out = run("paper", "linglo")
    assert code == 0
    (row,) = (line for line in out.splitlines() if "linglo_b0_cpe" in line and "68.5%" in line)
    assert "61.0% small scale [" in row
    assert "61.0 ± 1.0, mean of 3 seeds; saccade study linglo" in " ".join(out.split())
    assert "1 run at small scale" in " ".join(out.split())

"""What `saccade study` trains and prints."""

from dataclasses import replace

from saccade.study.book import STUDIES
from saccade.study.grid import Grid, GridRow
from tests.report.run_folders import answer
from tests.study import tiny


def test_the_command_trains_and_reports(typed, tmp_path, monkeypatch):
    monkeypatch.setitem(STUDIES, "tiny", tiny.study(epochs=1))
    data = tiny.write_cifar(tmp_path / "cifar")
    words = ["study", "tiny", "--data", data, "--out", str(tmp_path / "runs"), "--seeds", "1"]
    code, out, err = typed(*words, "--json")
    assert code == 0, err
    figures = answer(out)
    assert list(figures["settings"]) == ["base", "position=cpe"]
    assert (tmp_path / "runs/tiny/tiny.md").is_file()
    _, out, _ = typed(*words, "--only-report")
    assert "Table 6: Does it?" in out


def test_one_grid_of_a_study(typed, tmp_path, monkeypatch):
    """Its rows are trained and shown; the page has the others, which are not run yet."""
    base = tiny.study(epochs=1)
    rows = (base.grids[0].rows[0], GridRow("cell", {"model.options.position": "r-cpe"}))
    both = replace(base, grids=(*base.grids, Grid(where="Fig. 5", asks="Or this?", rows=rows)))
    monkeypatch.setitem(STUDIES, "tiny", both)
    data = tiny.write_cifar(tmp_path / "cifar")
    words = ["study", "tiny", "--data", data, "--out", str(tmp_path / "runs"), "--seeds", "1"]
    code, out, err = typed(*words, "--grid", "fig5")
    assert code == 0, err
    assert "Or this?" in out
    assert "Does it?" not in out
    folder = tmp_path / "runs/tiny"
    assert {path.name for path in folder.iterdir() if path.is_dir()} == {"base", "position=r-cpe"}
    assert str(folder / "tiny-fig5.png") in "".join(out.split())
    assert "Does it?" in (folder / "tiny.md").read_text()
    code, _, err = typed(*words, "--grid", "fig6")
    assert code == 1
    assert "no grid 'fig6'; it has Table 6, Fig. 5" in err


def test_without_a_name_all_are_listed(run):
    code, out = run("study")
    assert code == 0
    assert all(name in out for name in ("linglo", "qna", "qna_autoencoders", "sasa"))


def test_a_study_without_a_set_asks_for_one(run):
    code, out = run("study", "qna_autoencoders")
    assert code == 1
    assert "which images? --data FOLDER" in out

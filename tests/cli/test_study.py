"""What `saccade study` trains and prints."""

from saccade.study.book import STUDIES
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


def test_without_a_name_all_are_listed(run):
    code, out = run("study")
    assert code == 0
    assert all(name in out for name in ("linglo", "qna", "qna_autoencoders", "sasa"))


def test_a_study_without_a_set_asks_for_one(run):
    code, out = run("study", "qna_autoencoders")
    assert code == 1
    assert "which images? --data FOLDER" in out

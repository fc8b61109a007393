"""tools/instructions.py names the commit by which a case came to take more instructions."""

import shutil
import subprocess

import pytest

from tools import instructions


@pytest.fixture
def history(tmp_path, monkeypatch):
    """A repository of six commits; counts are a file of it, and `slow` grows twice."""
    costs = [
        {"slow": 100, "steady": 50}, {"slow": 101, "steady": 50}, {"slow": 120, "steady": 50},
        {"slow": 120, "steady": 51}, {"slow": 130, "steady": 51}, {"slow": 130, "steady": 51},
    ]  # fmt: skip
    root = tmp_path / "repository"
    (root / "saccade").mkdir(parents=True)

    def git(*words):
        names = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        subprocess.run(["git", *names, *words], cwd=root, check=True, capture_output=True)

    git("init", "-q")
    for i, cost in enumerate(costs):
        (root / "saccade" / "cost").write_text(f"{i} {cost['slow']} {cost['steady']}")
        git("add", ".")
        git("commit", "-q", "-m", f"commit {i}")

    def count(tree, only=()):
        _, slow, steady = (tree / "saccade" / "cost").read_text().split()
        return {"slow": int(slow), "steady": int(steady)}

    monkeypatch.setattr(instructions, "ROOT", root)
    monkeypatch.setattr(instructions, "count", count)
    return root


def test_the_commit_that_slowed_a_case_is_named(history, capsys):
    assert instructions.compare("HEAD~4", None, [], 0.03) == 1
    assert "slow: +28.7%, by" in (text := capsys.readouterr().out)
    assert "commit 2" in text
    assert "steady:" not in text
    assert instructions.compare("HEAD~1", None, [], 0.03) == 0
    worktrees = subprocess.run(
        ["git", "worktree", "list"], cwd=history, capture_output=True, text=True
    ).stdout
    assert len(worktrees.splitlines()) == 1


def test_what_is_not_committed_is_told(history, capsys):
    (history / "saccade" / "cost").write_text("6 200 51")
    assert instructions.compare("HEAD", None, [], 0.03) == 1
    assert "not committed" in capsys.readouterr().out


def test_times_without_a_commit_are_refused(history, capsys, monkeypatch):
    with pytest.raises(instructions.CannotCountError, match="no commit before '1990-01-01'"):
        instructions.compare(None, "1990-01-01", [], 0.03)
    monkeypatch.setattr("sys.argv", ["instructions", "--against", "nothing"])
    assert instructions.main() == 2
    assert capsys.readouterr().err.startswith("instructions: git rev-parse")


@pytest.mark.parametrize("at", range(7))
def test_halving_meets_the_first(at):
    commits = [f"c{i}" for i in range(7)]
    measured = []

    def slow(commit):
        measured.append(commit)
        return int(commit[1:]) >= at

    assert instructions.first_slow(commits, slow) == f"c{at}"
    assert len(measured) <= 3


def test_without_valgrind_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(instructions.CannotCountError, match="install it"):
        instructions._switch(tmp_path)


@pytest.mark.slow
def test_counts_repeat_and_more_work_is_seen(tmp_path):
    if not shutil.which("valgrind"):
        pytest.skip("valgrind is not installed")
    tree = tmp_path / "tree"
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(instructions.ROOT / "saccade", tree / "saccade", ignore=ignore)
    once, again = (instructions.count(instructions.ROOT, ["key-only"]) for _ in range(2))
    assert set(once) == {"key-only", "key-only, with backward"}
    assert again == pytest.approx(once, rel=2e-3)
    layer = tree / "saccade" / "layers" / "linglo.py"
    text = layer.read_text()
    layer.write_text(
        text + "\n\n_on_map = KeyOnlyAttention.on_map\n\n\ndef _twice(self, *a, **k):\n"
        "    _on_map(self, *a, **k)\n    return _on_map(self, *a, **k)\n\n\n"
        "KeyOnlyAttention.on_map = _twice\n"
    )
    more = instructions.count(tree, ["key-only"])
    assert instructions.grown(once, more, 0.03).keys() == set(once)

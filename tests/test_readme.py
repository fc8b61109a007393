"""The README keeps its word."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()


def test_the_six_lines_run(tmp_path, monkeypatch):
    (block,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "README.md", "exec"), {})


def test_it_fits_one_screen():
    assert len(README.splitlines()) <= 60
    text = (ROOT / "CONTRIBUTING.md").read_text()
    sections = {part.partition("\n")[0]: part for part in text.split("\n## ")}
    assert len(sections["The path of one image"].splitlines()) <= 50


def test_pictures_and_links_exist():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).is_file(), target


def test_ci_runs_the_readmes_own_command():
    commands = re.findall(r"^python3 -m venv .*$", README, re.MULTILINE)
    assert len(commands) == 2
    assert [c.endswith("pytest") for c in commands] == [False, True]
    assert "grep -E '^python3 -m venv .*pytest$' README.md" in (ROOT / ".ci/run").read_text()


def test_every_command_that_is_named_exists():
    from saccade import cli

    for name in re.findall(r"`saccade (\w+)", README):
        assert name in cli.COMMANDS


def test_no_lock_file_is_committed():
    listed = subprocess.run(["git", "ls-files"], capture_output=True, text=True, cwd=ROOT)
    if listed.returncode:
        pytest.skip("not a git checkout: the list of files is not known")
    assert not [n for n in listed.stdout.split() if n.endswith((".lock", "pylock.toml"))]

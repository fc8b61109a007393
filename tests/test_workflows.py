"""Workflows hold no logic: each step is one command, of a tool that is run here as well."""

import re
from pathlib import Path

import pytest
import yaml

from tools import release

ROOT = Path(__file__).resolve().parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
WORDS = r"(sudo .*)?(python (-m )?\S+|pip install|uv pip|gh release|apt-get install)"
ELSEWHERE = {"tools/site.py"}  # builds the documentation


def steps(path):
    for job in yaml.safe_load(path.read_text())["jobs"].values():
        yield from job.get("steps", [])


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_step_is_one_command_of_a_tool_that_exists(path):
    commands = [step["run"] for step in steps(path) if "run" in step]
    for command in commands:
        assert "\n" not in command, command
        assert not re.search(r"\b(if|for|while)\b|;", command), command
        assert re.match(WORDS, command), command
        for script in re.findall(r"tools/\w+\.py", command):
            assert script in ELSEWHERE or (ROOT / script).is_file(), script


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_no_step_may_write_unless_its_job_says_so(path):
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    for step in steps(path):
        if step.get("uses", "").startswith("actions/checkout"):
            assert step["with"]["persist-credentials"] is False


def test_this_version_may_be_released():
    assert release.faults(f"v{release.version()}") == []
    assert len(release.notes()) > 100
    assert "the tag is v9" in release.faults("v9")[0]

"""The campaign itself: its trials end, are repeatable, and find what is wrong."""

import contextlib
import functools
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from saccade.engine.checkpoint import Checkpoints
from saccade.engine.run import Run
from tools.campaign import overrides, patience, runs
from tools.campaign.__main__ import main
from tools.campaign.ledger import Ledger, code_state
from tools.campaign.verdict import Finding, attempted, flaw_of_text

ROOT = Path(__file__).resolve().parents[1]
CHEAP = {"overrides": 40, "images": 30, "annotations": 20, "checkpoints": 6}


def test_a_handful_of_each_cheap_kind(tmp_path, capfd):
    counts = ",".join(f"{kind}={count}" for kind, count in CHEAP.items())
    words = ["--only", ",".join(CHEAP), "--count", counts, "--seed", "7", "--out", str(tmp_path)]
    code, message = main(words), capfd.readouterr().out
    assert code == 0, message
    for kind, count in CHEAP.items():
        lines = (tmp_path / f"{kind}.jsonl").read_text().splitlines()
        assert len(lines) == count
        assert f"| {kind} | {count} |" in message


def test_a_finding_is_kept_repeated_and_the_exit_code(tmp_path, capfd, monkeypatch):
    def broken(self, chance, folder):
        raise KeyError(f"drawn {chance.random()}")

    monkeypatch.setattr(overrides.Words, "trial", broken)
    words = ["--only", "overrides", "--seed", "3", "--out", str(tmp_path)]
    assert main([*words, "--count", "1"]) == 1
    line = json.loads((tmp_path / "overrides.jsonl").read_text())
    assert line["outcome"] == "finding"
    assert main(["--repeat", f"overrides:{line['seed']}"]) == 1
    message = capfd.readouterr().out
    assert f"--repeat overrides:{line['seed']}" in message
    assert message.count(line["what"].partition("\n")[0]) >= 2, "the same is drawn again"
    monkeypatch.undo()
    with (tmp_path / "overrides.jsonl").open("a") as file:
        file.write('{"seed": 3000001, "outc')  # the campaign itself was killed
    assert main([*words, "--count", "3"]) == 1, "what was found before counts"
    lines = [json.loads(line) for line in (tmp_path / "overrides.jsonl").open()]
    assert [line["seed"] for line in lines] == [3000000, 3000001, 3000002]


def test_who_waits_for_the_cpu_goes_on_and_who_sleeps_or_never_ends_is_given_up():
    """By what processes do: the machine's load changes nothing."""
    watch = patience.Watch(patience.own)
    end = time.process_time() + 0.3
    while time.process_time() < end:
        pass
    assert watch.look() >= 0.29
    assert watch.ran == pytest.approx(0.3, abs=0.2)
    assert "stands still" in watch.over(60)
    calls = []

    def busy(seconds):
        calls.append(seconds)
        return sum(range(100_000)) < 0

    assert "no end" in patience.waited(busy, patience.own, still=0.2, most=0.4)
    assert len(calls) > 10
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as asleep:
        joined = functools.partial(_ended_within, asleep)
        why = patience.waited(joined, lambda: [asleep.pid], still=0.5, most=60)
        assert asleep.pid in patience.own()
        asleep.kill()
    assert "stands still" in why
    assert patience.waited(joined, lambda: [asleep.pid], still=0.5, most=60) is None


def _ended_within(process, seconds):
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    return process.poll() is not None


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="Linux tells who waits")
def test_waiting_in_line_for_the_cpu_is_a_sign_of_life(tmp_path, monkeypatch):
    folder = tmp_path / "7/task/7"
    folder.mkdir(parents=True)
    monkeypatch.setattr(patience, "PROC", tmp_path)
    (folder / "schedstat").write_text("1000000000 5000000000 9")
    watch = patience.Watch(lambda: [7])
    (folder / "schedstat").write_text("1000000000 125000000000 9")
    assert watch.over(60) is None
    assert "stands still" in watch.over(60)


def test_lines_tell_the_state_of_the_code(tmp_path):
    ledger = Ledger(tmp_path, 1)
    line = {"seed": 1, "outcome": "right", "events": 3}
    ledger.write("kills", line)
    assert "code" not in ledger.table(["kills"], {"kills": "kills"})
    ledger.code = "before"
    ledger.write("kills", line)
    last = Ledger(tmp_path, 1).table(["kills"], {"kills": "kills"}).splitlines()
    assert last[-1] == "code before: kills 3"
    assert last[-2] == f"code {code_state()}: kills 3"


def test_a_kill_that_costs_two_steps_is_a_finding(tmp_path):
    """The judge of kills and ranks, on folders as a killed run leaves them."""
    run = Run(tmp_path / "run", "", runs.RECIPES["classify"], "", ())
    assert runs.check_standing(run.folder, 0) == 0, "killed before anything was written"
    Checkpoints(run.folder).save({"step": 1}, 1, 0.5)
    for step in (1, 2):
        run.write({"step": step, "loss": 1.0}, "steps.jsonl")
    assert runs.check_standing(run.folder, 1) == 1
    with pytest.raises(Finding, match="there was a checkpoint of step 2"):
        runs.check_standing(run.folder, 2)
    run.write({"step": 3, "loss": 1.0}, "steps.jsonl")
    with pytest.raises(Finding, match="step 3 was reached, the last checkpoint is of step 1"):
        runs.check_standing(run.folder, 1)
    other = tmp_path / "other"
    shutil.copytree(run.folder, other)
    for folder in (run.folder, other):
        (folder / "model.safetensors").write_bytes(b"weights")
    runs.check_equal(run.folder, other)
    Run(other, "", run.recipe, "", ()).write({"step": 4, "loss": 1.0}, "steps.jsonl")
    with pytest.raises(Finding, match=r"steps.jsonl differs"):
        runs.check_equal(run.folder, other)


@pytest.mark.parametrize(
    "text",
    ["no", "[Errno 28] No space left on device", "one line\nand another",
     "load: int object has no attribute 'x' in the file"],
)  # fmt: skip
def test_what_is_no_sentence(text):
    assert flaw_of_text(text) is not None


def test_errors_of_others_are_findings():
    with pytest.raises(Finding, match="an error of json"):
        attempted(lambda: json.loads("{"))
    with pytest.raises(Finding, match="raised outside of saccade"):
        attempted(lambda: int("x"))
    with pytest.raises(KeyError):
        attempted(lambda: {}["x"])


@pytest.mark.slow
def test_five_minutes_of_every_kind(tmp_path):
    words = [sys.executable, "-m", "tools.campaign", "--minutes", "5", "--out", str(tmp_path)]
    run = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=1800)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.count("| 0 |\n") >= 8

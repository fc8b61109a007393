"""Two processes on gloo, as torchrun would start them."""

import json
import os
import signal
import subprocess
import sys
import time
from datetime import timedelta

import pytest
import torch

from saccade.engine import distributed, session
from saccade.engine.checkpoint import Checkpoints
from saccade.engine.distributed import Group
from saccade.engine.run import Run
from saccade.engine.train import Stopped
from saccade.recipes.recipe import change
from saccade.tasks.classify import baseline
from tests.engine.classify_runs import PLAIN, At, apart, fit, folder, same

STEADY = change(PLAIN, loop__ema=0.9, optim__clip=1.0, augment__mixup=0.8, augment__cutmix=1.0)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return folder(tmp_path_factory.mktemp("colours"), val=5)  # 15: not even over two


@pytest.fixture(scope="module")
def alone(data, tmp_path_factory):
    return fit(STEADY, data, tmp_path_factory.mktemp("runs") / "alone")


def losses(run):
    return [sum(line["loss"].values()) for line in run.lines("steps.jsonl")]


def begin(recipe, data, out):
    fit(recipe, data, out)


def stop_at(recipe, data, out, step):
    try:
        fit(recipe, data, out, At(step, lambda: os.kill(os.getpid(), signal.SIGTERM)))
    except Stopped:
        return


def go_on(out):
    session.resume(out, device="cpu")


@pytest.mark.parametrize("shard", [False, True], ids=["copied", "sharded"])
def test_two_processes_learn_what_one_does(shard, data, alone, tmp_path):
    out = tmp_path / "two"
    assert apart(begin, change(STEADY, loop__shard=shard), data, out, ranks=2) == [0, 0]
    two = Run.open(out)
    assert losses(two) == pytest.approx(losses(alone), rel=1e-5)
    for mine, theirs in zip(two.lines(), alone.lines(), strict=True):
        assert mine["val"]["images"] == theirs["val"]["images"] == 15
        assert mine["val"]["loss"] == pytest.approx(theirs["val"]["loss"], rel=1e-4)
    figures = session.evaluate(out, str(data)).compute()
    assert figures["top1"] == pytest.approx(max(line["val"]["top1"] for line in two.lines()))


@pytest.mark.slow
@pytest.mark.parametrize("shard", [False, True], ids=["copied", "sharded"])
@pytest.mark.parametrize(("first", "then"), [(2, 1), (1, 2)])
def test_a_run_goes_on_with_more_or_fewer_processes(first, then, shard, data, alone, tmp_path):
    out = tmp_path / "run"
    recipe = change(STEADY, loop__shard=shard and first > 1)
    assert apart(stop_at, recipe, data, out, 3, ranks=first) == [0] * first
    step = Checkpoints(out).entry()["step"]
    assert 3 <= step < 6
    assert apart(go_on, out, ranks=then) == [0] * then
    assert losses(Run.open(out)) == pytest.approx(losses(alone), rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("shard", [False, True], ids=["copied", "sharded"])
@pytest.mark.parametrize("model", ["linglo_nano", "sasa_nano_conv"])
def test_models_with_statistics_are_split_and_judged_as_they_are_kept(model, shard, tmp_path):
    """9 images over two and steps of 8: one has none of the last. BatchNorm counts apart."""
    data = folder(tmp_path / "data", val=3)
    recipe = change(PLAIN, model__name=model, loop__shard=shard, schedule__epochs=2)
    assert apart(begin, recipe, data, tmp_path / "run", ranks=2) == [0, 0]
    run = Run.open(tmp_path / "run")
    best = max(run.lines(), key=lambda line: line["val"]["top1"])
    figures = session.evaluate(run.folder, device="cpu").compute()
    assert figures["images"] == 9
    assert figures["loss"] == pytest.approx(best["val"]["loss"], rel=1e-4)


def test_an_evaluation_shared_by_two_counts_every_image_once(data, alone, tmp_path):
    def evaluated():
        figures = session.evaluate(alone.folder, str(data), batch=4, device="cpu").compute()
        rank = os.environ.get("RANK", "alone")
        (tmp_path / f"{rank}.json").write_text(json.dumps(figures))

    assert apart(evaluated) == [0]
    assert apart(evaluated, ranks=2) == [0, 0]
    by_process = [json.loads((tmp_path / f"{who}.json").read_text()) for who in ("alone", "0", "1")]
    assert by_process[0]["images"] == 15
    for figures in by_process[1:]:
        assert figures == pytest.approx(by_process[0], rel=1e-6)


@pytest.mark.slow
def test_what_another_process_could_not_read_is_listed_too(tmp_path):
    """The second process alone meets the broken ones; their share is one of the whole set."""
    data = folder(tmp_path / "data")
    for i in (1, 2):
        (data / "val" / "green" / f"{i}.png").write_bytes(b"broken")
    recipe = change(PLAIN, data__bad=0.3, schedule__epochs=1)
    assert apart(begin, recipe, data, tmp_path / "run", ranks=2) == [0, 0]
    assert len(json.loads((tmp_path / "run" / "bad.json").read_text())) == 2
    assert Run.open(tmp_path / "run").lines()[0]["bad"] == 2
    (data / "val" / "blue" / "0.png").write_bytes(b"broken")  # the first one's: 1 and 2 of 9
    assert apart(begin, recipe, data, tmp_path / "other", ranks=2) == [1, 1]


def slow_baseline(data, out):
    distributed.TIMEOUT = timedelta(seconds=6)
    baseline.linear = lambda x, y, classes: time.sleep(10) or (torch.zeros(3, 3072), torch.zeros(3))
    fit(change(PLAIN, loop__baseline=True, schedule__epochs=1), data, out)


@pytest.mark.slow
def test_the_others_wait_while_the_first_works_for_all(data, tmp_path):
    assert apart(slow_baseline, data, tmp_path / "run", ranks=2) == [0, 0]


def late_in_a_step():
    """The second process comes to an all_reduce after more than the usual time of waiting."""
    distributed.TIMEOUT = timedelta(seconds=2)
    with distributed.process_group("cpu") as group:
        distributed.all_reduce(torch.ones(1), group)
        distributed.wait_for_compilers(group)
        if not group.first:
            time.sleep(5)
        total = distributed.all_reduce(torch.ones(1), group)
        assert total.item() == 2


def test_processes_wait_for_one_that_compiles():
    assert apart(late_in_a_step, ranks=2) == [0, 0]


def test_with_one_process_all_is_as_it_is():
    group = Group()
    assert group.first
    assert distributed.broadcast("x", group) == "x"
    assert distributed.all_gather("x", group) == ["x"]
    distributed.barrier(group)


def test_a_batch_that_does_not_divide_is_refused(data, tmp_path):
    out = tmp_path / "run"

    def refused():
        with pytest.raises(ValueError, match="cannot be split evenly over 2 processes"):
            fit(change(STEADY, loop__batch=9, augment__mixup=0.0, augment__cutmix=0.0), data, out)

    assert apart(refused, ranks=2) == [0, 0]


def launched(*arguments, restarts=0, **environment):
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
        "--max-restarts", str(restarts), "-m", "saccade", *arguments, "--device", "cpu",
    ]  # fmt: skip
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )  # fmt: skip


def a_rank_of(job):
    """The process id of rank 1 under a torchrun, once it trains."""
    listing = subprocess.run(
        ["pgrep", "-f", "-P", str(job.pid), "saccade"], capture_output=True, text=True
    )
    return [int(pid) for pid in listing.stdout.split()]


@pytest.mark.slow
@pytest.mark.parametrize("restarts", [0, 1])
def test_a_killed_rank_ends_the_job_or_is_started_again(restarts, data, tmp_path):
    recipe = change(STEADY, schedule__epochs=60, loop__save_every=2, loop__evaluate_every=30)
    out = tmp_path / "run"
    Run.create(out, "quick", recipe, str(data), ("blue", "green", "red"))
    job = launched("resume", str(out), restarts=restarts)
    while not (out / "checkpoints" / "index.json").exists():
        time.sleep(0.2)
        assert job.poll() is None, job.stdout.read()
    os.kill(a_rank_of(job)[-1], signal.SIGKILL)
    began = time.monotonic()
    message, _ = job.communicate(timeout=300)
    if restarts:
        assert job.returncode == 0, message
        assert "going on at step" in message
        assert Run.open(out).lines()[-1]["epoch"] == 60
        return
    assert time.monotonic() - began < 60
    assert job.returncode != 0
    assert f"saccade resume {out}" in message
    assert Checkpoints(out).load()[0]["step"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_job_that_is_asked_to_stop_saves_where_it_is(number, data, tmp_path):
    """The launcher is told, as a queue or Ctrl-C would; both ranks end at one step."""
    recipe = change(STEADY, schedule__epochs=60, loop__save_every=None, loop__evaluate_every=30)
    out = tmp_path / "run"
    run = Run.create(out, "quick", recipe, str(data), ("blue", "green", "red"))
    job = launched("resume", str(out))
    while len(run.lines("steps.jsonl")) < 5:
        time.sleep(0.1)
        assert job.poll() is None, job.stdout.read()
    job.send_signal(number)
    message, _ = job.communicate(timeout=60)
    step = Checkpoints(out).load()[0]["step"]
    assert step == len(run.lines("steps.jsonl")) >= 5, message
    assert message.count(f"saccade resume {out}") == 1, message
    assert "going on" not in message


@pytest.mark.slow
def test_the_two_process_command_of_the_docs(data, tmp_path):
    words = ["model.name=qna_nano", "schedule.epochs=1", "loop.batch=8", "loop.shard=true"]
    out = tmp_path / "run"
    job = launched("train", "quick", "--data", str(data), "--out", str(out), "--set", *words)
    message, _ = job.communicate(timeout=300)
    assert job.returncode == 0, message
    assert message.count("best:") == 1
    assert same(Run.open(out).lines()[0]["val"]["images"], 15) is None

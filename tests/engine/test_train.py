"""The loop learns, and a run that was broken off is the run that was not."""

import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch

from saccade.engine import make, session
from saccade.engine.checkpoint import Checkpoints
from saccade.engine.run import Run
from saccade.engine.train import Stopped, Training, rng, seed, set_rng
from saccade.recipes.disk import to_plain
from saccade.recipes.recipe import change
from saccade.report.summary import Summary
from saccade.report.write import Reporter
from saccade.tasks.classify.metric import Confusion
from tests.engine.classify_runs import FULL, PLAIN, At, Losses, apart, fit, folder, same


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return folder(tmp_path_factory.mktemp("colours"))


@pytest.fixture(scope="module")
def unbroken(data, tmp_path_factory):
    return fit(FULL, data, tmp_path_factory.mktemp("runs") / "unbroken")


def assert_equal_runs(a, b):
    one, other = (Checkpoints(run.folder).load()[0] for run in (a, b))
    assert same(one, other) is None
    for file in ("report.jsonl", "steps.jsonl"):
        assert same(a.lines(file), b.lines(file)) is None
    names = [sorted(p.name for p in run.folder.iterdir()) for run in (a, b)]
    assert names[0] == names[1]
    best = [hashlib.sha256((run.folder / "model.safetensors").read_bytes()) for run in (a, b)]
    assert best[0].hexdigest() == best[1].hexdigest()


@pytest.mark.parametrize(
    ("name", "rate"),  # at which it learns from every seed
    [
        ("linglo_nano", 2e-3),
        pytest.param("qna_nano", 2e-3, marks=pytest.mark.slow),
        pytest.param("sasa_nano", 5e-4, marks=pytest.mark.slow),
        pytest.param("resnet10t", 2e-3, marks=pytest.mark.slow),
    ],
)
def test_it_learns(name, rate, data, tmp_path):
    recipe = change(
        PLAIN, model__name=name, schedule__epochs=6, loop__bn_decay=0.5, optim__lr=rate
    )  # fmt: skip
    run = fit(recipe, data, tmp_path / "run")
    lines = run.lines()
    assert [line["epoch"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert max(line["val"]["top1"] for line in lines) > 70  # chance: 33
    ready = session.open_model(run.folder)
    assert ready.classes == ["blue", "green", "red"]
    figures = session.evaluate(run.folder, str(data)).compute()
    assert figures["top1"] == max(line["val"]["top1"] for line in lines)


def kill_self():
    os.kill(os.getpid(), signal.SIGKILL)


def begin(data, out, step):
    fit(FULL, data, out, At(step, kill_self))


def go_on(out, step):
    session.resume(out, watch=lambda: At(step, kill_self), device="cpu")


def test_a_killed_run_goes_on_bit_for_bit(data, unbroken, tmp_path):
    """Twice, at random steps, in the middle of an epoch as it comes."""
    first, second = sorted(random.sample(range(2, 6), 2))
    out = tmp_path / "broken"
    assert apart(begin, data, out, first) == [-signal.SIGKILL]
    assert apart(go_on, out, second) == [-signal.SIGKILL]
    assert Checkpoints(out).load()[0]["step"] < 6
    session.resume(out, report=Reporter(), device="cpu")
    assert_equal_runs(unbroken, Run.open(out))


@pytest.mark.slow
def test_a_run_with_workers_is_the_run_without(data, unbroken, tmp_path):
    run = fit(change(FULL, data__workers=1), data, tmp_path / "workers")
    one, other = (Checkpoints(r.folder).load()[0] for r in (unbroken, run))
    one["rng"] = other["rng"]  # starting a worker draws the name of a pipe
    assert same(one, other) is None


@pytest.mark.slow
def test_a_run_killed_from_outside_at_any_time(data, tmp_path):
    """The command itself, twenty times killed at random moments, also while it saves."""
    recipe = change(FULL, schedule__epochs=30, loop__evaluate_every=3, loop__keep=2)
    whole = fit(recipe, data, tmp_path / "whole")
    out = tmp_path / "killed"
    run = Run.create(out, "quick", recipe, str(data), whole.classes)
    command = [sys.executable, "-m", "saccade", "resume", str(out), "--device", "cpu"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for _ in range(20):
        before = len(run.lines("steps.jsonl"))
        job = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
        while len(run.lines("steps.jsonl")) in (0, before):  # it forgets what it will do again
            assert job.poll() is None
            time.sleep(0.002)
        time.sleep(random.uniform(0, 0.4))
        assert job.poll() is None
        job.kill()
        job.wait()
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
    one, other = (Checkpoints(r).load()[0] for r in (whole.folder, out))
    one["rng"] = other["rng"]  # what else draws between steps, in a process of its own
    assert same(one, other) is None


@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM]
)
def test_asked_to_stop_it_saves_and_can_go_on(number, data, unbroken, tmp_path):
    out = tmp_path / "stopped"
    recipe = change(FULL, loop__save_every=None)
    with pytest.raises(Stopped, match="at step 3 of 6"):
        fit(recipe, data, out, At(2, lambda: os.kill(os.getpid(), number)))
    assert Checkpoints(out).load()[0]["step"] == 3
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    session.resume(out, report=Reporter(), device="cpu")
    one, other = (Checkpoints(r).load()[0] for r in (unbroken.folder, out))
    assert same(one, other) is None


@pytest.mark.slow
def test_asked_to_stop_in_an_evaluation_it_does_not_wait_for_its_end(
    data, unbroken, tmp_path, monkeypatch
):
    counted = []

    def update(self, output, target):
        counted.append(len(target["label"]))
        if len(counted) == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return count(self, output, target)

    count = Confusion.update
    monkeypatch.setattr(Confusion, "update", update)
    out = tmp_path / "stopped"
    with pytest.raises(Stopped, match="at step 3 of 6, evaluating"):
        fit(FULL, data, out)
    assert counted == [8]
    assert Checkpoints(out).load()[0]["step"] == 3
    session.resume(out, report=Reporter(), device="cpu")
    assert_equal_runs(unbroken, Run.open(out))


@pytest.mark.slow
def test_parts_add_up_to_the_batch(data, tmp_path):
    whole, parts = Losses(), Losses()
    fit(PLAIN, data, tmp_path / "whole", whole)
    fit(change(PLAIN, loop__part=2), data, tmp_path / "parts", parts)
    assert parts.losses == pytest.approx(whole.losses, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bf16", pytest.param("fp16", marks=pytest.mark.slow)])
def test_mixed_precision_learns_alike(name, data, tmp_path):
    plain, mixed = Losses(), Losses()
    fit(PLAIN, data, tmp_path / "plain", plain)
    run = fit(change(PLAIN, loop__precision=name), data, tmp_path / "mixed", mixed)
    assert mixed.losses[0] == pytest.approx(plain.losses[0], rel=0.02)
    assert mixed.losses[-1] == pytest.approx(plain.losses[-1], rel=0.2)
    state = Checkpoints(run.folder).load()[0]
    assert bool(state["scaler"]) == (name == "fp16")


@pytest.mark.slow
def test_recomputing_blocks_changes_nothing(data, tmp_path):
    one, other = Losses(), Losses()
    fit(PLAIN, data, tmp_path / "one", one)
    fit(change(PLAIN, loop__checkpointing=True), data, tmp_path / "other", other)
    assert other.losses == pytest.approx(one.losses, rel=1e-6)


@pytest.mark.slow
def test_compiled_training_learns_alike(data, tmp_path):
    one, other = Losses(), Losses()
    fit(PLAIN, data, tmp_path / "one", one)
    fit(change(PLAIN, loop__compile=True), data, tmp_path / "other", other)
    assert other.losses == pytest.approx(one.losses, rel=1e-3)


def test_a_loss_that_is_no_number_stops_the_run_and_keeps_the_last_good_state(data, tmp_path):
    recipe = change(PLAIN, optim__lr=1e30, schedule__epochs=4)
    with pytest.raises(FloatingPointError, match=r"step \d+: (the loss|not all)") as error:
        fit(recipe, data, tmp_path / "run")
    step = int(str(error.value).split()[1].rstrip(":"))
    entry = Checkpoints(tmp_path / "run").entry()
    last_words = "none was kept" if entry is None else f"step {entry['step']} is kept"
    assert last_words in str(error.value)
    assert entry is None or entry["step"] <= step


@pytest.mark.parametrize("save_every", [1, None])
def test_parameters_that_are_no_numbers_are_never_kept(save_every, data, tmp_path, monkeypatch):
    """A finite loss whose gradient is none: nothing would show before the next step."""
    update = Training._update

    def spoilt(self):
        if self.step == 2:
            next(self.task.parameters()).grad.fill_(float("nan"))
        update(self)

    monkeypatch.setattr(Training, "_update", spoilt)
    with pytest.raises(FloatingPointError, match="step 3: not all parameters are finite"):
        fit(change(PLAIN, loop__save_every=save_every), data, tmp_path / "run")
    entry = Checkpoints(tmp_path / "run").entry()
    assert entry is None if save_every is None else entry["step"] == 2
    assert not (tmp_path / "run" / "model.safetensors").exists()


def test_a_torn_checkpoint_is_told_and_the_one_before_it_taken(data, unbroken, tmp_path):
    out = tmp_path / "damaged"
    messages = []
    watcher = At(4, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(Stopped):
        fit(FULL, data, out, watcher)
    last = Checkpoints(out).entry()["file"]
    path = out / "checkpoints" / last
    path.write_bytes(path.read_bytes()[:1000])
    hearing = At(0, None)
    hearing.say = messages.append
    session.resume(out, watch=lambda: hearing, device="cpu")
    assert any(last in sentence and "damaged" in sentence for sentence in messages)
    assert_equal_runs(unbroken, Run.open(out))


def test_runs_are_not_mixed_up(data, unbroken, tmp_path):
    with pytest.raises(FileExistsError, match="saccade resume"):
        fit(FULL, data, unbroken.folder)
    with pytest.raises(FileNotFoundError, match="holds no run"):
        session.resume(tmp_path)
    other = Run.create(tmp_path / "other", "", change(FULL, model__name="linglo_nano"), str(data),
                       unbroken.classes)  # fmt: skip
    shutil.copytree(unbroken.folder / "checkpoints", other.folder / "checkpoints")
    with pytest.raises(ValueError, match="of another model"):
        session.resume(other.folder, force=True, device="cpu")


def test_chance_is_kept_and_restored():
    state = rng()
    drawn = random.random(), torch.rand(3)
    set_rng(state)
    assert random.random() == drawn[0]
    assert torch.equal(torch.rand(3), drawn[1])
    assert len({seed(0, step, rank) for step in range(50) for rank in range(4)}) == 200


def test_a_recipe_on_disk_is_the_recipe(unbroken):
    assert to_plain(Run.open(unbroken.folder).recipe) == to_plain(FULL)


def test_the_rate_told_is_the_peak_where_early_blocks_learn_more_slowly(unbroken):
    highest = max(line["rate"] for line in unbroken.lines("steps.jsonl"))
    assert highest == pytest.approx(FULL.optim.lr)


def test_a_run_may_count_iterations(data, tmp_path):
    """Three steps an epoch, ten in all: the last evaluation comes amid the fourth epoch."""
    recipe = change(PLAIN, schedule__iterations=10, schedule__epochs=99, loop__evaluate_every=2)
    run = fit(recipe, data, tmp_path / "run")
    lines = run.lines()
    assert [(line["epoch"], line["step"]) for line in lines] == [(2, 6), (4, 10)]
    assert run.recipe.schedule.epochs == 4
    assert Checkpoints(run.folder).load()[0]["step"] == 10
    summary = Summary.of(run)
    assert summary.finished
    assert summary.per_epoch == 3
    assert "schedule.epochs" not in summary.changed
    rates = [line["rate"] for line in run.lines("steps.jsonl")]
    assert len(rates) == 10
    assert rates[-1] < 0.1 * max(rates)


def begin_counted(data, out, step):
    fit(change(FULL, schedule__iterations=8), data, out, At(step, kill_self))


@pytest.mark.slow
def test_counted_iterations_go_on_bit_for_bit(data, tmp_path):
    """Killed amid the last epoch, which is not a whole one."""
    whole = fit(change(FULL, schedule__iterations=8), data, tmp_path / "whole")
    out = tmp_path / "broken"
    assert apart(begin_counted, data, out, 7) == [-signal.SIGKILL]
    session.resume(out, report=Reporter(), device="cpu")
    assert_equal_runs(whole, Run.open(out))


@pytest.mark.parametrize("name", ["linglo_nano", "sasa_nano_conv"])
def test_frozen_norms_stay_as_they_began(name, data, tmp_path):
    """Statistics and weights of BatchNorm; all else moves, and training is what evaluation is."""
    recipe = change(PLAIN, model__name=name, schedule__epochs=1, loop__norms="frozen")
    before = make.task(recipe, ("blue", "green", "red")).net
    norms = make.frozen_norms(before, recipe)
    assert len(norms) > 3
    assert make.frozen_norms(before, PLAIN) == []
    run = fit(recipe, data, tmp_path / "run")
    after = session.open_model(run.folder).task.net
    own = {id(p) for norm in norms for p in (*norm.parameters(), *norm.buffers())}
    pairs = zip(before.state_dict(keep_vars=True).items(), after.state_dict().values(), strict=True)
    moved = {key: not torch.equal(old, new) for (key, old), new in pairs if id(old) not in own}
    assert sum(moved.values()) > 0.9 * len(moved)
    twin = dict(zip(before.state_dict(), after.state_dict().values(), strict=True))
    for key, old in before.state_dict(keep_vars=True).items():
        assert id(old) not in own or torch.equal(old, twin[key]), key

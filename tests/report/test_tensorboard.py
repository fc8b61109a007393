import pytest

from saccade.engine.run import Run
from saccade.report.tensorboard import Log
from tests.report.run_folders import EPOCHS, written


def points(folder, tag):
    """What TensorBoard reads: (step, value) in the order of the files."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    if tag not in events.Tags()["scalars"]:
        return []
    return [(event.step, event.value) for event in events.Scalars(tag)]


def train(log, run, begin, end, *, per_epoch=4, epochs=6):
    """What the loop tells its watchers, and writes beside."""
    log.began(run, begin, per_epoch * epochs)
    for step in range(begin + 1, end + 1):
        log.stepped(step, {"cross_entropy": float(step)}, 0.1, 64)
        run.write(
            {"step": step, "loss": {"cross_entropy": float(step)}, "rate": 0.1}, "steps.jsonl"
        )
        if step % per_epoch == 0:
            line = {"epoch": step // per_epoch, "step": step, "val": {"top1": step / 2}}
            run.write(line)
            log.evaluated(line, False)


def test_steps_and_evaluations(tmp_path):
    pytest.importorskip("tensorboard")
    run = written(tmp_path, epochs=0)
    with Log() as log:
        train(log, run, 0, 8)
    assert points(tmp_path, "train/loss") == [(step, float(step)) for step in range(1, 9)]
    assert len(points(tmp_path, "train/rate")) == 8
    assert points(tmp_path, "val/top1") == [(4, 2.0), (8, 4.0)]
    assert points(tmp_path, "train/cross_entropy") == []  # one term is the loss itself


def test_a_run_that_goes_on_doubles_no_point(tmp_path):
    """Killed at step 7 of which 5 were saved, its log not even closed."""
    pytest.importorskip("tensorboard")
    run = written(tmp_path, epochs=0)
    killed = Log()
    train(killed, run, 0, 7)
    killed.writer.flush()
    assert len(points(tmp_path, "train/loss")) == 7
    run = Run.open(tmp_path)
    run.rewind(5)
    with Log() as log:
        train(log, run, 5, 12)
    killed.writer.close()
    assert [step for step, _ in points(tmp_path, "train/loss")] == list(range(1, 13))
    assert points(tmp_path, "val/top1") == [(4, 2.0), (8, 4.0), (12, 6.0)]


def test_long_epochs_are_thinned_as_steps_are(tmp_path):
    pytest.importorskip("tensorboard")
    run = written(tmp_path, epochs=0)
    with Log() as log:
        log.began(run, 0, EPOCHS * 250)
        for step in range(1, 11):
            log.stepped(step, {"a": 1.0, "b": 2.0}, 0.1, 64)
    assert points(tmp_path, "train/loss") == [(step, 3.0) for step in (1, 3, 5, 7, 9)]
    assert len(points(tmp_path, "train/b")) == 5


def test_without_tensorboard_it_says_what_to_install(monkeypatch):
    import builtins

    real = builtins.__import__

    def importing(name, *rest, **more):
        if "tensorboard" in name:
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", importing)
    with pytest.raises(ImportError, match=r"pip install 'saccade\[log\]'"):
        Log()

"""The training loop: one for every task.

All that a run depends on is its recipe, its data and the number of the step: the order of images
and their augmentation are functions of (seed, epoch, position), dropped paths of (seed, step,
rank). So a run that was killed goes on from its last checkpoint exactly as if it had not been.
"""

import random
import signal
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from saccade import tasks
from saccade.data.datasets import Splits
from saccade.data.loader import Batch
from saccade.engine import distributed, examples, make
from saccade.engine.alike import check_alike
from saccade.engine.checkpoint import Checkpoints
from saccade.engine.distributed import Group
from saccade.engine.evaluate import Stopped, evaluate, precision
from saccade.engine.optim import average, length, optimiser, schedule
from saccade.engine.run import Run
from saccade.engine.state import UNFIT, TrainingState
from saccade.engine.watch import Watcher
from saccade.models.describe import timm_config
from saccade.tasks.task import Metric, Task

Report = Callable[[Run], list[str]]


class Training:
    """One run while it trains: model, optimiser, loaders, and the step it has reached.

    `report` is called in the first process after each evaluation; the sentences that it returns
    are printed by the watcher. `fingerprint` is what checkpoints store about the images.
    """

    def __init__(
        self,
        run: Run,
        splits: Splits,
        task: Task,
        group: Group,
        watcher: Watcher,
        report: Report | None = None,
        fingerprint: dict[str, Any] | None = None,
    ):
        self.report = report
        self.about = {**run.plain(), "images": fingerprint}  # beside every checkpoint
        self.run, self.group, self.watcher, self.notes = run, group, watcher, splits.notes
        self.recipe, self.loop = run.recipe, run.recipe.loop
        split = self.loop.shard and group.world > 1
        self.task = task.to(device=group.device)
        if not split:  # FSDP2 takes plain layouts only
            self.task.to(memory_format=torch.channels_last)
        if self.loop.compile:
            distributed.wait_for_compilers(group)
            self.task.net.compile()
        self.frozen = make.frozen_norms(self.task.net, self.recipe)
        self.model = (distributed.shard if split else distributed.data_parallel)(self.task, group)
        self.train = make.training(self.recipe, splits.train, self.task.net, group)
        self.val = make.evaluation(self.recipe, splits.val, self.task.net, group)
        self.optimiser = optimiser(self.task, self.recipe.optim, self.loop.batch)
        self.schedule = schedule(self.optimiser, self.recipe.schedule, len(self.train))
        self.scaler = torch.amp.GradScaler(group.device.type, enabled=self.loop.precision == "fp16")
        self.average = average(self.task, self.loop)
        self.weights = TrainingState(self.task, self.optimiser, self.average, self.loop.shard)
        every = self.loop.keep_every and self.loop.keep_every * len(self.train)
        self.checkpoints = Checkpoints(run.folder, self.loop.keep, every)
        self.step = 0
        self.seconds = 0.0
        self.cpu = 0.0  # seconds of all threads of this process
        self.best: float | None = None
        self.evaluation_due = False  # an evaluation was interrupted and is still to be done
        self.stop_signals: list[int] = []

    # -- the loop ----------------------------------------------------------------------------

    @property
    def steps(self) -> int:
        return length(self.recipe.schedule, len(self.train))

    def fit(self) -> None:
        """Train to the end of the schedule, from the step that was reached."""
        self.watcher.began(self.run, self.step, self.steps)
        began = time.monotonic() - self.seconds
        began_cpu = time.process_time() - self.cpu
        with _stop_signals() as self.stop_signals:
            if self.evaluation_due:
                self._end(-(-self.step // len(self.train)))
            while self.step < self.steps:
                epoch, at = divmod(self.step, len(self.train))
                for parts in self.train.epoch(epoch, at):
                    stop = self.advance(parts, bool(self.stop_signals))
                    self.seconds = time.monotonic() - began
                    self.cpu = time.process_time() - began_cpu
                    ends = self.step % len(self.train) == 0 or self.step == self.steps
                    if ends:
                        self._end(epoch + 1)
                    elif stop or (self.loop.save_every and self.step % self.loop.save_every == 0):
                        self.save()
                    if stop and self.step < self.steps:
                        raise Stopped(f"stopped at step {self.step} of {self.steps}")
                    if self.step == self.steps:  # maybe in the middle of an epoch
                        break

    def advance(self, parts: list[Batch], stop: bool = False) -> bool:
        """Train one step and report it; gives whether any process was asked to stop."""
        terms, stopping = self._step(parts, stop)
        self._note(terms)
        return stopping

    def _step(self, parts: list[Batch], stop: bool) -> tuple[dict[str, float], bool]:
        """One update from all parts of a batch; the loss is the mean over the whole batch."""
        if not self.task.training:
            self.task.train()
            for norm in self.frozen:
                norm.eval()
        reseed(self.loop.seed, self.step, self.group.rank)
        self.schedule.step_update(self.step)
        self.optimiser.zero_grad(set_to_none=True)
        sums: dict[str, Tensor] = {}
        for part in parts:
            share = len(part.image) / self.loop.batch
            terms = self._backward(part, share, last=part is parts[-1])
            for name, term in terms.items():
                sums[name] = sums.get(name, 0) + term.detach() * share
        sent = torch.stack([*sums.values(), torch.tensor(float(stop), device=self.group.device)])
        *means, stopping = distributed.all_reduce(sent.double(), self.group).tolist()
        terms = dict(zip(sums, means, strict=True))
        self._check(terms)
        self._update()
        self.step += 1
        return terms, stopping > 0

    def _backward(self, part: Batch, share: float, last: bool) -> dict[str, Tensor]:
        device = self.group.device
        part = part.to(device)
        image = part.image.to(memory_format=torch.channels_last)
        with distributed.no_sync(self.model, not last):
            with precision(self.loop.precision, device):
                target = self.task.prepare(image, {**part.target, "index": part.index})
                output = self.model(*self.task.inputs(image, part.size, target))
                terms = self.task.loss(output, target)
            # Gradients are averaged over processes, and each share is one of the whole batch.
            loss = torch.stack(list(terms.values())).sum() * share * self.group.world
            self.scaler.scale(loss).backward()
        return terms

    def _check(self, terms: dict[str, float]) -> None:
        for name, value in terms.items():
            if not np.isfinite(value):
                raise self._unsound(f"the loss {name!r} is {value}")

    def _sound(self) -> None:
        """Raise if a parameter is not finite: gradients may be infinite where the loss is not."""
        count = torch.zeros((), device=self.group.device)
        for value in self.task.state_dict().values():
            own = getattr(value, "to_local", lambda value=value: value)()
            count += (~own.isfinite()).sum()
        if distributed.all_reduce(count, self.group) > 0:
            raise self._unsound("not all parameters are finite any more")

    def _unsound(self, what: str) -> FloatingPointError:
        last = self.checkpoints.entry()
        fallback = f"the checkpoint of step {last['step']} is kept" if last else "none was kept"
        return FloatingPointError(
            f"step {self.step}: {what}; {fallback}. Lower optim.lr, set optim.clip=1, or train in "
            f"fp32"
        )

    def _update(self) -> None:
        clip = self.recipe.optim.clip
        if clip is not None:
            self.scaler.unscale_(self.optimiser)
            torch.nn.utils.clip_grad_norm_(self.task.parameters(), clip)
        self.scaler.step(self.optimiser)
        self.scaler.update()
        if self.average is not None:
            self.average.update(self.task)

    def close(self) -> None:
        """End the processes that read images."""
        self.train.close()
        self.val.close()

    # -- reporting and saving ------------------------------------------------------------------

    def _note(self, terms: dict[str, float]) -> None:
        rate = self._rate()
        self.watcher.stepped(self.step, terms, rate, self.loop.batch)
        if self.group.first and (self.step - 1) % max(len(self.train) // 100, 1) == 0:
            self.run.write({"step": self.step, "loss": terms, "rate": rate}, "steps.jsonl")

    def _rate(self) -> float:
        """The learning rate of the last blocks; earlier ones may have a smaller one."""
        return max(group["lr"] for group in self.optimiser.param_groups)

    def _end(self, epoch: int) -> None:
        """After an epoch: evaluate if it is time, and save.

        A signal to stop interrupts the evaluation; it is then done first when the run goes on.
        """
        due = epoch % self.loop.evaluate_every == 0 or self.step == self.steps
        self.evaluation_due = False
        try:
            score = self._evaluate(epoch) if due else None
        except Stopped:
            self.evaluation_due = True
            self.save()
            raise Stopped(f"stopped at step {self.step} of {self.steps}, evaluating") from None
        except ValueError:  # too many images cannot be read: the epoch is saved all the same
            self.evaluation_due = True
            self.save()
            raise
        self.save(score)

    def _evaluate(self, epoch: int) -> float:
        self._sound()
        with self.average.applied_to(self.task) if self.average is not None else nullcontext():
            metric = evaluate(
                self.task,
                self.val,
                self.group,
                self.loop.precision,
                lambda: bool(self.stop_signals),
            )
            figures = metric.compute()
            score = figures[self.task.best]
            best = self.best is None or score > self.best
            if best:
                self.best = score
                self.weights.publish(self.run, figures, self.notes, self.group)
            tables = self._tables(metric) if best and self.group.first else None
        for loader in (self.train, self.val):  # every process learns of all unreadable images
            for bad in distributed.all_gather(dict(loader.bad), self.group):
                loader.note(bad)
        line = {
            "epoch": epoch, "step": self.step, "seconds": round(self.seconds, 1),
            "cpu_seconds": round(self.cpu, 1),
            "rate": self._rate(), "val": figures,
            "bad": len(self.train.bad) + len(self.val.bad),
        }  # fmt: skip
        if self.group.first:
            self.run.write(line)
            if tables is not None:  # of the model that was saved
                self.run.write_json("tables.json", tables)
            self.run.write_json("bad.json", {**self.train.bad, **self.val.bad})
        self.watcher.evaluated(line, best)
        if self.group.first and self.report is not None:
            state = rng()
            for sentence in self.report(self.run):
                self.watcher.say(sentence)
            set_rng(state)  # random numbers that a report draws change nothing in the run
        return score

    def _tables(self, metric: Metric) -> dict[str, Any]:
        """What the metric counted, with small pictures of the examples that it names."""
        tables, definition = metric.tables(), tasks.of(self.run.recipe)
        if definition.example is not None and self.weights.split:
            return {key: value for key, value in tables.items() if key != "examples"}
        about = timm_config(self.task.net)
        transform = definition.test_transform(self.run.recipe.test, about["mean"], about["std"])
        try:
            pictures = examples.draw_examples(
                definition, self.task, transform, self.val.images, tables
            )
        except Exception as error:  # pictures must never stop a run
            self.watcher.say(f"no examples in the report: {type(error).__name__}: {error}")
            pictures = {}
        return {**tables, "examples": pictures}

    def save(self, score: float | None = None) -> None:
        self._sound()
        distributed.sync_buffers(self.task, self.group)
        state = {
            "best": self.best, "seconds": self.seconds, "cpu": self.cpu, "rng": rng(),
            "scaler": self.scaler.state_dict(), "schedule": self.schedule.state_dict(),
            "epoch": self.step // len(self.train), "at": self.step % len(self.train),
            "bad": dict(self.train.bad), "owed": self.evaluation_due,
        }  # fmt: skip
        if self.group.first:
            self.run.sync()  # what was reported before this step
        self.weights.save(self.checkpoints, state, self.step, score, self.group, self.about)

    def restore(self, whole: str | None = None) -> None:
        """Load the last whole checkpoint; `whole` is a file that is known to be so."""
        state, damage = self.weights.load(self.checkpoints, self.group, whole)
        for sentence in damage:
            self.watcher.say(sentence)
        try:
            self.step, self.best, self.seconds = state["step"], state["best"], state["seconds"]
            self.cpu = state.get("cpu", 0.0)
            if type(self.step) is not int or self.step < 0:
                raise TypeError(f"its step is {self.step!r}")
            if not all(
                isinstance(n, int | float) for n in (self.seconds, self.cpu, self.best or 0.0)
            ):
                raise TypeError("its seconds or its best figure are no numbers")
            own = self.schedule.state_dict()
            check_alike(own, state["schedule"], "schedule")
            check_alike(self.scaler.state_dict(), state["scaler"], "scaler")
            check_alike(rng(), state["rng"], "random numbers")
            if not all(isinstance(text, str) for pair in state["bad"].items() for text in pair):
                raise TypeError("its list of unreadable images is not a list")
            self.scaler.load_state_dict(state["scaler"])
            self.schedule.load_state_dict({k: v for k, v in state["schedule"].items() if k in own})
            self.train.bad.update(state["bad"])
            self.evaluation_due = bool(state.get("owed", False))
            set_rng(state["rng"])
        except (*UNFIT, ValueError, OverflowError) as error:
            raise ValueError(
                f"resume: the checkpoint of step {self.step} lacks what saccade writes ({error})"
            ) from error
        if self.group.first:
            self.run.rewind(self.step)


def seed(*numbers: int) -> int:
    """One seed made of several numbers; neighbouring numbers give unrelated seeds."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0]) >> 1


def reseed(*numbers: int) -> None:
    """Set every generator of random numbers by these numbers alone."""
    number = seed(*numbers)
    random.seed(number)
    np.random.seed(number % 2**32)
    torch.manual_seed(number)


def rng() -> dict[str, Any]:
    """The state of every generator of random numbers, as plain values."""
    kind, keys, *rest = np.random.get_state()
    state: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": (kind, torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def set_rng(state: dict[str, Any]) -> None:
    random.setstate(state["python"])
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


@contextmanager
def _stop_signals() -> Generator[list[int]]:
    """The signals to stop that have come so far; a second Ctrl-C stops at once.

    A second SIGTERM does not: a scheduler sends one to every process, and torchrun another.
    """
    signals: list[int] = []
    before: dict[int, Any] = {}

    def ask(number: int, _: Any) -> None:
        signals.append(number)
        if number == signal.SIGINT:
            signal.signal(number, before[number])

    if threading.current_thread() is threading.main_thread():  # Python sets no handlers elsewhere
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, ask)
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

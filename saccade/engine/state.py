"""What a checkpoint holds of the model and its optimiser, copied or split over processes."""

from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)

from saccade.engine import archive, distributed, former, shards
from saccade.engine.alike import check_alike, check_optimiser
from saccade.engine.checkpoint import Checkpoints
from saccade.engine.distributed import Group
from saccade.engine.optim import Average
from saccade.engine.run import Run
from saccade.models import pickled
from saccade.models.saved import save
from saccade.tasks.task import Task

UNFIT = (LookupError, TypeError, AttributeError, RuntimeError)
"""Errors of torch and timm over a state that is not theirs."""


class TrainingState:
    """Parameters, their average and the optimiser's memory, to and from disk."""

    def __init__(
        self,
        task: Task,
        optimiser: torch.optim.Optimizer,
        average: Average | None,
        split: bool,
    ):
        self.task, self.optimiser, self.average, self.split = task, optimiser, average, split

    def save(
        self,
        checkpoints: Checkpoints,
        state: dict[str, Any],
        step: int,
        score: float | None,
        group: Group,
        about: dict[str, Any] | None = None,
    ) -> None:
        """Write a checkpoint: one file by the first process, or a folder by all together."""
        if self.split:
            self._save_split(checkpoints, state, step, score, group, about or {})
        elif group.first:
            whole = {
                "model": self.task.state_dict(),
                "optim": self.optimiser.state_dict(),
                "average": None if self.average is None else self.average.state_dict(),
                **state,
            }
            checkpoints.save(whole, step, score, about)
        distributed.barrier(group)

    def _save_split(
        self,
        checkpoints: Checkpoints,
        state: dict[str, Any],
        step: int,
        score: float | None,
        group: Group,
        about: dict[str, Any],
    ) -> None:
        part = distributed.first_does(lambda: checkpoints.begin_folder(step), group)
        tensors = self._tensors()
        try:
            own: Any = shards.write(part, tensors, step, group, checkpoints.cure)
        except OSError as error:  # let the others know before this one gives up
            own = error
        results = distributed.all_gather(own, group)
        for error in results:
            if isinstance(error, OSError):
                raise error
        if group.first:
            checkpoints.adopt(part, state, step, score, about, dict(results))

    def _tensors(self) -> dict[str, Any]:
        model, optim = get_state_dict(self.task, self.optimiser)
        tensors: dict[str, Any] = {"model": model, "optim": optim}
        if self.average is not None:
            tensors["average"] = self.average.state_dict()
        return tensors

    def load(
        self, checkpoints: Checkpoints, group: Group, whole: str | None = None
    ) -> tuple[dict[str, Any], list[str]]:
        """Fill in the last whole checkpoint; gives the rest of its state, and what was damaged.

        Args:
            checkpoints: those of the run
            group: the processes
            whole: a file whose checksum the first process has compared already
        """
        checkpoint, damage = _choose_step(checkpoints, group, whole)
        if isinstance(checkpoint, Path):
            return self._load_split(checkpoint), damage
        if self.split and group.world > 1:
            raise ValueError(
                "resume: the checkpoint was written by one process that held all parameters; go "
                "on with one process, or with loop.shard=false"
            )
        try:
            _fits(self.task, checkpoint["model"])
            check_optimiser(self.optimiser, checkpoint["optim"])
            if self.average is not None:
                check_alike(self.average.state_dict(), checkpoint["average"], "average")
            self.task.load_state_dict(checkpoint["model"])
            self.optimiser.load_state_dict(checkpoint["optim"])
            if self.average is not None:
                self.average.load_state_dict(checkpoint["average"])
        except UNFIT as error:
            raise _other(error) from error
        return checkpoint, damage

    def _load_split(self, folder: Path) -> dict[str, Any]:
        kind = former if former.is_former(folder) else shards
        try:
            tensors = shards.fill(self._tensors(), kind.leaves(folder))
            check_alike(self._tensors(), tensors, "state")
            set_state_dict(
                self.task,
                self.optimiser,
                model_state_dict=tensors["model"],
                optim_state_dict=tensors["optim"],
            )
            if self.average is not None:
                self.average.load_state_dict(tensors["average"])
        except UNFIT as error:
            raise _other(error) from error
        return kind.rest(folder)

    def publish(
        self, run: Run, figures: dict[str, float], notes: dict[str, Any], group: Group
    ) -> None:
        """Write the network as it stands, for `saccade.load` and all that use it."""
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        tensors: dict[str, Any] = (
            get_model_state_dict(self.task.net, options=options)
            if self.split
            else self.task.net.state_dict()
        )
        if group.first:
            plain = run.plain()["recipe"]
            save(
                self.task.net,
                run.folder / "model.safetensors",
                tensors=tensors,
                cure=run.cure,
                classes=list(run.classes),
                recipe=run.name,
                task=plain["task"],
                test=plain["test"],
                figures=figures,
                data=notes,
            )
        distributed.barrier(group)


def _choose_step(
    checkpoints: Checkpoints, group: Group, whole: str | None
) -> tuple[dict[str, Any] | Path, list[str]]:
    """The last whole checkpoint, which the first process chooses for all."""
    own: list[dict[str, Any]] = []

    def choose() -> tuple[int | Path, list[str]]:
        checkpoint, damage = checkpoints.load(whole=whole)
        if isinstance(checkpoint, Path):
            return checkpoint, damage
        own.append(checkpoint)
        return checkpoint["step"], damage

    step, sentences = distributed.first_does(choose, group)
    if isinstance(step, Path):
        return step, sentences
    if group.first:
        return own[0], sentences
    entries = checkpoints.index["entries"]
    return checkpoints.read(next(e for e in entries if e["step"] == step)), sentences


def weight_names(path: Path) -> set[str]:
    """The names of the task's parameters and buffers in a checkpoint; tensors are not read."""
    if path.suffix == archive.SUFFIX:
        return set(archive.read(path, tensor=lambda _, name: name)["model"])
    if not path.is_dir():
        return set(pickled.load(path)["model"])
    kind = former if former.is_former(path) else shards
    return {str(leaf[1]) for leaf in kind.leaves(path) if leaf[0] == "model"}


def _other(error: Exception) -> ValueError:
    why = str(error).partition("\n")[0]
    return ValueError(f"resume: the checkpoint is of another recipe ({why})")


def _fits(task: Task, tensors: dict[str, torch.Tensor]) -> None:
    own = task.state_dict()
    for name in own.keys() | tensors.keys():
        if name not in own or name not in tensors or own[name].shape != tensors[name].shape:
            raise ValueError(
                f"the checkpoint is of another model ({name!r} does not fit); "
                f"resume with the recipe it was made with"
            )

"""What a checkpoint holds of the model and its optimiser, copied or split over processes."""

import os
import shutil
from pathlib import Path
from typing import Any

import torch
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)

from saccade.engine import distributed
from saccade.engine.checkpoint import Checkpoints
from saccade.engine.distributed import Group
from saccade.engine.optim import Average
from saccade.engine.run import Run
from saccade.models.saved import save
from saccade.tasks.task import Task


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
    ) -> None:
        """Write a checkpoint: one file by the first process, or a folder by all together."""
        if self.split:
            self._save_split(checkpoints, state, step, score, group)
        elif group.first:
            whole = {
                "model": self.task.state_dict(),
                "optim": self.optimiser.state_dict(),
                "average": None if self.average is None else self.average.state_dict(),
                **state,
            }
            checkpoints.save(whole, step, score)
        distributed.barrier(group)

    def _save_split(
        self,
        checkpoints: Checkpoints,
        state: dict[str, Any],
        step: int,
        score: float | None,
        group: Group,
    ) -> None:
        part = checkpoints.folder / f"step-{step:09d}.part"
        if group.first:
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
        distributed.barrier(group)
        dcp.save(self._tensors(), checkpoint_id=part)
        if group.first:
            with open(part / "rest.pt", "wb") as file:
                torch.save({"step": step, **state}, file)
                file.flush()
                os.fsync(file.fileno())
            checkpoints.adopt(part, step, score)

    def _tensors(self) -> dict[str, Any]:
        model, optim = get_state_dict(self.task, self.optimiser)
        tensors: dict[str, Any] = {"model": model, "optim": optim}
        if self.average is not None:
            tensors["average"] = self.average.state_dict()
        return tensors

    def load(self, checkpoints: Checkpoints) -> tuple[dict[str, Any], list[str]]:
        """Fill in the last whole checkpoint; gives the rest of its state, and what was torn."""
        checkpoint, torn = checkpoints.load()
        if isinstance(checkpoint, Path):
            tensors = self._tensors()
            dcp.load(tensors, checkpoint_id=checkpoint)
            set_state_dict(
                self.task,
                self.optimiser,
                model_state_dict=tensors["model"],
                optim_state_dict=tensors["optim"],
            )
            if self.average is not None:
                self.average.load_state_dict(tensors["average"])
            return torch.load(checkpoint / "rest.pt", map_location="cpu", weights_only=True), torn
        _fits(self.task, checkpoint["model"])
        self.task.load_state_dict(checkpoint["model"])
        self.optimiser.load_state_dict(checkpoint["optim"])
        if self.average is not None:
            self.average.load_state_dict(checkpoint["average"])
        return checkpoint, torn

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
                classes=list(run.classes),
                recipe=run.name,
                task=plain["task"],
                test=plain["test"],
                figures=figures,
                data=notes,
            )
        distributed.barrier(group)


def weight_names(checkpoints: Checkpoints) -> set[str]:
    """What the last whole checkpoint has of the task's parameters and buffers."""
    checkpoint, _ = checkpoints.load()
    if not isinstance(checkpoint, Path):
        return set(checkpoint["model"])
    names = dcp.FileSystemReader(checkpoint).read_metadata().state_dict_metadata
    return {name.removeprefix("model.") for name in names if name.startswith("model.")}


def _fits(task: Task, tensors: dict[str, torch.Tensor]) -> None:
    own = task.state_dict()
    for name in own.keys() | tensors.keys():
        if name not in own or name not in tensors or own[name].shape != tensors[name].shape:
            raise ValueError(
                f"the checkpoint is of another model ({name!r} does not fit); "
                f"resume with the recipe it was made with"
            )

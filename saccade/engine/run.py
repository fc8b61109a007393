"""The folder of a run: its recipe, its machine and its results.

recipe.json        recipe as resolved, data, classes
environment.json   versions, machine, command
data.json          how many images there are, and checksums (see engine.changes)
report.jsonl       a line per evaluation
final.json         figures of the validation set, if the run chose its model by others
steps.jsonl        the loss and the rate along the way
tables.json        what the best evaluation counted, and pictures to look at
baseline.json      what a linear model reaches, if asked for
bad.json           images that could not be read
report.html, curves.png, confusion.png, tensorboard/
checkpoints/       see engine.checkpoint
model.safetensors  the best model, which saccade.load reads
.lock              held by the process that trains (engine.lock)

Each file is whole or not there (`saccade.files`); of the two that grow, an incomplete last line is
left out. Only recipe.json is needed to go on, and the last checkpoint holds a copy of it.
"""

import json
import os
import platform
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from saccade import files, outside
from saccade.models.saved import control
from saccade.models.zoo import stated_arguments, unstated_arguments
from saccade.recipes.disk import from_plain, to_plain
from saccade.recipes.recipe import Recipe, change
from saccade.version import __version__


@dataclass(frozen=True)
class Run:
    """One training run on disk."""

    folder: Path
    name: str
    recipe: Recipe
    data: str
    classes: tuple[str, ...]

    @classmethod
    def create(
        cls, folder: str | Path, name: str, recipe: Recipe, data: str, classes: Iterable[str]
    ) -> "Run":
        """A new run; a folder that holds one already, with a step or more, is refused."""
        folder = Path(folder)
        if any((folder / name).exists() for name in ("steps.jsonl", "checkpoints")):
            raise FileExistsError(
                f"{str(folder)!r} holds a run; go on with 'saccade resume {folder}', "
                f"or name another folder with --out"
            )
        run = cls(folder, name, recipe, data, tuple(classes))
        folder.mkdir(parents=True, exist_ok=True)
        run.write_json("environment.json", environment())
        run.write_json("recipe.json", run.plain())
        return run

    @classmethod
    def open(cls, folder: str | Path) -> "Run":
        """A run that was created before."""
        folder = Path(folder)
        path = folder / "recipe.json"
        if not path.is_file():
            raise FileNotFoundError(
                f"{str(folder)!r} holds no run (it has no recipe.json); "
                f"give the folder that 'saccade train' named"
            )
        if not files.inside(path, folder):
            raise ValueError(
                f"{str(path)!r} is a link out of the run's folder; copy the file there"
            )
        try:
            plain = json.loads(path.read_bytes())
        except RecursionError as error:
            raise ValueError(f"{str(path)!r} is no recipe that saccade wrote (too deep)") from error
        except ValueError as error:
            raise _no_recipe(path, error) from error
        return cls.read(folder, plain, path)

    @classmethod
    def read(cls, folder: Path, plain: Any, source: Path) -> "Run":
        """The run that a file describes; anything that saccade does not write is refused."""
        try:
            return cls.from_plain(folder, plain)
        except outside.NotImportedError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise _no_recipe(source, error) from error

    @classmethod
    def from_plain(cls, folder: Path, plain: dict[str, Any]) -> "Run":
        """The run that `plain` described."""
        name, data, classes = plain["name"], plain["data"], plain["classes"]
        if not all(isinstance(text, str) for text in (name, data, *classes)):
            raise ValueError("its name, data and classes should be text")
        if any(control(text) for text in (name, *classes)):
            raise ValueError("its name or classes hold control characters")
        outside.check(plain.get("imports"), "this run")
        recipe = _as_begun(from_plain(plain["recipe"]), plain.get("stated"))
        return cls(folder, name, recipe, data, tuple(classes))

    def plain(self) -> dict[str, Any]:
        return {
            "name": self.name, "data": self.data, "recipe": to_plain(self.recipe),
            "classes": list(self.classes),
            "stated": {**stated_arguments(self.recipe.model.name), **self._stated_options()},
            **self._imports(),
        }  # fmt: skip

    def _imports(self) -> dict[str, Any]:
        """The modules from outside that the recipe needs, if any."""
        model = self.recipe.model
        kinds = [type(one).__name__ for one in
                 (self.recipe.task, self.recipe.augment, self.recipe.test)]  # fmt: skip
        imports = outside.needed([model.name, *outside.words_in(model.options), *kinds])
        return {"imports": imports} if imports else {}

    def _stated_options(self) -> dict[str, Any]:
        options = self.recipe.model.options
        return {
            key: options[key]
            for key in unstated_arguments(self.recipe.model.name)
            if key in options
        }

    def plain_file(self, file: str) -> Path | None:
        """A file of the folder that may be read: not a pipe, and not a link out of the folder."""
        path = self.folder / file
        return path if path.is_file() and files.inside(path, self.folder) else None

    # -- its results -------------------------------------------------------------------------

    def lines(self, file: str = "report.jsonl") -> list[dict[str, Any]]:
        """The lines of a file so far; from a damaged line on, all are left out."""
        path = self.plain_file(file)
        if path is None:
            return []
        lines = []
        for text in path.read_bytes().splitlines():
            try:
                line = json.loads(text)
            except (ValueError, RecursionError):
                break
            if not isinstance(line, dict) or type(line.get("step")) is not int:
                break
            lines.append(line)
        return lines

    def write(self, line: dict[str, Any], file: str = "report.jsonl") -> None:
        """Add a line to a file."""
        files.append(self.folder / file, json.dumps(line) + "\n", self.cure)

    def sync(self) -> None:
        """Bring the lines so far to the disk."""
        for file in ("report.jsonl", "steps.jsonl"):
            if (self.folder / file).is_file():
                files.sync(self.folder / file)

    def rewind(self, step: int) -> None:
        """Remove the lines after a step, because training goes on from there."""
        for file in ("report.jsonl", "steps.jsonl"):
            if (self.folder / file).is_file():
                earlier = [line for line in self.lines(file) if line["step"] <= step]
                text = "".join(json.dumps(line) + "\n" for line in earlier)
                files.write(self.folder / file, text, self.cure)

    def read_json(self, file: str) -> dict[str, Any]:
        """A JSON file of the folder; empty where there is none, or a damaged one."""
        path = self.plain_file(file)
        try:
            content = json.loads(path.read_bytes()) if path else {}
        except (ValueError, OSError, RecursionError):
            return {}
        return content if isinstance(content, dict) else {}

    def write_json(self, file: str, value: Any) -> None:
        """Write a JSON file of the folder."""
        files.write_json(self.folder / file, value, self.cure)

    @property
    def cure(self) -> str:
        """What to do where a file cannot be written."""
        has_checkpoints = (self.folder / "checkpoints").is_dir()
        if not has_checkpoints and not (self.folder / "recipe.json").is_file():
            return files.MAKE_ROOM  # there is nothing to resume
        last = "the last checkpoint is whole: " if has_checkpoints else ""
        return f"{last}make room, then 'saccade resume {self.folder}'"


def _no_recipe(path: Path, error: Exception) -> ValueError:
    why = f"{error} is missing" if isinstance(error, KeyError) else error
    why = " ".join(str(why).split())  # keys of the file may be of several lines
    return ValueError(f"{str(path)!r} is no recipe that saccade wrote ({why})")


def _as_begun(recipe: Recipe, began: dict[str, Any] | None) -> Recipe:
    """The recipe with the model's arguments as they were when the run began.

    Defaults may have changed since; what runs of earlier versions do not state is known.
    """
    name, options = recipe.model.name, recipe.model.options
    values = unstated_arguments(name) if began is None else began
    now = json.loads(json.dumps(stated_arguments(name)))  # lists, as a run's file has them
    other = {key: value for key, value in values.items() if now.get(key) != _as_lists(value)}
    return change(recipe, model__options={**other, **options}) if other else recipe


def _as_lists(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def environment() -> dict[str, Any]:
    """Versions, machine and command: what is needed to run it again."""
    import timm
    import torchvision

    cuda = torch.cuda.is_available()
    return {
        "saccade": __version__,
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "timm": timm.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "device": torch.cuda.get_device_name() if cuda else (platform.processor() or "cpu"),
        "threads": torch.get_num_threads(),
        "processes": int(os.environ.get("WORLD_SIZE", "1")),
        "command": " ".join(sys.argv[1:]),
    }

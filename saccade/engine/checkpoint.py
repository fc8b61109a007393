"""Checkpoints that survive a crash, a full disk and a torn file.

    checkpoints/step-000001200.pt    one state, written beside and renamed into place
    checkpoints/index.json           which are there, their SHA-256, which is last and which best

A file is fsynced before it gets its name, and named before the index knows it; old ones go only
after the index has forgotten them. So at every instant the index names whole files. A state is
plain values and tensors and is read with `weights_only`: it can run no code.
"""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Generator
from pathlib import Path
from typing import Any

import torch

FORMAT = 1


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, run: str | Path, keep: int = 1, every: int | None = None):
        """
        Args:
            run: the run's folder
            keep: how many of the last ones stay, beside the best and one to fall back on
            every: also keep each whose step is a multiple of this
        """
        if keep < 1:
            raise ValueError(f"Checkpoints: at least the last one is kept, got {keep=}")
        self.folder = Path(run) / "checkpoints"
        self.keep, self.every = keep, every

    @property
    def index(self) -> dict[str, Any]:
        """`{"entries": [{step, file, sha256, score}], oldest first, "best": step or None}`."""
        path = self.folder / "index.json"
        if not path.is_file():  # a file has its name only once it is whole
            files = sorted(p for p in self.folder.glob("step-*") if p.suffix != ".part")
            steps = [int(p.stem.removeprefix("step-")) for p in files]
            lines = zip(steps, files, strict=True)
            entries = [{"step": n, "file": p.name, "sha256": None, "score": None} for n, p in lines]
            return {"entries": entries, "best": None}
        try:
            return json.loads(path.read_text())
        except json.JSONDecodeError as error:
            raise ValueError(
                f"{str(path)!r} is torn ({error}); remove it, and the newest checkpoint is taken"
            ) from error

    def save(self, state: dict[str, Any], step: int, score: float | None = None) -> Path:
        """Write a state; a larger `score` than all before makes it the best."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"step-{step:09d}.pt"
        with _beside(path) as part:
            with open(part, "wb") as file:
                torch.save({"format": FORMAT, "step": step, **state}, file)
                file.flush()
                os.fsync(file.fileno())
            digest = sha256(part)
        self._enter({"step": step, "file": path.name, "sha256": digest, "score": score})
        return path

    def adopt(self, part: Path, step: int, score: float | None = None) -> Path:
        """Take in a folder that processes have written together."""
        path = self.folder / f"step-{step:09d}"
        for file in part.rglob("*"):
            _synced(file)
        digest = sha256(part)
        _remove(path)
        with _beside(path, part):
            pass
        self._enter({"step": step, "file": path.name, "sha256": digest, "score": score})
        return path

    def _enter(self, entry: dict[str, Any]) -> None:
        """Enter a new file into the index, then delete files that are neither recent nor best.

        Entries with later steps belong to a torn end that is trained again; they go too.
        """
        index = self.index
        entries = [e for e in index["entries"] if e["step"] < entry["step"]] + [entry]
        scores = [e["score"] for e in entries if e["step"] == index["best"]]
        if entry["score"] is not None and all(s is None or entry["score"] > s for s in scores):
            index["best"] = entry["step"]
        stay = {e["step"] for e in entries[-self.keep - 1 :]} | {index["best"]}
        if self.every is not None:
            stay |= {e["step"] for e in entries if e["step"] % self.every == 0}
        index["entries"] = [e for e in entries if e["step"] in stay]
        with _beside(self.folder / "index.json") as part, open(part, "w") as file:
            json.dump(index, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        known = {e["file"] for e in index["entries"]}
        for path in self.folder.glob("step-*"):
            if path.name not in known:
                _remove(path)

    def entry(self, which: str = "last") -> dict[str, Any] | None:
        """The index's line for the "last" or "best" one."""
        index = self.index
        if which == "best":
            return next((e for e in index["entries"] if e["step"] == index["best"]), None)
        return index["entries"][-1] if index["entries"] else None

    def load(self, which: str = "last") -> tuple[dict[str, Any] | Path, list[str]]:
        """The last (or best) whole state, or its folder, and a sentence for each torn one."""
        torn: list[str] = []
        entries = self.index["entries"]
        if which == "best":
            entries = [e for e in entries if e["step"] == self.index["best"]]
        for entry in reversed(entries):
            path = self.folder / entry["file"]
            why = self.fault(entry)
            if why is None and path.is_dir():
                return path, torn
            if why is None:
                return torch.load(path, map_location="cpu", weights_only=True), torn
            torn.append(f"{path.name} {why}; the one before it is taken")
        if torn:
            raise ValueError(f"no whole checkpoint in {str(self.folder)!r}: {' '.join(torn)}")
        raise FileNotFoundError(
            f"no checkpoint in {str(self.folder)!r}; give the folder of a run that was started"
        )

    def fault(self, entry: dict[str, Any]) -> str | None:
        """What is wrong with a file of the index, if anything."""
        path = self.folder / entry["file"]
        if not path.exists():
            return "is missing"
        if entry["sha256"] in (None, sha256(path)):
            return None
        return "is torn (its checksum differs)"


def sha256(path: Path) -> str:
    """The checksum of a file, or of all files of a folder in the order of their names."""
    digest = hashlib.sha256()
    for file in sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]:
        with open(file, "rb") as stream:
            while chunk := stream.read(1 << 20):
                digest.update(chunk)
    return digest.hexdigest()


@contextlib.contextmanager
def _beside(path: Path, part: Path | None = None) -> Generator[Path]:
    """A temporary name to write under: renamed at the end, removed after an error."""
    part = part or path.with_name(path.name + ".part")
    try:
        yield part
        os.replace(part, path)
        _synced(path.parent)  # the rename itself
    except BaseException as error:
        _remove(part)
        if isinstance(error, OSError | RuntimeError):  # torch's writer has its own words
            raise OSError(
                f"could not write {str(path)!r} ({error}); the checkpoint before it is whole: "
                f"make room, then 'saccade resume {path.parents[1]}'"
            ) from error
        raise


def _synced(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)

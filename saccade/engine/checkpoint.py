"""Checkpoints that survive a crash, a full disk and a damaged file.

    checkpoints/step-000001200.safetensors   one state (`archive`), written beside, then renamed
    checkpoints/step-000001200/              the same, split over processes (`shards`)
    checkpoints/index.json                   which are there, their checksums, which is best

A file is fsynced before it gets its name, and named before the index knows it; old ones go only
after the index has forgotten them. So at every instant the index names whole files. Each file also
holds its own step, score and checksum: without the index, or with a damaged one, damage is still
noticed and the one before is taken. Reading runs no code: not of these files, nor of the pickles
(step-*.pt and folders of torch) that earlier versions wrote, which are read as data.
"""

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from saccade import files
from saccade.engine import archive, former, shards
from saccade.engine.archive import DamagedFileError
from saccade.models import pickled
from saccade.models.pickled import RefusedPickleError
from saccade.version import FORMATS, check_format

NAME = re.compile(r"step-(\d{9,})(\.safetensors|\.pt)?")
MOST = 10_000  # checkpoints of one run
BROKEN = (DamagedFileError, RefusedPickleError, OSError)


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
        self.run = Path(run)
        self.folder = self.run / "checkpoints"
        self.keep, self.every = keep, every

    @property
    def cure(self) -> str:
        """What to do where a checkpoint cannot be written."""
        return f"the checkpoint before it is whole: make room, then 'saccade resume {self.run}'"

    # -- the index ---------------------------------------------------------------------------

    @property
    def index(self) -> dict[str, Any]:
        """`{"entries": [{step, file, sha256, score}], oldest first, "best": step or None}`."""
        self._check_links()
        return self._indexed()[0]

    def _indexed(self) -> tuple[dict[str, Any], list[str]]:
        """The index, or one made of the files themselves; a sentence if it was damaged."""
        path = self.folder / "index.json"
        if not path.is_file():
            return self._scanned(), []
        try:
            return _read_index(path), []
        except (DamagedFileError, OSError) as error:
            return self._scanned(), [f"{path.name} {error}; the files themselves are looked at"]

    def _scanned(self) -> dict[str, Any]:
        """An index of the files that are there, by what they say about themselves."""
        entries = []
        for path in self.folder.glob("step-*") if self.folder.is_dir() else ():
            if match := NAME.fullmatch(path.name):  # no .part: a file has its name once it is whole
                score: Any = _header(path).get("score")
                score = float(score) if type(score) in (int, float) else None
                entry = {"step": int(match[1]), "file": path.name, "sha256": None, "score": score}
                entries.append(entry)
        entries.sort(key=lambda entry: (entry["step"], entry["file"]))
        scores = [(e["score"], e["step"]) for e in entries if e["score"] is not None]
        return {"entries": entries, "best": max(scores)[1] if scores else None}

    def _write_index(self, index: dict[str, Any]) -> None:
        content = {**index, "check": _check_of(index)}
        files.write_json(self.folder / "index.json", content, self.cure)

    def entry(self, which: str = "last") -> dict[str, Any] | None:
        """The index's line for the "last" or "best" one."""
        index = self.index
        if which == "best":
            return next((e for e in index["entries"] if e["step"] == index["best"]), None)
        return index["entries"][-1] if index["entries"] else None

    # -- writing -----------------------------------------------------------------------------

    def save(
        self,
        state: dict[str, Any],
        step: int,
        score: float | None = None,
        about: dict[str, Any] | None = None,
    ) -> Path:
        """Write a state; a larger `score` than all before makes it the best.

        Args:
            state: plain values and tensors
            step: after which it was so
            score: how good it is, if that is known
            about: plain values to keep beside it, such as the recipe
        """
        path = self.folder / f"step-{step:09d}{archive.SUFFIX}"
        self._make_way(path.name)
        whole = {"format": FORMATS["checkpoint"], "step": step, **state}
        notes = {**(about or {}), "step": step, "score": score}
        digest = archive.write(path, whole, notes, self.cure)
        self._enter({"step": step, "file": path.name, "sha256": digest, "score": score})
        return path

    def begin_folder(self, step: int) -> Path:
        """An empty folder for the files of several processes."""
        part = self.folder / f"step-{step:09d}.part"
        self._make_way(f"step-{step:09d}")
        try:
            files.remove(part)
            part.mkdir()
        except OSError as error:
            raise files.unwritten(part, error, self.cure) from error
        return part

    def adopt(
        self,
        part: Path,
        state: dict[str, Any],
        step: int,
        score: float | None,
        about: dict[str, Any],
        digests: dict[str, str],
    ) -> Path:
        """Take in a folder that processes have written together.

        Args:
            part: the folder that `begin_folder` gave
            state: what is not split
            step: after which it was so
            score: how good it is, if that is known
            about: plain values to keep beside it
            digests: the files of the processes and their checksums
        """
        path = self.folder / f"step-{step:09d}"
        whole = {"format": FORMATS["checkpoint"], "step": step, **state}
        notes = {**about, "step": step, "score": score, "files": digests}
        digest = archive.write(part / shards.REST, whole, notes, self.cure)
        older = path.with_name(path.name + ".older.part")
        try:
            files.sync(part)
            if path.exists():
                files.remove(older)
                path.rename(older)
            part.rename(path)
            files.sync(self.folder)
            files.remove(older)
        except OSError as error:
            raise files.unwritten(path, error, self.cure) from error
        self._enter({"step": step, "file": path.name, "sha256": digest, "score": score})
        return path

    def _make_way(self, name: str) -> None:
        """Before a step is written again, let the index accept both its old file and the new
        one."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._check_links()
        index, _ = self._indexed()
        older = [e for e in index["entries"] if e["file"] == name and e["sha256"] is not None]
        for entry in older:
            entry["sha256"] = None
        if older:
            self._write_index(index)

    def _enter(self, entry: dict[str, Any]) -> None:
        """Enter a new file into the index, then delete files that are neither recent nor best.

        Entries of later steps are deleted too: the run has gone back and trains these steps again.
        """
        index, _ = self._indexed()
        entries = [e for e in index["entries"] if e["step"] < entry["step"]] + [entry]
        if not any(e["step"] == index["best"] for e in entries):
            index["best"] = None
        scores = [e["score"] for e in entries if e["step"] == index["best"]]
        if entry["score"] is not None and all(s is None or entry["score"] > s for s in scores):
            index["best"] = entry["step"]
        stay = {e["step"] for e in entries[-self.keep - 1 :]} | {index["best"]}
        if self.every is not None:
            stay |= {e["step"] for e in entries if e["step"] % self.every == 0}
        index["entries"] = [e for e in entries if e["step"] in stay]
        self._write_index(index)
        names = {e["file"] for e in index["entries"]}
        for path in self.folder.glob("step-*"):
            if path.name not in names:
                files.remove(path)

    # -- reading -----------------------------------------------------------------------------

    def load(
        self, which: str = "last", whole: str | None = None
    ) -> tuple[dict[str, Any] | Path, list[str]]:
        """The last (or best) undamaged state, or its folder, and a sentence for each damaged one.

        Args:
            which: "last" or "best"
            whole: a file whose checksum was compared since the run was locked
        """
        self._check_links()
        index, damage = self._indexed()
        entries = index["entries"]
        if which == "best":
            entries = [e for e in entries if e["step"] == index["best"]]
        faults = []
        for entry in reversed(entries):
            try:
                state = self.read(entry, checked=entry["file"] == whole)
            except BROKEN as error:
                faults.append(f"{entry['file']} {_reason(error)}")
                continue
            return state, [*damage, *(f"{fault}; the one before it is taken" for fault in faults)]
        if faults:
            raise ValueError(
                f"no whole checkpoint in {str(self.folder)!r}: {'; '.join(faults)}; bring a copy "
                f"of one, or train anew with another --out"
            )
        raise FileNotFoundError(
            f"no checkpoint in {str(self.folder)!r}; give the folder of a run that was started"
        )

    def read(self, entry: dict[str, Any], checked: bool = False) -> dict[str, Any] | Path:
        """The state of an entry of the index, or its folder; raises one of `BROKEN`.

        `checked` is True if `fault` has examined the entry already.
        """
        path = self.folder / entry["file"]
        if not checked:
            self._check(entry)
        if path.is_dir():
            return path
        state = pickled.load(path) if path.suffix == ".pt" else archive.read(path)
        if not isinstance(state, dict) or state.get("step") != entry["step"]:
            raise DamagedFileError("is the checkpoint of another step")
        check_format("checkpoint", state.get("format"), str(path))
        return state

    def last_whole(self) -> dict[str, Any] | None:
        """The index's line for the last one that nothing is wrong with."""
        entries = reversed(self.index["entries"])
        return next((entry for entry in entries if self.fault(entry) is None), None)

    def about(self, entry: dict[str, Any]) -> dict[str, Any]:
        """What was kept beside a state; empty for one of an earlier format."""
        return _header(self.folder / entry["file"])

    def fault(self, entry: dict[str, Any]) -> str | None:
        """What is wrong with a file of the index, if anything."""
        try:
            self._check(entry)
        except BROKEN as error:
            return _reason(error)
        return None

    def _check(self, entry: dict[str, Any]) -> None:
        """Raise one of `BROKEN` if a checkpoint is not as it was written."""
        path = self.folder / entry["file"]
        if not path.exists():
            raise DamagedFileError("is missing")
        for one in _all_files(path):
            if not files.inside(one, self.run):
                raise DamagedFileError("is a link out of the run's folder, which is not followed")
            if not one.is_file():
                raise DamagedFileError("is no plain file")
        if path.suffix == archive.SUFFIX:
            digest: str | None = archive.digest(path)
        elif (path / shards.REST).is_file():
            digest = shards.check(path)
        elif path.is_dir() and not former.is_former(path):
            raise DamagedFileError(f"is damaged (it has no {shards.REST!r})")
        else:
            digest = entry["sha256"] and sha256(path)
            if path.is_dir():
                former.check(path, whole=digest is None)
        if entry["sha256"] not in (None, digest):
            raise DamagedFileError("is damaged (its checksum differs)")
        step = _header(path).get("step", entry["step"])
        if step != entry["step"] or _step_of(path) != entry["step"]:
            raise DamagedFileError(f"is the checkpoint of another step ({step})")

    def _check_links(self) -> None:
        """Refuse a folder that is somewhere else: files are read, written and deleted in it."""
        if not files.inside(self.folder, self.run):
            raise ValueError(
                f"{str(self.folder)!r} is a link out of the run's folder, which is not followed; "
                f"move the checkpoints into the run, or link the whole run"
            )


def _read_index(path: Path) -> dict[str, Any]:
    """The index as it was written; anything else raises `DamagedFileError`."""
    content = archive.parsed(path.read_bytes())
    match content:
        case {"entries": list(entries), "best": best, **more} if set(more) <= {"check"}:
            plain = {"entries": entries, "best": best}
        case _:
            raise DamagedFileError("is damaged (it is not an index)")
    if "check" in content and content["check"] != _check_of(plain):
        raise DamagedFileError("is damaged (its checksum differs)")
    if len(entries) > MOST:
        raise DamagedFileError("is damaged (it names more checkpoints than a run keeps)")
    for entry in entries:
        match entry:
            case {"step": int(step), "file": str(file), "sha256": str() | None, "score": score} if (
                type(score) in (int, float, type(None)) and _step_of(Path(file)) == step
            ):
                pass
            case _:
                raise DamagedFileError("is damaged (an entry is not as saccade writes it)")
    if type(best) not in (int, type(None)):
        raise DamagedFileError("is damaged (its best step is not a step)")
    return plain


def _check_of(index: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(index, sort_keys=True).encode()).hexdigest()


def _step_of(path: Path) -> int | None:
    match = NAME.fullmatch(path.name)
    return int(match[1]) if match else None


def _header(path: Path) -> dict[str, Any]:
    """What a checkpoint says about itself; nothing where it is damaged or of an earlier format."""
    file = path / shards.REST if path.is_dir() else path
    if file.suffix != archive.SUFFIX:
        return {}
    try:
        return archive.about(file)
    except BROKEN:
        return {}


def _reason(error: Exception) -> str:
    return f"cannot be read ({error.strerror})" if isinstance(error, OSError) else str(error)


def _all_files(path: Path) -> Iterator[Path]:
    return iter([path] if not path.is_dir() else path.rglob("*"))


def sha256(path: Path) -> str:
    """The checksum of a file, or of all files of a folder in the order of their names."""
    digest = hashlib.sha256()
    for file in sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]:
        with open(file, "rb") as stream:
            while chunk := stream.read(1 << 20):
                digest.update(chunk)
    return digest.hexdigest()

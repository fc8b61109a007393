"""The picture files of a data folder, and a check that names do not lead out of it.

A folder may come from a stranger. So entries that are no ordinary files are left out and reported
(reading a FIFO would wait without end), and every picture must lie inside the folder, also one that
an annotation, a csv file or a link names.
"""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from saccade.data import picture


class Contents(NamedTuple):
    """Entries below a folder that have a picture's name, as sorted paths relative to the folder."""

    names: list[str]
    others: list[str]
    """Entries that are no files (FIFOs, devices, sockets), and folders without permission."""


def contents(
    folder: str | Path,
    endings: Sequence[str] = picture.ENDINGS,
    *,
    deep: bool = True,
    links: bool = False,
) -> Contents:
    """The pictures below a folder.

    Args:
        folder: where to look; one that does not exist holds nothing
        endings: file name endings of pictures
        deep: look into folders inside it too
        links: also into those that are links, except where one leads back to where it lies
    """
    names: list[str] = []
    others: list[str] = []
    waiting = [""] if os.path.isdir(folder) else []
    while waiting:
        inner = waiting.pop()
        try:
            entries = list(os.scandir(os.path.join(folder, inner)))
        except PermissionError:
            others.append(inner)
            continue
        for entry in entries:
            name = os.path.join(inner, entry.name)
            if entry.is_dir():
                if deep and (not entry.is_symlink() or (links and not _circular(entry.path))):
                    waiting.append(name)
            elif picture.is_one(entry.name, endings):
                # A dangling link is listed; reading it reports the fault.
                is_file = entry.is_file() or not os.path.exists(entry.path)
                (names if is_file else others).append(name)
    return Contents(sorted(names), sorted(others))


def _circular(path: str) -> bool:
    """Whether a link leads back to a folder that it lies in."""
    here, there = os.path.realpath(os.path.dirname(path)), os.path.realpath(path)
    return os.path.commonpath([here, there]) == there


def text(path: Path) -> str:
    """The content of a text file; a file that is not UTF-8 is refused."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{str(path)!r} is no UTF-8 text ({error.reason} at byte {error.start}); save it as "
            "UTF-8"
        ) from error


class Inside:
    """Whether files lie inside a folder, with links resolved; quick for very many files."""

    def __init__(self, root: str | Path):
        self.root = os.path.realpath(root)
        self._folders: dict[str, bool] = {}

    def __call__(self, path: str | Path) -> bool:
        if os.path.islink(path):
            path = os.path.realpath(path)
        folder = os.path.dirname(path)
        if folder not in self._folders:
            real = os.path.realpath(folder)
            self._folders[folder] = os.path.commonpath([self.root, real]) == self.root
        return self._folders[folder]

    def check(self, names: Iterable[str | Path], where: str) -> None:
        """Refuse file names relative to the folder if one of them leads out of it."""
        for name in names:
            if not self(os.path.join(self.root, name)):
                raise self.refuse(str(name), where)

    def refuse(self, name: str, where: str) -> ValueError:
        """The error about a file that is not inside."""
        return ValueError(
            f"{where}: {name!r} lies outside of the data folder {self.root!r}, so it "
            "is not read; put it into the folder, or give the folder that holds both"
        )

"""What lies in a data folder: its picture files, and names that would lead out of it.

A folder may come from a stranger. So what is no ordinary file (a FIFO would be waited for without
end) is left out and reported, and a picture must lie inside the folder, whoever names it: an
annotation, a csv file, or a link.
"""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from saccade.data import picture


class Contents(NamedTuple):
    """Entries below a folder that have a picture's name, as paths from the folder on, sorted."""

    names: list[str]
    others: list[str]
    """Those that are no files (FIFOs, devices, sockets), and folders that may not be read."""


def contents(
    folder: str | Path,
    endings: Sequence[str] = picture.ENDINGS,
    *,
    deep: bool = True,
    links: bool = False,
) -> Contents:
    """The pictures below a folder.

    Args:
        folder: where to look; one that is not there holds nothing
        endings: of the names that count
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
                # A link to nothing counts: it is reported when it is read.
                is_file = entry.is_file() or not os.path.exists(entry.path)
                (names if is_file else others).append(name)
    return Contents(sorted(names), sorted(others))


def _circular(path: str) -> bool:
    """Whether a link leads back to a folder that it lies in."""
    here, there = os.path.realpath(os.path.dirname(path)), os.path.realpath(path)
    return os.path.commonpath([here, there]) == there


def text(path: Path) -> str:
    """What a text file says; one that is no UTF-8 is refused by name."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{str(path)!r} is no UTF-8 text ({error.reason} at byte {error.start}); save it as "
            "UTF-8"
        ) from error


class Inside:
    """Whether files lie inside a folder, links followed; asked of very many files."""

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
        """Refuse names of files, taken from the folder on, if one of them leads out of it."""
        for name in names:
            if not self(os.path.join(self.root, name)):
                raise self.refuse(str(name), where)

    def refuse(self, name: str, where: str) -> ValueError:
        """The error about a file that is not inside."""
        return ValueError(
            f"{where}: {name!r} lies outside of the data folder {self.root!r}, so it "
            "is not read; put it into the folder, or give the folder that holds both"
        )

"""Which picture files the words on a command line mean, and names for what is written of them."""

import glob
import logging
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from saccade.data import folder
from saccade.data.findings import no_files

STDIN = "-"  # the word for a list of files on stdin


def paths_of(words: Iterable[str], command: str, out: Path | None = None) -> list[Path]:
    """The picture files that all words on the command line mean; `-` is a list on stdin."""
    paths: list[Path] = []
    for word in words:
        paths += listed_on_stdin(command) if word == STDIN else pictures(word, command, out)
    return paths


def listed_on_stdin(command: str) -> list[Path]:
    """The files named on stdin, a line each or separated by null bytes."""
    text = sys.stdin.read()
    names = text.split("\0") if "\0" in text else text.splitlines()
    paths = [Path(name) for name in names if name.strip()]
    if not paths:
        raise FileNotFoundError(f"{command}: stdin names no picture; try 'find . | saccade ... -'")
    return paths


def free(stem: str, in_use: set[str]) -> str:
    """A name that no picture of this call has yet, for what is written of it."""
    name, n = stem, 1
    while name in in_use:
        n += 1
        name = f"{stem}-{n}"
    in_use.add(name)
    return name


def pictures(word: str, command: str, out: Path | None = None) -> list[Path]:
    """The picture files that a word on the command line means, frame 9 before frame 10.

    Pictures in the folder `out`, if that lies inside, are left out: they are earlier results.
    """
    path = Path(word)
    if path.is_dir():
        results = out.resolve() if out is not None else None
        inside = results is not None and path.resolve() in results.parents
        names, others = folder.contents(path)
        for sentence in no_files(others):
            logging.getLogger("saccade").warning("%s: %s: %s", command, word, sentence)
        files = sorted(
            (
                p
                for p in (path / name for name in names)
                if not (inside and results in p.resolve().parents)
            ),
            key=_in_order,
        )
        if not files:
            raise FileNotFoundError(f"{command}: no picture in the folder {word!r}")
        return files
    if path.is_file() or not glob.has_magic(word):
        return [path]
    files = sorted((Path(p) for p in glob.glob(word, recursive=True)), key=_in_order)
    if not files:
        raise FileNotFoundError(f"{command}: nothing matches {word!r}")
    return files


def _in_order(path: Path) -> list[tuple[str, int]]:
    """Numbers by their value: words and numbers of the path, in turn."""
    return [(word, int(number or 0)) for word, number in re.findall(r"(\D*)(\d*)", str(path))]

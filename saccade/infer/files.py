"""Which picture files the words on a command line mean, and names for what is written of them."""

import glob
import re
from pathlib import Path

from saccade.data.picture import is_one


def free(stem: str, taken: set[str]) -> str:
    """A name that no picture of this call has yet, for what is written of it."""
    name, n = stem, 1
    while name in taken:
        n += 1
        name = f"{stem}-{n}"
    taken.add(name)
    return name


def pictures(word: str, command: str, out: Path | None = None) -> list[Path]:
    """The picture files that a word on the command line means, frame 9 before frame 10.

    Pictures in the folder `out`, if that lies inside, are left out: they are earlier results.
    """
    path = Path(word)
    if path.is_dir():
        results = out.resolve() if out is not None else None
        inside = results is not None and path.resolve() in results.parents
        files = sorted(
            (
                p
                for p in path.rglob("*")
                if is_one(p.name) and not (inside and results in p.resolve().parents)
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
    """A key that sorts numbers inside a path by their value."""
    return [(word, int(number or 0)) for word, number in re.findall(r"(\D*)(\d*)", str(path))]

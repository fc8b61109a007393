"""Pictures of a folder as they arrive: those that are there, then each new one.

A file counts once its size has stayed the same from one look to the next: a camera or a copy may
still be writing it.
"""

import time
from collections.abc import Iterator
from pathlib import Path

from saccade.data import folder

EVERY = 0.5  # seconds between two looks


def arrivals(
    place: str, out: Path, most: int | None = None, every: float = EVERY
) -> Iterator[list[Path]]:
    """New pictures at each look that finds any, in order of their names.

    Args:
        place: the folder
        out: where results are written; pictures inside are left out
        most: end after so many pictures
        every: seconds between two looks
    """
    if not Path(place).is_dir():
        raise FileNotFoundError(f"--watch: {place!r} is no folder; give one folder to look into")
    sizes: dict[Path, int] = {}
    used_paths: set[Path] = set()
    results = out.resolve()
    while most is None or len(used_paths) < most:
        whole = []
        for path in (Path(place) / name for name in folder.contents(place).names):
            if path in used_paths or results in path.resolve().parents:
                continue
            size = _size(path)
            if size and sizes.get(path) == size:
                whole.append(path)
            sizes[path] = size
        if whole:
            whole = whole[: None if most is None else most - len(used_paths)]
            used_paths.update(whole)
            yield whole
        else:
            time.sleep(every)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0

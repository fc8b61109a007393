"""A file in another place without further room: a hard link where the disk can."""

import os
import shutil
from pathlib import Path

from saccade import files


def link(source: Path, target: Path) -> None:
    """A hard link to the same file; a copy if the disk has no hard links."""
    real = source.resolve()
    if target.exists():  # writing into an existing link would change the picture behind it
        raise FileExistsError(f"convert: {str(target)!r} is there already; give another folder")
    with files.writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(real, target)
        except OSError:
            shutil.copyfile(real, target)

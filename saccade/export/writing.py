"""Write exported files whole, without the exporters' messages, and remember which were written."""

import hashlib
import logging
import os
import re
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from saccade import files

WRITTEN: set[str] = set()  # checksums of the torch programs that this process wrote


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def needed(module: str) -> Any:
    """A package of the export extra, imported only here."""
    try:
        return import_module(module)
    except ImportError as error:
        raise ImportError(
            f"export: needs {module.partition('.')[0]}; pip install 'saccade[export]'"
        ) from error


@contextmanager
def partial(path: str | Path) -> Generator[Path]:
    """A temporary file beside `path`, which is renamed to it on success and else deleted.

    An older file of that name stays whole until then. The ending stays, because torch checks it.
    """
    part = Path(path).with_name(f"part-{os.getpid()}-{Path(path).name}")
    try:
        with files.writing(part.with_name(re.sub(r"^(part-\d+-)+", "", Path(path).name))):
            yield part
            part.replace(path)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def quiet() -> Generator[None]:
    """Without the messages and warnings of the exporters."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)

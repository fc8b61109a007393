"""What a trial may end with: a right result, or one sentence. Anything else is a finding."""

import contextlib
import io
import re
import traceback
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import saccade
from saccade.cli import REFUSED, main
from saccade.cli.command import UsageError

HOME = str(Path(saccade.__file__).parent)
# Words of python and of libraries, which help nobody who typed a command.
RAW = re.compile(
    r"\[Errno|codec can't|invalid literal|could not convert string|object has no attribute|"
    r"not subscriptable|unhashable|unexpected keyword|Expecting value|Traceback|"
    r"list index out of range|not supported between|cannot unpack|too many values|"
    r"object is not (iterable|callable)|unsupported operand|integer string conversion|"
    r"maximum recursion"
)
QUOTED = re.compile(r"\(.*\)|'[^']*'|\"[^\"]*\"")  # a cause in brackets may be in other words


class Finding(Exception):  # noqa: N818 (what a campaign looks for)
    """Something that should not have happened."""


@dataclass(frozen=True)
class Outcome:
    """How a trial ended without a finding."""

    refused: bool
    what: str = ""
    """The sentence, or what the right result was."""
    events: int = 1
    """Kills, killed ranks or inputs: what the table counts beside trials."""


def flaw(error: BaseException) -> str | None:
    """Why the text of an error is no sentence for a person; None if it is one."""
    text = str(error)
    module = type(error).__module__
    if module != "builtins" and not module.startswith(("saccade", "tests", "tools")):
        return f"an error of {module}"
    if isinstance(error, UnicodeError):
        return "an error of a codec"
    if not _by_saccade(error):
        return "raised outside of saccade"
    return flaw_of_text(text)


def flaw_of_text(text: str) -> str | None:
    """The same of a text alone."""
    if "\n" in text.strip():
        return "more than one line"
    if len(text.split()) < 3:
        return "less than a sentence"
    raw = RAW.search(QUOTED.sub("", text))
    return f"words of python ({raw[0]!r})" if raw else None


def _by_saccade(error: BaseException) -> bool:
    """Whether a line of saccade raised it, and not one of a library."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and frames[-1].filename.startswith(HOME)


def attempted(act: Callable[[], Any]) -> tuple[Any, str | None]:
    """What an act gives, or None and the sentence that refuses it; else raises `Finding`."""
    try:
        return act(), None
    except (*REFUSED, UsageError) as error:
        why = flaw(error)
        if why is not None:
            lines = "".join(traceback.format_exception(error))
            raise Finding(f"{why}: {type(error).__name__}: {error}\n{lines}") from error
        return None, str(error)


@contextlib.contextmanager
def _captured() -> Generator[io.StringIO]:
    """What is printed, of both streams."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        yield text


def command(words: list[str]) -> tuple[int, str]:
    """A command's exit code and what it said; raises `Finding` where that is no sentence."""
    with _captured() as text:
        try:
            main(words)
            code: Any = 0
        except SystemExit as ended:
            code = ended.code
    message = text.getvalue()
    check_end(words, code, message)
    return code, message


def check_end(words: list[str], code: Any, message: str) -> None:
    """Raise `Finding` unless a command ended well, or with one sentence and 1 or 2."""
    if "Traceback (most recent call last)" in message:
        raise Finding(f"{words}: a traceback\n{message}")
    if code == 0:
        return
    if code not in (1, 2):
        raise Finding(f"{words}: exit code {code}\n{message}")
    last = message.rpartition("saccade: ")[2]
    if "saccade: " not in message:
        raise Finding(f"{words}: exit code {code} without a sentence\n{message}")
    why = flaw_of_text(" ".join(last.split()))
    if why is not None:
        raise Finding(f"{words}: {why}\n{message}")

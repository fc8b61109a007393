"""The command line: words to functions.

    saccade train quick --epochs 3   ->   saccade.cli.learn.train("quick", epochs=3)

A command is a function whose signature says what may be typed (`command.py`); `commands.py` lists
them. Only the function that is asked for is imported, and it imports torch itself where it needs
it, so that help, lists and completion answer at once.

Results go to stdout, everything else to stderr. Exit codes: 0; 1 for a request that cannot be met,
with one sentence that says why; 2 for words that are not understood; 130 after Ctrl-C.
"""

import os
import sys

from saccade.cli.command import UsageError, parse
from saccade.cli.commands import COMMANDS
from saccade.files import in_a_sentence

__all__ = ["COMMANDS", "main"]

REFUSED = (ValueError, OSError, RuntimeError, ImportError, FloatingPointError)


def main(arguments: list[str] | None = None) -> None:
    """Run one command, as typed; ends by SystemExit where something is wrong."""
    try:
        run(sys.argv[1:] if arguments is None else list(arguments))
        sys.stdout.flush()
    except UsageError as error:
        _refuse(str(error), 2)
    except BrokenPipeError:  # `saccade list | head -1`: the reader has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except REFUSED as error:
        _refuse(str(in_a_sentence(error) if isinstance(error, OSError) else error), 1)
    except MemoryError:
        _refuse("this takes more memory than there is; take smaller images or batches", 1)
    except KeyboardInterrupt:
        sys.exit(130)


def run(words: list[str]) -> None:
    """Find the command that the first word names, and call its function with the others."""
    from saccade.cli import pages

    words = _import(words)
    name, *rest = words or ["help"]
    if name in ("-h", "--help"):
        name = "help"
    if name in ("-V", "--version"):
        from saccade.version import __version__

        print(f"saccade {__version__}")
        return
    if name == "--complete":
        from saccade.cli.complete import candidates

        print("\n".join(candidates(rest)))
        return
    command = COMMANDS[pages.find(name)]
    if "-h" in rest or "--help" in rest:
        print(pages.page(name))
        return
    command.function(**parse(name, command.function, rest))


def _import(words: list[str]) -> list[str]:
    """Import the modules that `--import` names, wherever it stands; the other words."""
    rest, names = [], []
    each = iter(words)
    for word in each:
        if word == "--":
            rest += [word, *each]
        elif word == "--import":
            names.append(next(each, ""))
        elif word.startswith("--import="):
            names.append(word.partition("=")[2])
        else:
            rest.append(word)
    if names:
        from saccade import outside

        for name in names:
            if not name or name.startswith("-"):
                raise UsageError("--import: which module? such as --import my_layer")
            outside.load(name)
    return rest


def _refuse(sentence: str, code: int) -> None:
    from rich.text import Text

    from saccade.cli.console import note

    note(Text.assemble(("saccade: ", "red"), sentence))
    sys.exit(code)

"""The command line.

Each command is a function; jsonargparse makes its arguments from the signature. Errors that a
person can mend end in one sentence.
"""

import inspect
import itertools
import json
import sys
from typing import Any

from jsonargparse import auto_cli
from rich.text import Text

from saccade.cli import convert, detect, learn, look, measure, see, segment, serve, ship
from saccade.cli.console import console
from saccade.spelling import nearest

COMMANDS: dict[str, Any] = {
    "list": look.list_models, "show": look.show, "paper": look.paper, "view": see.view,
    "bench": measure.bench, "tour": look.tour, "recipes": learn.recipes, "train": learn.train,
    "resume": learn.resume, "eval": learn.evaluate, "predict": learn.predict,
    "detect": detect.detect, "segment": segment.segment, "report": learn.report,
    "convert": convert.convert, "export": ship.export, "serve": serve.serve,
}  # fmt: skip

# Commands whose plain words after the name are one list (or one pattern).
LISTS = {
    "bench": "[{}]", "predict": "[{}]", "detect": "[{}]", "segment": "[{}]", "report": "[{}]",
    "list": "--pattern={}",
    "recipes": "--name={}",
}  # fmt: skip
MENDABLE = (
    ValueError, FileNotFoundError, FileExistsError, RuntimeError, ImportError, FloatingPointError,
    OSError,
)  # fmt: skip


def main(arguments: list[str] | None = None) -> None:
    try:
        words = plain(sys.argv[1:] if arguments is None else arguments)
        auto_cli(COMMANDS, args=words, as_positional=True, prog="saccade")
    except MENDABLE as error:
        console.print("[red]saccade:[/]", Text(str(error)), highlight=False, soft_wrap=True)
        sys.exit(2)


def plain(arguments: list[str]) -> list[str]:
    """Plain words where jsonargparse wants syntax.

    `bench a b`, `train quick --set a=1 b=2`, `eval RUN --json`, `serve a b`, `serve --model a b`.
    """
    if not arguments:
        return []
    command, *rest = arguments
    if command not in COMMANDS and not command.startswith("-"):
        raise ValueError(f"no command {command!r}; did you mean {nearest(command, COMMANDS)!r}?")
    switches = {f"--{name}" for name in _switches(command)}
    if command in LISTS:
        names, others = _parted(rest, switches)
        if names or (command == "bench" and not {"-h", "--help"} & set(rest)):
            rest = [LISTS[command].format(_listed(names, command)), *others]
    if command == "serve":
        rest = _gathered(rest, "--model")
    settings = [word for word in rest if word.startswith("--set=") and word[6:7] != "["]
    for word in settings:  # --set=a=1 for --set a=1
        rest[rest.index(word) : rest.index(word) + 1] = ["--set", word.removeprefix("--set=")]
    while "--set" in rest:
        at = rest.index("--set")
        words = list(itertools.takewhile(lambda word: not word.startswith("--"), rest[at + 1 :]))
        rest[at : at + 1 + len(words)] = ["--set=" + json.dumps(words)]
    if command == "view" and "--at" in rest:  # --at 20 100 for --at 20,100
        at = rest.index("--at")
        if all(word.isdecimal() for word in rest[at + 1 : at + 3]) and len(rest) > at + 2:
            rest[at + 1 : at + 3] = [",".join(rest[at + 1 : at + 3])]
    for at, word in enumerate(rest):
        if word in switches and rest[at + 1 : at + 2] not in (["true"], ["false"]):
            rest[at] = f"{word}=true"
    return [command, *rest]


def _parted(words: list[str], switches: set[str]) -> tuple[list[str], list[str]]:
    """Plain words, wherever they stand, and options with their values."""
    names, options, before = [], [], ""
    for word in words:
        option = word.startswith("-") and not word.lstrip("-")[:1].isdigit()
        bare = before.startswith("-") and "=" not in before and before not in ("-h", "--help")
        value = word in ("true", "false") if before in switches else bare
        (options if option or value else names).append(word)
        before = word if option else ""
    return names, options


def _gathered(words: list[str], option: str) -> list[str]:
    """Plain words, and those after an option that may come more than once, as its one list."""
    bare = [word.removeprefix(f"{option}=") for word in words if word != option]
    names, others = _parted(bare, set())
    if not names:
        if option in words:
            raise ValueError(f"{option} wants a name after it; give one, or leave {option} away")
        return others
    listed = names[0] if len(names) == 1 and names[0].startswith("[") else json.dumps(names)
    return [*others, f"{option}={listed}"]


def _switches(command: str) -> list[str]:
    """A command's options that are either given or not."""
    if command not in COMMANDS:  # an option of saccade itself
        return []
    signature = inspect.signature(COMMANDS[command])
    return [name for name, option in signature.parameters.items() if option.annotation is bool]


def _listed(names: list[str], command: str) -> str:
    return (
        names[0] if command in ("list", "recipes") else ",".join(json.dumps(name) for name in names)
    )

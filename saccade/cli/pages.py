"""Help pages: what a person types, and what comes of it."""

import shutil
import textwrap
from typing import Annotated, Any

from saccade.cli.command import Option, UsageError, Value, options_of, read_help
from saccade.cli.commands import COMMANDS, TOPICS
from saccade.spelling import nearest
from saccade.version import __version__


def help_page(command: Annotated[str, Value("COMMAND", "commands")] = "") -> None:
    """Show all commands, or one command's help page.

    Examples:
        saccade help
        saccade help train

    Args:
        command: a command; all of them if left out
    """
    print(page(command) if command else overview())


def find(name: str) -> str:
    """The command's name; an unknown one is refused with the nearest."""
    if name not in COMMANDS:
        close = nearest(name, COMMANDS)
        raise UsageError(f"no command {name!r}; did you mean '{close}'? ('saccade' lists all)")
    return name


def overview() -> str:
    """All commands by topic, each with an example."""
    lines = [f"saccade {__version__}: attention in a vision backbone at the price of a convolution"]
    for topic, commands in TOPICS.items():
        lines += ["", topic]
        for name, command in commands.items():
            lines.append(f"  {name:<11}{command.about:<37}saccade {command.example}")
    lines += [
        "",
        "saccade COMMAND --help says more; saccade --version",
        "--import my_module makes known what your module registers (docs/own-layer.md)",
    ]
    return "\n".join(lines)


def page(name: str) -> str:
    """One command: how it is typed, what it does, examples, and every option."""
    command = COMMANDS[find(name)]
    text, options = read_help(command.function), options_of(command.function)
    plain = [option for option in options if option.plain]
    with_dashes = [option for option in options if not option.plain]
    typed = [option.typed for option in plain] + ["[options]"] * bool(with_dashes)
    parts = [" ".join(["saccade", name, *typed]), _filled(text.about)]
    examples = text.examples or (f"saccade {command.example}",)
    parts.append("\n".join(["examples", *(f"  {line}" for line in examples)]))
    width = max((len(option.typed) for option in with_dashes), default=0)
    width = min(max(width, *(len(option.value.word) for option in plain), 10), 24) + 2
    if plain:
        parts.append("\n".join(_row(o.value.word, o.about, width) for o in plain))
    if with_dashes:
        parts.append(
            "\n".join(["options", *(_row(o.typed, _about(o), width) for o in with_dashes)])
        )
    return "\n\n".join(parts)


def _about(option: Option) -> str:
    """With the value that it has if nothing is typed, where that tells something."""
    default: Any = option.default
    if option.switch or option.many or default in (None, ""):
        return option.about
    return f"{option.about} (default {default})"


def _columns() -> int:
    return min(max(shutil.get_terminal_size().columns, 60), 100)


def _filled(text: str) -> str:
    """Paragraphs as wide as the terminal."""
    parts = text.split("\n\n")
    return "\n\n".join(textwrap.fill(" ".join(part.split()), _columns()) for part in parts)


def _row(typed: str, about: str, width: int) -> str:
    """A name, and at its right what it is for; beneath it where the name is too long."""
    indent = " " * (width + 2)
    body = textwrap.wrap(
        about, _columns(), initial_indent=indent, subsequent_indent=indent,
        break_long_words=False, break_on_hyphens=False,
    ) or [indent]  # fmt: skip
    if len(typed) < width:
        return "\n".join([f"  {typed:<{width}}{body[0].strip()}", *body[1:]]).rstrip()
    return "\n".join([f"  {typed}", *body]).rstrip()

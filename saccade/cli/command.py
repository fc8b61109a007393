"""Read a command line by the signature and the docstring of the command's function.

    def train(recipe: Recipe, *, data: Data | None = None, log: bool = False) -> None

Parameters before the star are plain words (`saccade train quick`), those after it are options. A
bool is a flag, a list takes several words, a Literal is one of its values, and `Value` says what a
value is called on help pages and how a shell completes it.
"""

import argparse
import inspect
import re
import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from saccade.spelling import nearest


class UsageError(Exception):
    """Words that the command line does not understand: exit code 2."""


@dataclass(frozen=True)
class Value:
    """What a value is called on help pages, and how a shell completes it."""

    word: str
    completes: str = ""
    """models, recipes, settings, commands, shells or files; nothing if empty."""
    bare: str | None = None
    """What the option means when it is typed without a value; None: it needs one."""


ModelName = Annotated[str, Value("MODEL", "models")]
"""A run's folder, a saved file, or a name."""
Folder = Annotated[str, Value("FOLDER", "files")]
File = Annotated[Path, Value("FILE", "files")]
Pictures = Annotated[list[str], Value("PICTURES", "files")]
Device = Annotated[str, Value("cpu|cuda")]
Side = Annotated[int, Value("PIXELS")]
Count = Annotated[int, Value("N")]


@dataclass(frozen=True)
class Option:
    """One parameter of a command."""

    name: str
    type: type
    value: Value
    about: str
    plain: bool
    """Typed without a name, by its place."""
    many: bool
    required: bool
    default: Any
    choices: tuple[str, ...]

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def switch(self) -> bool:
        return self.type is bool

    @property
    def typed(self) -> str:
        """As one types it: `RECIPE`, `--data FOLDER`, `--log`."""
        word = self.value.word + (" ..." if self.many else "")
        if self.plain:
            return word if self.required else f"[{word}]"
        if self.switch:
            return self.flag
        return f"{self.flag} {word}" if self.value.bare is None else f"{self.flag} [{word}]"


@dataclass(frozen=True)
class Help:
    """What a command's docstring says."""

    about: str
    examples: tuple[str, ...]
    options: dict[str, str]


def read_help(function: Callable[..., Any]) -> Help:
    """The docstring's text, its Examples and its Args."""
    text, _, tail = inspect.cleandoc(function.__doc__ or "").partition("\nArgs:\n")
    about, _, examples = text.partition("\nExamples:\n")
    options: dict[str, str] = {}
    for line in tail.splitlines():
        entry = re.match(r" {4}(\w+): (.*)", line)
        if entry:
            options[entry[1]] = entry[2]
        elif line.strip():
            last = next(reversed(options))
            options[last] += " " + line.strip()
    lines = tuple(line.strip() for line in examples.splitlines() if line.strip())
    return Help(about.strip(), lines, options)


def options_of(function: Callable[..., Any]) -> list[Option]:
    """The command's parameters in the order of its signature."""
    about = read_help(function).options
    hints = typing.get_type_hints(function, include_extras=True)
    return [
        _option(parameter, hints[name], about.get(name, ""))
        for name, parameter in inspect.signature(function).parameters.items()
    ]


def _option(parameter: inspect.Parameter, hint: Any, about: str) -> Option:
    value: Value | None = None
    many = False
    while get_origin(hint) in (Annotated, list, Union, types.UnionType):
        inner, *others = get_args(hint)
        if get_origin(hint) is Annotated:
            value = value or others[0]
        many = many or get_origin(hint) is list
        hint = inner
    choices = get_args(hint) if get_origin(hint) is Literal else ()
    plain = parameter.kind is not inspect.Parameter.KEYWORD_ONLY
    usual = "|".join(choices) or {int: "N", float: "NUMBER"}.get(hint, parameter.name.upper())
    return Option(
        name=parameter.name,
        type=str if choices else hint,
        value=value or Value(usual),
        about=about,
        plain=plain,
        many=many,
        required=parameter.default is inspect.Parameter.empty,
        default=[] if many else None if plain else parameter.default,
        choices=choices,
    )


# -- reading what was typed -----------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> typing.NoReturn:
        what, _, why = message.removeprefix("argument ").partition(": ")
        raise UsageError(f"{self.prog}: {what} {why}".rstrip())


def parse(name: str, function: Callable[..., Any], words: Sequence[str]) -> dict[str, Any]:
    """The function's arguments as typed; those left out are the function's own defaults."""
    options = options_of(function)
    parser = _parser(name, options)
    typed, unknown = parser.parse_known_intermixed_args(list(words))
    flags = [option.flag for option in options if not option.plain]
    for word in unknown:
        if word.startswith("-") and word != "-":
            flag = word.partition("=")[0]
            close = f"did you mean {nearest(flag, flags)}?" if flags else "it has no options"
            raise UsageError(f"{name}: no option {flag}; {close} ('saccade help {name}' lists all)")
    if unknown:
        raise UsageError(
            f"{name}: one word too many, {unknown[0]!r}; it is typed as '{_usage(name, options)}'"
        )
    arguments = {key: value for key, value in vars(typed).items() if value not in (None, [])}
    for option in options:
        if option.required and option.name not in arguments:
            raise UsageError(
                f"{name}: {option.value.word} is missing; it is typed as '{_usage(name, options)}'"
            )
    return arguments


def _usage(name: str, options: Sequence[Option]) -> str:
    return " ".join(["saccade", name, *(option.typed for option in options if option.plain)])


def _parser(name: str, options: Sequence[Option]) -> argparse.ArgumentParser:
    parser = _Parser(prog=name, add_help=False, allow_abbrev=False)
    for option in options:
        if option.switch:
            parser.add_argument(option.flag, dest=option.name, action="store_const", const=True)
            continue
        how: dict[str, Any] = {"type": _reader(option), "metavar": option.value.word}
        if option.plain:
            parser.add_argument(option.name, nargs="*" if option.many else "?", **how)
        elif option.many:
            parser.add_argument(option.flag, dest=option.name, nargs="+", action="extend", **how)
        elif option.value.bare is not None:
            how |= {"nargs": "?", "const": option.type(option.value.bare)}
            parser.add_argument(option.flag, dest=option.name, **how)
        else:
            parser.add_argument(option.flag, dest=option.name, **how)
    return parser


def _reader(option: Option) -> Callable[[str], Any]:
    """A function that turns a typed word into a value, or says which kind of value is wanted."""
    expectation = {int: "a whole number", float: "a number"}.get(option.type, option.value.word)

    def read(word: str) -> Any:
        if option.choices and word not in option.choices:
            close = nearest(word, option.choices)
            choices = ", ".join(option.choices)
            raise argparse.ArgumentTypeError(
                f"has no {word!r}; did you mean {close!r} ({choices})?"
            )
        try:
            return option.type(word)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"wants {expectation}, got {word!r}") from error

    return read

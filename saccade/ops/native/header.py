"""Read src/call.h, the one place that says what crosses the border between Python and C++.

Structures, limits and codes are written there for the compiler. This reader knows the small part of
C++ that the file is written in and refuses the rest: nothing is skipped that might matter.

    enum Name : int32_t { NAME = 0, ... };
    constexpr int NAME = 15;
    struct Name { int32_t a, b; int64_t c; const float *d, *e; void* f; OtherStruct g; };

Standard library only, and nothing of the package: the build reads it too (see build.py).
"""

import re
from pathlib import Path
from typing import NamedTuple, NoReturn

PATH = Path(__file__).parent / "src" / "call.h"
POINTER = "pointer"  # a field that holds an address, of whatever lies there
INTEGERS = ("int32_t", "int64_t")
POINTED = ("void", "float", "double")
DIRECTIVES = ("#pragma once", "#include <cstdint>")
TOKEN = re.compile(r"[A-Za-z_]\w*|\d+|\S")


class HeaderError(ValueError):
    """The header says something this reader does not understand; the message says in which line."""


class Header(NamedTuple):
    structures: dict[str, dict[str, str]]  # name: field: int32_t, int64_t, pointer or a structure
    limits: dict[str, int]
    enums: dict[str, dict[str, int]]


def read(text: str | None = None) -> Header:
    """What the header declares, in its order."""
    return _Reader(PATH.read_text() if text is None else text).header()


class _Reader:
    def __init__(self, text: str):
        self.tokens: list[tuple[str, int]] = []  # with the line of each
        for number, line in enumerate(text.splitlines(), 1):
            code = line.split("//")[0].strip()
            if code.startswith("#"):
                if code not in DIRECTIVES:
                    raise HeaderError(f"call.h, line {number}: {code!r} is not among {DIRECTIVES}")
                continue
            self.tokens += [(token, number) for token in TOKEN.findall(code)]
        self.place = 0
        self.structures: dict[str, dict[str, str]] = {}

    def header(self) -> Header:
        limits: dict[str, int] = {}
        enums: dict[str, dict[str, int]] = {}
        self.take("namespace", "saccade", "{")
        while not self.here("}"):
            if self.here("enum"):
                self.take("enum")
                name = self.new_name(enums)
                self.take(":", "int32_t", "{")
                enums[name] = self.numbers("}", {})
                self.take(";")
            elif self.here("constexpr"):
                self.take("constexpr", "int")
                self.numbers(";", limits)
            else:
                self.structure()
        self.take("}")
        if self.place < len(self.tokens):
            self.refuse("nothing after the namespace")
        return Header(self.structures, limits, enums)

    def structure(self) -> None:
        self.take("struct")
        name = self.new_name(self.structures)
        self.take("{")
        fields: dict[str, str] = {}
        while not self.here("}"):
            self.fields(fields)
        self.take("}", ";")
        if not fields:
            self.refuse(f"at least one field in {name}")
        self.structures[name] = fields

    def fields(self, known: dict[str, str]) -> None:
        """One line of them: a type, and names up to the semicolon."""
        constant = self.here("const")
        if constant:
            self.take("const")
        kind = self.name()
        while True:
            pointer = self.here("*")
            if pointer:
                self.take("*")
            if pointer and kind not in POINTED:
                self.refuse(f"a pointer to one of {POINTED}, not to {kind}")
            if not pointer and (constant or kind not in (*INTEGERS, *self.structures)):
                self.refuse(f"a pointer, one of {INTEGERS} or a structure, not {kind}")
            known[self.new_name(known)] = POINTER if pointer else kind
            if self.here(";"):
                return self.take(";")
            self.take(",")

    def numbers(self, end: str, known: dict[str, int]) -> dict[str, int]:
        """NAME = 1, NAME = 2, ... up to the end."""
        while True:
            name = self.new_name(known)
            self.take("=")
            token = self.next()
            if not token.isdecimal():
                self.refuse("a whole number", back=1)
            known[name] = int(token)
            if self.here(end):
                self.take(end)
                return known
            self.take(",")

    def here(self, token: str) -> bool:
        return self.place < len(self.tokens) and self.tokens[self.place][0] == token

    def next(self) -> str:
        if self.place == len(self.tokens):
            self.refuse("more")
        self.place += 1
        return self.tokens[self.place - 1][0]

    def take(self, *tokens: str) -> None:
        for token in tokens:
            if not self.here(token):
                self.refuse(repr(token))
            self.place += 1

    def name(self) -> str:
        token = self.next()
        if not token.isidentifier():
            self.refuse("a name", back=1)
        return token

    def new_name(self, known: dict) -> str:
        name = self.name()
        if name in known:
            self.refuse("a name of its own", back=1)
        return name

    def refuse(self, wanted: str, back: int = 0) -> NoReturn:
        at = self.place - back
        token, line = self.tokens[at] if at < len(self.tokens) else ("the end", "last")
        raise HeaderError(f"call.h, line {line}: expected {wanted}, got {token!r}")

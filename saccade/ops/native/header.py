"""Read src/call.h, the one file that declares the interface between Python and C++.

Structures, limits and codes are written there for the compiler. This reader knows the small part of
C++ that the file is written in, and refuses everything else, so that no declaration is overlooked.

    enum Name : int32_t { NAME = 0, ... };
    constexpr int NAME = 15, ...;
    struct Name { int32_t a, b; int64_t c; const float *d, *e; void* f; OtherStruct g; };

Standard library only, and nothing of the package: the build reads it too (see build.py).
"""

import re
from pathlib import Path
from typing import NamedTuple

PATH = Path(__file__).parent / "src" / "call.h"
POINTER = "pointer"  # a field that holds an address, of whatever lies there
NOT_CODE = re.compile(r"//.*|^#pragma once$|^#include <cstdint>$", re.M)
ENUM = re.compile(r"enum (\w+) : int32_t {([^{}]*)};\s*")
LIMITS = re.compile(r"constexpr int ()([^;{}]*);\s*")
STRUCT = re.compile(r"struct (\w+) {([^{}]*;)\s*};\s*")
NUMBER = re.compile(r"\s*([A-Za-z_]\w*) = (\d+)\s*")
FIELDS = re.compile(r"\s*(const )?(\w+)\b(.*)", re.S)
FIELD = re.compile(r"\s*(\*?) ?([A-Za-z_]\w*)\s*")


class HeaderError(ValueError):
    """The header says something this reader does not understand; the message says in which line."""


class Header(NamedTuple):
    structures: dict[str, dict[str, str]]  # name: field: int32_t, int64_t, pointer or a structure
    limits: dict[str, int]
    enums: dict[str, dict[str, int]]


def read(text: str | None = None) -> Header:
    """What the header declares, in its order."""
    code = NOT_CODE.sub("", PATH.read_text() if text is None else text)
    inside = re.fullmatch(r"\s*namespace saccade {\s*(.*)}\s*", code, re.S)
    place, end = (0, 1) if inside is None else inside.span(1)
    header = Header({}, {}, {})
    while place < end:
        kinds = (pattern.match(code, place, end) for pattern in (ENUM, LIMITS, STRUCT))
        declaration = next(filter(None, kinds), None)
        if declaration is None or not _add(header, *declaration.groups(), declaration.re):
            line, start = code.count("\n", 0, place) + 1, code[place:].strip().split("\n")[0]
            raise HeaderError(
                f"call.h, line {line}: only the C++ that header.py shows is read, got {start!r}"
            )
        place = declaration.end()
    return header


def _add(header: Header, name: str, content: str, kind: re.Pattern) -> bool:
    """Enter a declaration; False if any part of it is not understood."""
    if kind is STRUCT:
        return name not in header.structures and _add_structure(header.structures, name, content)
    known = header.enums.setdefault(name, {}) if kind is ENUM else header.limits
    numbers = [NUMBER.fullmatch(number) for number in content.split(",")]
    names = [number[1] for number in numbers if number]
    known.update((number[1], int(number[2])) for number in numbers if number)
    return all(numbers) and len({*names}) == len(names)


def _add_structure(structures: dict[str, dict[str, str]], name: str, content: str) -> bool:
    fields: dict[str, str] = {}
    for line in content.split(";")[:-1]:
        parts = FIELDS.fullmatch(line)
        for field in parts[3].split(",") if parts else [""]:
            match = FIELD.fullmatch(field)
            if parts is None or match is None or match[2] in fields:
                return False
            constant, kind, pointer = parts[1], parts[2], match[1]
            numbers = not constant and kind in ("int32_t", "int64_t", *structures)
            if not (kind in ("void", "float", "double") if pointer else numbers):
                return False
            fields[match[2]] = POINTER if pointer else kind
    structures[name] = fields
    return True

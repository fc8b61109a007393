"""Odd values and small changes: of JSON, of text and of bytes."""

import copy
import random
from typing import Any

ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 3, 0.5, -0.5, 1e-30, 1e30, 1e308, float("inf"), float("-inf"),
    float("nan"), 2**31, 2**63, -(2**63) - 1, 2**64, 10**30, 10**400, "", " ", "0", "-1", "1e999",
    "nan", "null", "true", "[]", "{}", "é", "\x00", "\udc80", "../x", "/etc/passwd", "a" * 5000,
    "\n", "%s%n", "{0}", "hf-hub:a/b", "http://127.0.0.1:9/x", [], {}, [[]], [None], [1, 2],
    [1] * 9,
    {"a": 1}, {"": None}, [{"id": 1}], [-1, -1, -1, -1], [0, 0, 1e9, 1e9], ["a", "b"], (1, 1),
)  # fmt: skip
TEXTS = (
    "", "0", "-1", "1", "2", "0.5", "1e-3", "1e400", "nan", ".nan", "inf", ".inf", "-.inf", "null",
    "~", "true", "false", "yes", "[]", "{}", "[1", "{a: 1}", "[1, 2]", "[0.5, 1]", "[1, 0.5]",
    "[nan, 1]", "&a [*a]", "&a {b: *a}", "!!python/object/apply:os.system [true]", "a: b: c",
    "'", '"', "é", "\x00", "\udc80", "..", "/", "=", "a=b", "--help", "@", "%", "#", "* *", "- -",
    "9" * 50, "9" * 5000, "[" * 500, "{a: " * 200, "0x10", "1_000", "2001-01-01", "1:30", "'1'",
    "resnet18", "qna_nano", "hf-hub:a/b", "adamw", "cosine", "poly", "bf16", "fp16", "avg", "none",
)  # fmt: skip
PIECES = ("\n", "\t", ",", ";", '"', "'", "<", ">", "&", "&lt;", "]]>", "\x00", "\ufeff", "é", "-",
          "e9", "nan", "inf", "1e999", "  ", "\r", "../", "{", "}", "[", "]", ":", "<!DOCTYPE x [",
          '<!ENTITY a "aaaa">', "&a;", "%", "#")  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to every value inside lists and dicts."""
    ways = [path]
    if isinstance(value, dict):
        for key in value:
            ways += places(value[key], (*path, key))
    elif isinstance(value, list):
        for i in range(len(value)):
            ways += places(value[i], (*path, i))
    return ways


def changed(value: Any, chance: random.Random) -> Any:
    """A copy of a tree with one value replaced, removed, doubled, moved or renamed."""
    value = copy.deepcopy(value)
    path = chance.choice(places(value))
    if not path:
        return copy.deepcopy(chance.choice(ODD)) if chance.random() < 0.2 else value
    owner = value
    for key in path[:-1]:
        owner = owner[key]
    act, key = chance.randrange(6), path[-1]
    if act == 0:
        del owner[key]
    elif act == 1 and isinstance(owner, list):
        owner.insert(key, copy.deepcopy(owner[key]))
    elif act == 1:
        owner[key + "x" if isinstance(key, str) else key] = owner.pop(key)
    elif act == 2 and isinstance(owner[key], int | float):
        owner[key] = owner[key] * chance.choice((-1, 0, 0.5, 1.5, 10, 1e6, 1e300))
    elif act == 3:
        other = value
        for step in chance.choice(places(value)):
            other = other[step]
        owner[key] = copy.deepcopy(other)
    else:
        owner[key] = copy.deepcopy(chance.choice(ODD))
    return value


def changed_bytes(content: bytes, chance: random.Random) -> bytes:
    """Bytes with a few small damages, or a few words that do not belong there."""
    data = bytearray(content)
    for _ in range(chance.choice((1, 1, 1, 2, 4, 16))):
        at = chance.randrange(len(data) + 1)
        act = chance.randrange(8)
        if act == 0 and data:
            data[min(at, len(data) - 1)] ^= 1 << chance.randrange(8)
        elif act == 1:
            del data[at:]
        elif act == 2:
            del data[at : at + chance.randrange(1, 40)]
        elif act == 3:
            data[at:at] = chance.choice(PIECES).encode()
        elif act == 4:
            data[at : at + 1] = chance.randbytes(1)
        elif act == 5:
            length = chance.randrange(1, 60)
            begin = chance.randrange(len(data) + 1)
            data[at:at] = data[begin : begin + length]
        elif act == 6:
            data[at : at + 4] = chance.choice(
                (b"\xff" * 4, b"\0" * 4, b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\0\0\xff\xff")
            )
        else:
            data[at : at + chance.randrange(1, 8)] = str(chance.choice(TEXTS[:14])).encode()
    return bytes(data)

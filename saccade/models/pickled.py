"""Read files of torch.save as data: nothing that a pickle names is imported or called.

A pickle is a program that may call anything. Here its few harmless instructions are read one by
one; a name is only a `Name`, a call only a `Call` that holds its arguments, and every other
instruction, name or shape is refused. What calls mean is decided by `tensors_of`: text, numbers,
lists, tuples, dicts, and tensors of the bytes beside the pickle, each checked against their number.
"""

import io
import math
import pickletools
import zipfile
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

STORAGES = {
    "torch DoubleStorage": torch.float64, "torch FloatStorage": torch.float32,
    "torch HalfStorage": torch.float16, "torch BFloat16Storage": torch.bfloat16,
    "torch LongStorage": torch.int64, "torch IntStorage": torch.int32,
    "torch ShortStorage": torch.int16, "torch CharStorage": torch.int8,
    "torch ByteStorage": torch.uint8, "torch BoolStorage": torch.bool,
}  # fmt: skip
REBUILD, ORDERED = "torch._utils _rebuild_tensor_v2", "collections OrderedDict"
TORCH_NAMES = frozenset({*STORAGES, REBUILD, ORDERED})
DEEPEST = 100  # containers inside each other
LONGEST = 1 << 63  # whole numbers
SHARED = 4  # how often all bytes of a file may be read, for tensors that share them


class RefusedPickleError(ValueError):
    """A pickle asks for more than plain values and tensors."""


@dataclass(eq=False)
class Name:
    """A function or class that a pickle names: `module name`."""

    path: str


@dataclass(eq=False)
class Call:
    """A call that a pickle asks for; it is recorded, never made."""

    function: str
    arguments: tuple[Any, ...]
    state: Any = None
    """The state that the pickle would set on the result."""
    items: Any = None
    """Key and value pairs that the pickle would put into the result."""


@dataclass(eq=False)
class Pairs:
    """A dict, with keys of any kind."""

    pairs: list[tuple[Any, Any]]


@dataclass(eq=False)
class Outside:
    """A reference to something beside the pickle, such as the bytes of a tensor."""

    key: Any


# -- the instructions -----------------------------------------------------------------------

ATOMS = {
    "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE",
}  # fmt: skip
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}


def instructions(data: bytes, names: Set[str]) -> Any:
    """What a pickle would make, with names and calls left as they are.

    Args:
        data: the pickle
        names: `module name` of all that it may name
    """
    machine = _Machine(names)
    try:
        for opcode, argument, _ in pickletools.genops(io.BytesIO(data)):
            if opcode.name == "STOP":
                (value,) = machine.stack
                return value
            machine.step(opcode.name, argument)
    except RefusedPickleError:
        raise
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, EOFError) as error:
        raise RefusedPickleError(f"is no pickle that torch wrote ({_short(error)})") from error
    raise RefusedPickleError("is no pickle that torch wrote (it has no end)")


class _Machine:
    """A stack and a memo, as pickle has them, that hold data only."""

    def __init__(self, names: Set[str]):
        self.names = names
        self.stack: list[Any] = []
        self.marks: list[int] = []  # where groups of values begin on the stack
        self.memo: dict[int, Any] = {}

    def step(self, name: str, argument: Any) -> None:
        stack = self.stack
        if name in ATOMS:
            if type(argument) is int and abs(argument) >= LONGEST:
                raise RefusedPickleError("holds a number that is too large")
            stack.append(argument)
        elif name in CONSTANTS:
            stack.append(CONSTANTS[name])
        elif name in ("PROTO", "FRAME"):
            pass
        elif name == "MARK":
            self.marks.append(len(stack))
        elif name in ("BINPUT", "LONG_BINPUT"):
            self.memo[argument] = stack[-1]
        elif name == "MEMOIZE":
            self.memo[len(self.memo)] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(self.memo[argument])
        elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            count = int(name[-1])
            if len(stack) < count:
                raise IndexError("too few values")
            stack[-count:] = [tuple(stack[-count:])]
        elif name == "TUPLE":
            values = self._group()
            stack.append(tuple(values))
        elif name == "EMPTY_LIST":
            stack.append([])
        elif name == "EMPTY_DICT":
            stack.append(Pairs([]))
        elif name in ("APPEND", "APPENDS"):
            values = self._group() if name == "APPENDS" else [stack.pop()]
            self._top(list).extend(values)
        elif name in ("SETITEM", "SETITEMS"):
            self._set_items(name)
        else:
            self._name_or_call(name, argument)

    def _group(self) -> list[Any]:
        """The values above the last mark, which goes."""
        at = self.marks.pop()
        values = self.stack[at:]
        del self.stack[at:]
        return values

    def _top(self, *kinds: type) -> Any:
        if type(self.stack[-1]) not in kinds:
            raise TypeError(f"nothing can be put into a {type(self.stack[-1]).__name__}")
        return self.stack[-1]

    def _set_items(self, name: str) -> None:
        if name == "SETITEM":
            values = [*self.stack[-2:]]
            del self.stack[-2:]
        else:
            values = self._group()
        owner = self._top(Pairs, Call)
        pairs = list(zip(values[::2], values[1::2], strict=True))
        if isinstance(owner, Call):
            owner.items = [*(owner.items or []), *pairs]
        else:
            owner.pairs.extend(pairs)

    def _name_or_call(self, name: str, argument: Any) -> None:
        stack = self.stack
        if name == "GLOBAL":
            stack.append(self._known(str(argument)))
        elif name == "STACK_GLOBAL":
            attribute, module = stack.pop(), stack.pop()
            stack.append(self._known(f"{module} {attribute}"))
        elif name in ("REDUCE", "NEWOBJ"):
            arguments, function = stack.pop(), stack.pop()
            if not isinstance(function, Name) or type(arguments) is not tuple:
                raise RefusedPickleError("calls what is no known name")
            stack.append(Call(function.path, arguments))
        elif name == "BUILD":
            state = stack.pop()
            call = self._top(Call)
            if call.state is not None:
                raise RefusedPickleError("sets one object twice")
            call.state = state
        elif name == "BINPERSID":
            stack.append(Outside(stack.pop()))
        else:
            raise RefusedPickleError(f"has the instruction {name}, which plain values do not need")

    def _known(self, path: str) -> Name:
        if path not in self.names:
            raise RefusedPickleError(f"names {_short(path)!r}, which plain values do not need")
        return Name(path)


# -- what they mean -------------------------------------------------------------------------


class Meaning:
    """Plain values of instructions; `calls` says what each known call gives."""

    def __init__(self, calls: Mapping[str, Callable[["Meaning", Call], Any]], budget: int):
        self.calls, self.budget, self.depth = calls, budget, 0

    def of(self, value: Any) -> Any:
        """The value; too deep ones, and those that repeat themselves without end, are refused."""
        self.budget -= 1
        if self.budget < 0 or self.depth > DEEPEST:
            raise RefusedPickleError("holds values that repeat themselves without end")
        self.depth += 1
        try:
            return self._of(value)
        finally:
            self.depth -= 1

    def _of(self, value: Any) -> Any:
        if value is None or type(value) in (bool, int, float, str):
            return value
        if type(value) is tuple:
            return tuple(map(self.of, value))
        if type(value) is list:
            return list(map(self.of, value))
        if isinstance(value, Pairs):
            return self.mapping(value.pairs)
        if isinstance(value, Call) and value.function in self.calls:
            return self.calls[value.function](self, value)
        raise RefusedPickleError(f"holds a {type(value).__name__} where a value should be")

    def mapping(self, pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
        for key, _ in pairs:
            if type(key) not in (str, int):
                raise RefusedPickleError("holds a dict whose keys are no text or numbers")
        return {key: self.of(value) for key, value in pairs}


def load(source: str | Path | bytes) -> Any:
    """The plain values and tensors of a file of torch.save, or of its bytes.

    Raises `RefusedPickleError` for anything else, also if the file is damaged.
    """
    try:
        with io.BytesIO(source) if isinstance(source, bytes) else Path(source).open("rb") as stream:
            if not zipfile.is_zipfile(stream):
                stream.seek(0)
                return _read_stream(stream.read())
            with zipfile.ZipFile(stream) as archive:
                return _read_archive(archive, stream.seek(0, io.SEEK_END))
    except RefusedPickleError:
        raise
    except (zipfile.BadZipFile, ValueError, KeyError, EOFError, NotImplementedError) as error:
        raise RefusedPickleError(f"is no whole file of torch ({_short(error)})") from error


def _stream(source: str | Path | bytes) -> IO[bytes]:
    return io.BytesIO(source) if isinstance(source, bytes) else Path(source).open("rb")


def _read_archive(archive: zipfile.ZipFile, length: int) -> Any:
    """A pickle and the bytes of each storage, as torch writes them since 1.6."""
    entries = archive.infolist()
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
        raise RefusedPickleError("is compressed, which torch does not do")
    if sum(entry.file_size for entry in entries) > length:
        raise RefusedPickleError("claims more bytes than it has")
    (pickle,) = (e.filename for e in entries if e.filename.split("/")[1:] == ["data.pkl"])
    folder = pickle.removesuffix("data.pkl")
    order = next((e for e in entries if e.filename == folder + "byteorder"), None)
    if order is not None and archive.read(order) != b"little":
        raise RefusedPickleError("was written on a machine with another order of bytes")
    data = archive.read(pickle)
    storages = _Storages(lambda key: archive.read(f"{folder}data/{key}"), length)
    return storages.values(instructions(data, TORCH_NAMES), len(data))


MAGIC = 0x1950A86A20F9469CFC6C  # of torch's files before 1.6


def _read_stream(data: bytes) -> Any:
    """Read torch's files before 1.6: several pickles, then the bytes of each storage."""
    if len(data) < 20 or int.from_bytes(data[4:14], "little") != MAGIC:
        raise RefusedPickleError("is no file of torch")
    at, parts = 15, []
    for _ in range(4):  # version, machine, values, names of storages
        parts.append(instructions(data[at:], TORCH_NAMES))
        ends = (place for op, _, place in pickletools.genops(data[at:]) if op.name == "STOP")
        at += (next(ends) or 0) + 1
    kinds: dict[str, int] = {}

    def note_kinds(value: Any) -> None:
        match getattr(value, "key", None):
            case ("storage", Name(path=kind), str(key), *_) if kind in STORAGES:
                kinds[key] = STORAGES[kind].itemsize

    _visit(parts[2], note_kinds)
    content: dict[str, bytes] = {}
    for key in parts[3]:
        length = int.from_bytes(data[at : at + 8], "little") * kinds[key]
        content[key] = data[at + 8 : at + 8 + length]
        at += 8 + length
    return _Storages(content.__getitem__, len(data)).values(parts[2], len(data))


def _visit(root: Any, act: Callable[[Any], None]) -> None:
    """Act on every value once."""
    visited: set[int] = set()
    open_values = [root]
    while open_values:
        value = open_values.pop()
        if id(value) in visited:
            continue
        visited.add(id(value))
        act(value)
        if isinstance(value, list | tuple):
            open_values.extend(value)
        elif isinstance(value, Pairs):
            open_values.extend(part for pair in value.pairs for part in pair)
        elif isinstance(value, Call):
            items = [part for pair in value.items or () for part in pair]
            open_values.extend([*value.arguments, *items])


class _Storages:
    """The bytes beside a pickle, and the tensors made of them."""

    def __init__(self, content: Callable[[str], bytes], length: int):
        self.content = content
        self.room = SHARED * length  # bytes that all tensors together may take
        self.flat: dict[str, Tensor] = {}

    def values(self, pickle: Any, length: int) -> Any:
        """Plain values and tensors of the instructions of a pickle of that many bytes."""
        calls = {REBUILD: self.tensor, ORDERED: _ordered}
        return Meaning(calls, 4 * length + 1000).of(pickle)

    def storage(self, reference: Any) -> Tensor:
        """The bytes that a reference names, as a flat tensor."""
        match getattr(reference, "key", None):
            case ("storage", Name(path=kind), str(key), str(), int(count), *rest) if (
                kind in STORAGES and rest in ([], [None])
            ):
                dtype = STORAGES[kind]
            case _:
                raise RefusedPickleError("refers to bytes in a way that torch does not")
        if key not in self.flat:
            content = bytearray(self.content(key))
            if len(content) != count * dtype.itemsize:
                raise RefusedPickleError("holds another number of bytes than it says")
            empty = torch.empty(0, dtype=dtype)
            self.flat[key] = torch.frombuffer(content, dtype=dtype) if content else empty
        if self.flat[key].dtype != dtype:
            raise RefusedPickleError("reads the same bytes as two kinds of numbers")
        return self.flat[key]

    def tensor(self, meaning: Meaning, call: Call) -> Tensor:
        reference, offset, size, stride, *_ = call.arguments
        flat = self.storage(reference)
        sides: Any = meaning.of(size)
        steps: Any = meaning.of(stride)
        if type(sides) is not tuple or type(steps) is not tuple or len(sides) != len(steps):
            raise RefusedPickleError("holds a tensor of an impossible shape")
        if any(type(n) is not int or n < 0 for n in (offset, *sides, *steps)):
            raise RefusedPickleError("holds a tensor of an impossible shape")
        count = math.prod(sides)
        last = offset + sum((sides[i] - 1) * steps[i] for i in range(len(sides)))
        if count > flat.numel() or (count and last >= flat.numel()):
            raise RefusedPickleError("holds a tensor that is larger than its bytes")
        self.room -= count * flat.element_size()
        if self.room < 0:
            raise RefusedPickleError("reads the same bytes as very many tensors")
        return flat.as_strided(sides, steps, offset).clone() if count else flat.new_empty(sides)


def _ordered(meaning: Meaning, call: Call) -> dict[Any, Any]:
    """An OrderedDict; what a module's state_dict notes about its version is left out."""
    if call.arguments != ():
        raise RefusedPickleError("makes an OrderedDict in a way that torch does not")
    if call.state is not None and not isinstance(call.state, Pairs):
        raise RefusedPickleError("sets more on an OrderedDict than torch does")
    return meaning.mapping(call.items or [])


def _short(what: Any) -> str:
    return str(what).partition("\n")[0][:100]

"""Files of a stranger: pickles that would leave a marker, and damage of every kind."""

import io
import pickle
import random
import shutil
import zipfile
from pathlib import Path


class Evil:
    """Unpickled, it makes a file."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return open, (str(self.marker), "w")


def evil_pickle(marker, protocol=2):
    """A pickle that would create the marker."""
    return pickle.dumps(Evil(marker), protocol)


def evil_archive(marker, compressed=False):
    """The same as torch.save would have written it."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED if compressed else 0) as file:
        file.writestr("archive/data.pkl", evil_pickle(marker))
        file.writestr("archive/version", "3\n")
        file.writestr("archive/byteorder", "little")
    return stream.getvalue()


def evil_stream(marker):
    """The same as torch.save wrote it before 1.6."""
    head = (0x1950A86A20F9469CFC6C, 1001, {"protocol_version": 1001})
    return b"".join([*(pickle.dumps(part, 2) for part in head), evil_pickle(marker)])


def evil_contents(marker):
    """Bytes that would create the marker wherever something unpickles, by name."""
    return {
        "pickle": evil_pickle(marker),
        "pickle of protocol 4": evil_pickle(marker, 4),
        "archive of torch": evil_archive(marker),
        "compressed archive": evil_archive(marker, compressed=True),
        "stream of torch": evil_stream(marker),
    }


# -- damage ---------------------------------------------------------------------------------


def flip(path: Path, chance: random.Random) -> None:
    """Another value of one bit."""
    content = bytearray(path.read_bytes())
    if content:
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        path.write_bytes(content)


def cut(path: Path, chance: random.Random) -> None:
    """The beginning of a file."""
    content = path.read_bytes()
    path.write_bytes(content[: chance.randrange(max(len(content), 1))])


def blank(path: Path, chance: random.Random) -> None:
    """Zeros where a block was, as after a crash."""
    content = bytearray(path.read_bytes())
    begin = chance.randrange(max(len(content), 1))
    content[begin : begin + 512] = bytes(len(content[begin : begin + 512]))
    path.write_bytes(content)


def grow(path: Path, chance: random.Random) -> None:
    """Bytes that do not belong there."""
    with path.open("ab") as file:
        file.write(chance.randbytes(chance.randrange(1, 64)))


def lose(path: Path, chance: random.Random) -> None:
    """No file at all."""
    path.unlink()


DAMAGES = (flip, flip, cut, blank, grow, lose)


def damage(folder: Path, chance: random.Random) -> str:
    """Damage one file below a folder, or swap two; gives what was done."""
    paths = sorted(p for p in folder.rglob("*") if p.is_file())
    path = chance.choice(paths)
    if len(paths) > 1 and chance.random() < 0.15:
        other = chance.choice([p for p in paths if p != path])
        content = path.read_bytes()
        shutil.copyfile(other, path)
        other.write_bytes(content)
        return f"swap {path.name} {other.name}"
    act = chance.choice(DAMAGES)
    act(path, chance)
    return f"{act.__name__} {path.name}"

"""Files of torch.save are read as data: equal to what torch reads, and nothing is ever called."""

import collections
import io
import pickle
import pickletools

import pytest
import torch

from saccade.models import pickled
from saccade.models.pickled import RefusedPickleError
from tests.attack import evil_contents
from tests.engine.classify_runs import same


def stored(value, **options):
    stream = io.BytesIO()
    torch.save(value, stream, **options)
    return stream.getvalue()


@pytest.mark.parametrize("old", [False, True], ids=["archive", "stream"])
def test_what_torch_writes_is_read(old):
    base = torch.arange(24.0).reshape(2, 3, 2, 2)
    value = {
        "model": torch.nn.Conv2d(3, 4, 3).state_dict(),
        "last": base.to(memory_format=torch.channels_last),
        "part": base[:, 1:],
        "kinds": [torch.ones(3, dtype=d) for d in (torch.bool, torch.int64, torch.bfloat16)],
        "empty": torch.empty(0, 3),
        "number": torch.tensor(3.0),
        "plain": (1, -(2**40), 0.5, None, True, "é", [], {}, {1: "a", "b": (2,)}),
    }
    read = pickled.load(stored(value, _use_new_zipfile_serialization=not old))
    assert same({**value, "model": dict(value["model"])}, read) is None
    assert read["last"].stride() == value["last"].stride()


def test_no_marker_is_ever_made(tmp_path):
    marker = tmp_path / "marker"
    for content in evil_contents(marker).values():
        with pytest.raises(RefusedPickleError):
            pickled.load(content)
        with pytest.raises(RefusedPickleError):
            pickled.instructions(content, pickled.TORCH_NAMES)
    assert not marker.exists()


NAMES = pickled.TORCH_NAMES
REBUILD = b"ctorch._utils\n_rebuild_tensor_v2\n"
TRICKS = {
    "a name that is not known": b"cos\nsystem\n.",
    "a name by parts": b"\x80\x04\x8c\x05posix\x8c\x06system\x93.",
    "a call of a value": b"\x80\x02K\x01)R.",
    "a call of what a call gave": b"\x80\x02ccollections\nOrderedDict\n)R)R.",
    "an instance of a class": b"(icollections\nOrderedDict\n.",
    "an object of a class": b"(ccollections\nOrderedDict\no.",
    "an extension": b"\x82\x01.",
    "a reference by text": b"Pstorage\n.",
    "state of a dict": b"\x80\x02}}b.",
    "state set twice": b"\x80\x02ccollections\nOrderedDict\n)R}b}b.",
    "items of a number": b"\x80\x02K\x01K\x02K\x03s.",
    "a memo that is empty": b"\x80\x02h\x05.",
    "nothing": b".",
    "no end": b"\x80\x02K\x01",
    "too few values": b"\x80\x02K\x01\x87.",
    "a huge number": b"\x80\x02\x8a\xff" + b"\x7f" * 255 + b".",
    "a huge length": b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7fabc.",
    "bytes": b"\x80\x03C\x03abc.",
    "arguments that are no tuple": b"\x80\x02ccollections\nOrderedDict\n]R.",
    "two values": b"\x80\x02K\x01K\x02.",
}


@pytest.mark.parametrize("trick", TRICKS)
def test_an_instruction_that_plain_values_do_not_need_is_refused(trick):
    with pytest.raises(RefusedPickleError):
        pickled.instructions(TRICKS[trick], NAMES)


def meant(data):
    calls = {pickled.ORDERED: pickled._ordered}
    return pickled.Meaning(calls, 4 * len(data) + 1000).of(pickled.instructions(data, NAMES))


def test_values_without_an_end_are_refused():
    inside_itself = []
    inside_itself.append(inside_itself)
    doubled = ()
    for _ in range(60):
        doubled = (doubled, doubled)  # 2^60 values
    deep = 1
    for _ in range(500):
        deep = (deep,)
    for value in (inside_itself, doubled, deep, {"a": inside_itself}):
        with pytest.raises(RefusedPickleError, match="without end"):
            meant(pickle.dumps(value, 2))
    for value in ({(1, 2): 3}, {1.5: 1}):
        with pytest.raises(RefusedPickleError, match="keys"):
            meant(pickle.dumps(value, 2))


def changed(content, old, new):
    """An archive with a pickle in which some bytes are others; its checksums fit."""
    import zipfile

    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as before, zipfile.ZipFile(out, "w") as after:
        for entry in before.infolist():
            data = before.read(entry)
            if entry.filename.endswith("data.pkl"):
                assert old in data
                data = data.replace(old, new)
            after.writestr(entry.filename, data)
    return out.getvalue()


def test_a_tensor_is_never_larger_than_its_bytes():
    content = stored(torch.zeros(7, 5))
    shape = b"K\x07K\x05\x86"  # (7, 5)
    for sides in (
        (b"J\xff\xff\xff\x7f", b"K\x05"),
        (b"K\x08", b"K\x05"),
        (b"J\xff\xff\xff\xff",) * 2,
    ):
        with pytest.raises(RefusedPickleError, match=r"larger than its bytes|impossible shape"):
            pickled.load(changed(content, shape, b"".join(sides) + b"\x86"))
    strides = b"K\x05K\x01\x86"
    for steps in ((b"K\x09", b"K\x01"), (b"J\xff\xff\xff\xff", b"K\x01")):
        with pytest.raises(RefusedPickleError, match=r"larger than its bytes|impossible shape"):
            pickled.load(changed(content, strides, b"".join(steps) + b"\x86"))
    with pytest.raises(RefusedPickleError, match="another number of bytes"):
        pickled.load(changed(content, b"FloatStorage", b"DoubleStorage"))


def test_one_storage_is_not_read_without_end():
    base = torch.zeros(1000)
    with pytest.raises(RefusedPickleError, match="very many tensors"):
        pickled.load(stored([base[:] for _ in range(100)]))


def test_any_flipped_bit_of_the_bytes_is_seen():
    content = stored({"w": torch.arange(100.0)})
    at = content.index(torch.arange(100.0).numpy().tobytes())
    for i in (0, 7, 399):
        damaged = bytearray(content)
        damaged[at + i] ^= 4
        with pytest.raises(RefusedPickleError):
            pickled.load(bytes(damaged))


def test_known_names_are_few():
    """What a pickle of torch needs, and no function that does anything."""
    used = set()
    value = collections.OrderedDict(w=torch.zeros(2), b=torch.zeros(2, dtype=torch.int64))
    import zipfile

    with zipfile.ZipFile(io.BytesIO(stored(value))) as file:
        name = next(n for n in file.namelist() if n.endswith("data.pkl"))
        for opcode, argument, _ in pickletools.genops(file.read(name)):
            if opcode.name == "GLOBAL":
                used.add(argument)
    assert used <= NAMES

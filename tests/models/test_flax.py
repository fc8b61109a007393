import random

import numpy as np
import pytest

from saccade.models import flax
from tests.attack import Evil
from tools.campaign.odd import changed_bytes
from tools.campaign.verdict import flaw_of_text

TREE = {"Stem": {"kernel": np.arange(6, dtype=np.float32).reshape(2, 3)}, "scale": np.float32(2)}
FLAT = {"Stem/kernel": TREE["Stem"]["kernel"], "scale": np.asarray(2, np.float32)}


def same(a, b):
    assert a.keys() == b.keys()
    for key in a:
        np.testing.assert_array_equal(a[key], b[key])
        assert np.shape(a[key]) == np.shape(b[key])


def pack(tree, chunk=None):
    """As flax.serialization.to_bytes writes: arrays are extension 1, scalars 3, large ones cut."""
    msgpack = pytest.importorskip("msgpack")

    def content(a):
        return msgpack.packb((a.shape, a.dtype.name, a.tobytes()), use_bin_type=True)

    def numbered(values):
        return {str(i): value for i, value in enumerate(values)}

    def prepare(node):
        if isinstance(node, dict):
            return {key: prepare(value) for key, value in node.items()}
        if chunk and isinstance(node, np.ndarray) and node.size > chunk:
            pieces = np.split(node.reshape(-1), range(chunk, node.size, chunk))
            return {
                "__msgpack_chunked_array__": True,
                "shape": numbered(node.shape),
                "chunks": numbered(prepare(p) for p in pieces),
            }
        if isinstance(node, np.ndarray):
            return msgpack.ExtType(1, content(node))
        return (
            msgpack.ExtType(3, content(np.asarray(node))) if isinstance(node, np.generic) else node
        )

    return msgpack.packb(prepare(tree), strict_types=True)


@pytest.mark.parametrize("before", ["", "w:", "params/", "optimizer/target/", "w:params/"])
def test_npz_with_paths_of_many_kinds(tmp_path, before):
    path = tmp_path / "a.npz"
    np.savez(path, **{before + key: a for key, a in FLAT.items()})
    same(flax.read(path), FLAT)


def test_golden_files_hold_more_than_weights(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(
        path, x=np.zeros(3), **{"w:" + key: a for key, a in FLAT.items()}, **{"g:scale": np.ones(1)}
    )
    same(flax.read(path), FLAT)


@pytest.mark.parametrize("chunk", [None, 4])
@pytest.mark.parametrize("state", [False, True])
def test_msgpack_whole_and_in_chunks(tmp_path, chunk, state):
    path = tmp_path / "checkpoint_300"
    tree = {"params": TREE, "opt_state": {"0": {"mu": TREE}}, "step": 7} if state else TREE
    path.write_bytes(pack(tree, chunk))
    same(flax.read(path), FLAT)


def test_msgpack_in_bfloat16(tmp_path):
    msgpack = pytest.importorskip("msgpack")
    raw = np.array([0x3F80, 0xC000], np.uint16)  # 1 and -2
    content = msgpack.packb(((2,), "bfloat16", raw.tobytes()), use_bin_type=True)
    path = tmp_path / "a.msgpack"
    path.write_bytes(msgpack.packb({"a": msgpack.ExtType(1, content)}))
    same(flax.read(path), {"a": np.array([1, -2], np.float32)})


@pytest.mark.parametrize("tree", [TREE, FLAT, {"params": TREE, "batch_stats": None}])
def test_a_tree_in_memory(tree):
    same(flax.read(tree), FLAT)


def test_no_file():
    with pytest.raises(FileNotFoundError, match=r"from_flax: no file 'nowhere\.npz'"):
        flax.read("nowhere.npz")


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"\xc1not msgpack", "neither .npz nor a msgpack file"), (b"\x07", "no tree of parameters")],
)
def test_a_file_of_something_else(tmp_path, content, says):
    pytest.importorskip("msgpack")
    path = tmp_path / "a.msgpack"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=says):
        flax.read(path)


def test_without_msgpack_the_error_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "msgpack", None)
    path = tmp_path / "a.msgpack"
    path.write_bytes(b"\x80")
    with pytest.raises(ImportError, match=r"pip install 'saccade\[flax\]'"):
        flax.read(path)


def sentence(path):
    """What a file is refused with; None if it is read."""
    try:
        flax.read(path)
    except ValueError as error:
        return str(error)
    return None


def test_damaged_files_and_strangers_are_refused_in_a_sentence(tmp_path):
    """Cut, flipped, of objects, of other types, far larger than they look: one kind of error."""
    msgpack = pytest.importorskip("msgpack")
    chance = random.Random(0)
    np.savez_compressed(tmp_path / "a.npz", **FLAT)
    contents = [(tmp_path / "a.npz").read_bytes(), pack(TREE), pack(TREE, chunk=2)]
    for n in range(300):
        path = tmp_path / f"{n}.bin"
        path.write_bytes(changed_bytes(contents[n % 3], chance))
        message = sentence(path)
        assert message is None or (repr(str(path)) in message and flaw_of_text(message) is None), (
            message
        )
        path.unlink()
    path = tmp_path / "evil"
    ext = [msgpack.packb(one) for one in (
        ((2,), "O", b"x" * 16), ((1,), "V8", b"x" * 8), ((2,), ["float32"], b""), 3,
        ((-1, -1), "float32", b"x" * 16), ((10**9, 10**9), "float32", b""), ("a", "int8", b"a"),
    )]  # fmt: skip
    for content in (
        *(msgpack.packb({"a": msgpack.ExtType(1, one)}) for one in ext),
        msgpack.packb({"a": msgpack.ExtType(9, b"x")}), msgpack.packb([1]), b"\x81\xa1a" * 5000,
        msgpack.packb({"a": {"__msgpack_chunked_array__": True, "shape": {"0": 2}, "chunks": {}}}),
    ):  # fmt: skip
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"neither \.npz nor a msgpack"):
            flax.read(path)


def test_no_objects_and_no_bombs_in_archives(tmp_path, monkeypatch):
    np.savez(tmp_path / "a.npz", x=np.array([Evil(tmp_path / "marker")], object))
    with pytest.raises(ValueError, match=r"neither \.npz"):
        flax.read(tmp_path / "a.npz")
    assert not (tmp_path / "marker").exists()
    np.savez_compressed(tmp_path / "b.npz", x=np.zeros(10**6))
    monkeypatch.setattr(flax, "LARGE", 10**6)
    with pytest.raises(ValueError, match="unpacked to 8,000,"):
        flax.read(tmp_path / "b.npz")

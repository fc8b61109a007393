"""At every instant the index names whole files."""

import json
import random
import resource
import shutil
import subprocess
import sys
import textwrap

import pytest
import torch

from saccade.engine.checkpoint import Checkpoints
from tests.attack import Evil, damage
from tests.engine.classify_runs import same


def state(value=1.0):
    return {"model": {"w": torch.full((64,), value)}, "rng": (3, (1, 2), None)}


def test_what_is_saved_comes_back(tmp_path):
    store = Checkpoints(tmp_path)
    store.save(state(2.0), 5)
    latest, damaged = store.load()
    assert latest["step"] == 5
    assert torch.equal(latest["model"]["w"], torch.full((64,), 2.0))
    assert latest["rng"] == (3, (1, 2), None)
    assert damaged == []


def test_the_last_one_before_and_the_best_stay(tmp_path):
    store = Checkpoints(tmp_path, keep=1)
    for step, score in [(1, 10.0), (2, 30.0), (3, 20.0), (4, None), (5, 25.0)]:
        store.save(state(step), step, score)
    assert [e["step"] for e in store.index["entries"]] == [2, 4, 5]
    assert store.entry("best")["step"] == 2
    assert sorted(p.name for p in store.folder.iterdir()) == [
        "index.json", *(f"step-00000000{n}.safetensors" for n in (2, 4, 5)),
    ]  # fmt: skip
    assert store.load("best")[0]["step"] == 2


def test_those_of_every_n_steps_stay(tmp_path):
    store = Checkpoints(tmp_path, keep=1, every=3)
    for step in range(1, 9):
        store.save(state(step), step, 100.0 - step)
    assert [e["step"] for e in store.index["entries"]] == [1, 3, 6, 7, 8]


def test_saving_a_step_again_replaces_it(tmp_path):
    store = Checkpoints(tmp_path)
    store.save(state(1), 3)
    store.save(state(2), 3)
    assert [e["step"] for e in store.index["entries"]] == [3]
    assert store.load()[0]["model"]["w"][0] == 2


@pytest.mark.parametrize("harm", ["cut", "empty", "flip", "gone"])
def test_a_torn_file_falls_back_to_the_one_before(tmp_path, harm):
    store = Checkpoints(tmp_path)
    store.save(state(1), 1)
    path = store.save(state(2), 2)
    data = bytearray(path.read_bytes())
    if harm == "gone":
        path.unlink()
    elif harm == "flip":
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    else:
        path.write_bytes(data[: len(data) // 2 if harm == "cut" else 0])
    latest, damaged = store.load()
    assert latest["step"] == 1
    assert len(damaged) == 1
    assert "step-000000002.safetensors is" in damaged[0]


def test_nothing_whole_or_nothing_at_all_is_one_sentence(tmp_path):
    store = Checkpoints(tmp_path)
    with pytest.raises(FileNotFoundError, match="no checkpoint in"):
        store.load()
    store.save(state(), 1).write_bytes(b"")
    with pytest.raises(ValueError, match="no whole checkpoint"):
        store.load()


def test_a_torn_index_stands_in_nobodys_way(tmp_path):
    """What it would say is in the files themselves, also which one is best."""
    store = Checkpoints(tmp_path)
    for step, score in [(1, 30.0), (2, 20.0), (3, 10.0)]:
        store.save(state(step), step, score)
    whole = (store.folder / "index.json").read_text()
    many = json.dumps({"entries": json.loads(whole)["entries"] * 10_000, "best": None})
    texts = ("{", "", "[]", '{"entries": 3}', whole.replace("30.0", "3.0"), "[" * 10**5, many)
    for text in texts:
        (store.folder / "index.json").write_text(text)
        latest, sentences = store.load()
        assert latest["step"] == 3
        assert "index.json is damaged" in sentences[0]
        assert store.entry("best")["step"] == 1
    store.save(state(4), 4)
    assert json.loads((store.folder / "index.json").read_text())["best"] == 1


@pytest.mark.parametrize("name", ["../secret", "step-000000001.safetensors/../x", "step-1.pt"])
def test_an_index_names_no_other_files(tmp_path, name):
    store = Checkpoints(tmp_path)
    store.save(state(1), 1)
    entry = {"step": 1, "file": name, "sha256": None, "score": None}
    (store.folder / "index.json").write_text(json.dumps({"entries": [entry], "best": None}))
    assert store.entry()["file"] == "step-000000001.safetensors"


def test_a_state_can_run_no_code(tmp_path):
    """What is no plain value is not written; what was written as a pickle is not run."""
    store = Checkpoints(tmp_path)
    with pytest.raises(TypeError, match="plain values and tensors, got Evil"):
        store.save({"x": Evil(tmp_path / "marker")}, 1)
    torch.save({"step": 1, "x": Evil(tmp_path / "marker")}, store.folder / "step-000000001.pt")
    with pytest.raises(ValueError, match=r"no whole checkpoint .* names 'io open'"):
        store.load()
    assert not (tmp_path / "marker").exists()


def test_a_checkpoint_under_the_name_of_another_step_is_refused(tmp_path):
    store = Checkpoints(tmp_path)
    one, two = store.save(state(1), 1), store.save(state(2), 2)
    one.rename(tmp_path / "x")
    two.rename(one)
    (tmp_path / "x").rename(two)
    (store.folder / "index.json").unlink()
    with pytest.raises(ValueError, match=r"no whole checkpoint .* of another step"):
        store.load()


def test_links_out_of_the_run_are_not_followed(tmp_path):
    store = Checkpoints(tmp_path / "run")
    store.save(state(1), 1)
    path = store.save(state(2), 2)
    path.rename(tmp_path / path.name)
    path.symlink_to(tmp_path / path.name)
    latest, sentences = store.load()
    assert latest["step"] == 1
    assert "link out of the run's folder" in sentences[0]
    store.folder.rename(tmp_path / "elsewhere")
    store.folder.symlink_to(tmp_path / "elsewhere")
    for act in (store.load, store.entry, lambda: store.save(state(3), 3)):
        with pytest.raises(ValueError, match="link out of the run's folder"):
            act()


def test_no_leftover_is_written_through(tmp_path):
    """Where a leftover should lie there may be a link to somebody's file."""
    store = Checkpoints(tmp_path / "run")
    store.save(state(1), 1)
    (tmp_path / "mine").write_text("mine")
    for name in ("index.json.part", "step-000000002.safetensors.part"):
        (store.folder / name).symlink_to(tmp_path / "mine")
    store.save(state(2), 2)
    assert store.load()[0]["step"] == 2
    assert (tmp_path / "mine").read_text() == "mine"


def test_a_full_disk_loses_nothing(tmp_path):
    """The second save meets a limit on the size of files, as a full disk would stop it."""
    code = f"""
        import resource, torch
        from saccade.engine.checkpoint import Checkpoints
        store = Checkpoints({str(tmp_path)!r})
        store.save({{"w": torch.ones(10)}}, 1)
        resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))
        try:
            store.save({{"w": torch.ones(10**6)}}, 2)
        except OSError as error:
            print(error)
    """
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 65536
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True
    )
    assert "the checkpoint before it is whole" in run.stdout
    store = Checkpoints(tmp_path)
    assert store.load()[0]["step"] == 1
    assert sorted(p.name for p in store.folder.iterdir()) == [
        "index.json",
        "step-000000001.safetensors",
    ]
    json.loads((store.folder / "index.json").read_text())


def test_without_its_index_the_newest_file_is_taken(tmp_path):
    """As the sentence about a damaged index promises; nothing is swept away for it."""
    store = Checkpoints(tmp_path)
    store.save(state(1), 1)
    store.save(state(2), 2)
    (store.folder / "step-000000003.safetensors.part").write_bytes(b"half")
    (store.folder / "index.json").unlink()
    assert store.entry()["step"] == 2
    assert store.load()[0]["model"]["w"][0] == 2
    store.save(state(3), 3)
    assert [e["step"] for e in store.index["entries"]] == [2, 3]
    assert store.load()[0]["step"] == 3


def test_a_torn_end_that_is_done_again_is_no_fallback(tmp_path):
    store = Checkpoints(tmp_path)
    store.save(state(10), 10)
    store.save(state(20), 20).write_bytes(b"damaged")
    store.save(state(11), 11).write_bytes(b"damaged too")  # after going on from 10
    assert store.load()[0]["step"] == 10


@pytest.mark.parametrize("indexed", [True, False])
def test_no_damage_is_loaded(tmp_path, indexed):
    """The one before is taken, or a sentence says that none is whole."""
    chance = random.Random(int(indexed))
    original = tmp_path / "original"
    for step in (1, 2):
        Checkpoints(original).save(state(step), step, 1.0 / step)
    taken = []
    for i in range(75):
        run = tmp_path / str(i)
        shutil.copytree(original, run)
        if not indexed:
            (run / "checkpoints/index.json").unlink()
        what = damage(run / "checkpoints", chance)
        try:
            loaded, _ = Checkpoints(run).load()
        except (ValueError, FileNotFoundError):
            taken.append(0)
            continue
        step = loaded["step"]
        assert same(loaded, {"format": 2, "step": step, **state(step)}) is None, what
        taken.append(step)
        shutil.rmtree(run)
    assert {1, 2} <= set(taken)

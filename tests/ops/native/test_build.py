"""A library that is damaged costs no process its life, and no result."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from saccade.ops import native
from saccade.ops.native import build

pytestmark = pytest.mark.skipif(not native.available(), reason=native.where())

# Looks for the kernels anew for each file that is named, as if it were the installed library (or,
# with "cache", for each copied into the cache), and computes with what it finds.
PROGRAM = """
import os, shutil, sys
from pathlib import Path
import torch
from saccade.ops import native, sasa
from saccade.ops.native import build

place, *files = sys.argv[1:]
cached = native.cache_folder() / build.fingerprint() / build.NAME
q, k, v = torch.randn(3, 1, 8, 9, 9).unbind()
for file in files:
    path = Path(file)
    native.INSTALLED = path
    if place == "cache":
        native.INSTALLED = path.with_name("absent")
        if os.path.lexists(cached):
            cached.rmdir() if cached.is_dir() else cached.unlink()
        cached.parent.mkdir(parents=True, exist_ok=True)
        os.rename(path, cached)
    native.find.cache_clear()
    y = sasa.local_attention(q, k, v, None, None, heads=2, window=3)
    torch.testing.assert_close(y, sasa.unfolded(q, k, v, None, None, heads=2, window=3))
    print(path.name, native.where(), sep=": ", flush=True)
"""

# Stands for a compiler: takes no time, and links what a real one has linked before.
COMPILER = """#!/bin/sh
while [ $# -gt 0 ]; do
  [ "$1" = -o ] && output=$2
  [ "$1" = -shared ] && linking=1
  shift
done
[ -z "$output" ] && exit 0
[ -z "$linking" ] && { : > "$output"; exit 0; }
echo linked >> "{log}"
sleep {seconds}
cp "{library}" "$output"
"""


@pytest.fixture
def library():
    return Path(native.library()._name)


@pytest.fixture
def damaged(tmp_path, library):
    """Files that are not the library, each named by what is wrong with it."""
    content = library.read_bytes()
    whole = len(content)
    folder = tmp_path / "damaged"
    folder.mkdir()
    for length in (0, 1, 63, 64, 100, 4096, whole // 3, whole - 4096, whole - 100, whole - 1):
        (folder / f"cut at {length}").write_bytes(content[:length])
    for at in (5, 4096, whole // 2, whole - 200, whole - 70, whole - 1):
        flipped = bytearray(content)
        flipped[at] ^= 1
        (folder / f"flipped at {at}").write_bytes(flipped)
    (folder / "longer").write_bytes(content + b"\0")
    (folder / "zeros").write_bytes(bytes(whole))
    (folder / "a folder").mkdir()
    (folder / "points nowhere").symlink_to(folder / "nowhere")
    os.mkfifo(folder / "a pipe")
    if os.geteuid():
        shutil.copy(library, folder / "unreadable")
        (folder / "unreadable").chmod(0)
    else:  # root may read all but this
        (folder / "unreadable").symlink_to("/proc/self/mem")
    return sorted(folder.iterdir())


@pytest.fixture
def compiler(tmp_path, library):
    def write(seconds=0):
        path = tmp_path / "compiler"
        text = COMPILER.replace("{log}", str(tmp_path / "log")).replace("{library}", str(library))
        path.write_text(text.replace("{seconds}", str(seconds)))
        path.chmod(0o755)
        return str(path)

    return write


def start(place, files, cache, cxx):
    """The program in a process of its own, without a compiler but this one."""
    environment = {k: v for k, v in os.environ.items() if k not in ("SACCADE_NATIVE", "CXX")}
    environment |= {"SACCADE_CACHE": str(cache), "PYTHONPATH": os.pathsep.join(sys.path)}
    environment |= {"CXX": cxx} if cxx else {"PATH": str(cache)}
    command = [sys.executable, "-c", PROGRAM, place, *map(str, files)]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def lines_of(process):
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, f"ended with {process.returncode}: {errors}\n{output}"
    return dict(line.split(": ", 1) for line in output.splitlines())


def reason(name):
    reasons = {
        "a folder": "it is a folder, not a file",
        "a pipe": "it is no plain file",
        "points nowhere": "it is no plain file",
        "unreadable": "it cannot be read (",
        "zeros": "it is cut short",
    }
    cut = name.startswith("cut") or name == "longer"
    return reasons.get(name, "it is cut short" if cut else "it")


def test_a_damaged_installed_library_is_passed_over_for_the_cache(damaged, library, tmp_path):
    cached = tmp_path / "cache" / build.fingerprint() / build.NAME
    cached.parent.mkdir(parents=True)
    shutil.copy(library, cached)
    lines = lines_of(start("installed", damaged, tmp_path / "cache", None))
    assert set(lines) == {path.name for path in damaged}
    for name, line in lines.items():
        assert line.startswith("C++ kernels, "), (name, line)
        assert "in the cache; the installed library is not used: " in line, (name, line)
        assert reason(name) in line, (name, line)


def test_a_library_of_other_sources_is_not_called_and_the_reason_says_so(library, tmp_path):
    other, none = tmp_path / "other", tmp_path / "none"
    shutil.copy(library, other)
    build.seal(other, "0" * 16)
    lines = lines_of(start("installed", [other, none], tmp_path / "cache", None))
    assert lines["other"].startswith("plain PyTorch (no C++ compiler found")
    assert lines["other"].endswith("; the installed library was built from other sources)")
    assert "other sources" not in lines["none"]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("strip") is None, reason="needs strip")
def test_a_stripped_library_is_refused_until_it_is_sealed_again(library, tmp_path):
    stripped, sealed = tmp_path / "stripped", tmp_path / "sealed"
    shutil.copy(library, stripped)
    subprocess.run(["strip", stripped], check=True)
    shutil.copy(stripped, sealed)
    build.seal(sealed, build.fingerprint())
    lines = lines_of(start("installed", [stripped, sealed], tmp_path / "cache", None))
    assert "plain PyTorch" in lines["stripped"]
    assert "the installed library is not used: it is cut short" in lines["stripped"]
    assert "if strip or patchelf changed it, seal it again" in lines["stripped"]
    assert "C++ kernels" in lines["sealed"]
    assert "not used" not in lines["sealed"]


def test_without_a_compiler_damage_means_plain_pytorch_and_a_sentence(damaged, tmp_path):
    lines = lines_of(start("cache", damaged, tmp_path / "cache", None))
    assert set(lines) == {path.name for path in damaged}
    for name, line in lines.items():
        assert line.startswith("plain PyTorch ("), (name, line)
        assert f"the library in the cache was damaged: {reason(name)}" in line, (name, line)


@pytest.mark.slow
def test_a_damaged_library_in_the_cache_is_built_anew(damaged, compiler, tmp_path):
    lines = lines_of(start("cache", damaged, tmp_path / "cache", compiler()))
    assert "is a folder; remove it" in lines.pop("a folder")
    assert len(lines) == len(damaged) - 1
    for name, line in lines.items():
        assert "(built now by" in line, (name, line)
        assert f"the library in the cache was damaged: {reason(name)}" in line, (name, line)
    assert (tmp_path / "log").read_text().count("linked") == len(lines)


@pytest.mark.slow
def test_two_processes_build_once(compiler, tmp_path):
    absent = [tmp_path / "absent"]
    cxx = compiler(seconds=8)
    processes = [start("installed", absent, tmp_path / "cache", cxx) for _ in range(2)]
    lines = [lines_of(process)["absent"] for process in processes]
    assert all(line.startswith("C++ kernels, ") for line in lines)
    built = sorted("built now" in line for line in lines)
    assert built == [False, True]
    assert (tmp_path / "log").read_text().count("linked") == 1


@pytest.mark.skipif(os.name != "posix", reason="asks who owns a file")
def test_a_library_that_others_may_write_is_not_opened(library, tmp_path, monkeypatch):
    monkeypatch.setenv("SACCADE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(native, "INSTALLED", tmp_path / "absent")
    cached = tmp_path / "cache" / build.fingerprint() / build.NAME
    cached.parent.mkdir(parents=True)
    shutil.copy(library, cached)
    assert native._search().library is not None
    for path in (tmp_path / "cache", cached.parent, cached):
        mode = path.stat().st_mode
        path.chmod(0o777)
        kernels = native._search()
        assert kernels.library is None
        assert f"{path} may be written by all users" in kernels.why
        assert "set SACCADE_CACHE to a folder of your own" in kernels.why
        path.chmod(mode)
    shutil.copy(library, tmp_path / "theirs.so")
    cached.unlink()
    cached.symlink_to(tmp_path / "theirs.so")
    assert native._search().library is not None, "a link to one's own file"
    (tmp_path / "theirs.so").chmod(0o777)
    assert "may be written by all users" in native._search().why
    if os.geteuid() == 0:
        (tmp_path / "theirs.so").chmod(0o755)
        os.chown(tmp_path / "theirs.so", 12345, 12345)
        assert "belongs to another user" in native._search().why


def test_a_file_without_end_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "MOST", 1000)
    (tmp_path / "library").write_bytes(bytes(2000))
    with pytest.raises(build.DamagedError, match="larger than any library"):
        build.sealed(tmp_path / "library")


def test_the_seal_names_the_sources_and_any_change_breaks_it(tmp_path):
    path = tmp_path / "library"
    path.write_bytes(b"code" * 10)
    build.seal(path, "0123456789abcdef")
    assert build.sealed(path) == "0123456789abcdef"
    content = path.read_bytes()
    for at in range(len(content)):
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        with pytest.raises(build.DamagedError):
            build.sealed(path)
        path.write_bytes(content[:at])
        with pytest.raises(build.DamagedError):
            build.sealed(path)


def test_a_compiler_that_is_no_command_is_named(monkeypatch, tmp_path):
    (tmp_path / "g++").write_text("#!/bin/sh\n")
    (tmp_path / "g++").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))  # whether or not this machine has one
    monkeypatch.setenv("CXX", "g++ '-O2")
    with pytest.raises(build.NoCompilerError, match=r"\$CXX is no command .* such as g\+\+"):
        build.compiler()
    monkeypatch.setenv("CXX", "  ")
    assert build.compiler() == ["g++"]

import os
import subprocess
import sys
from pathlib import Path

import pytest

from saccade.ops import native
from saccade.ops.native import build

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """As after an install on a machine without a compiler: nothing built, nothing to build with."""
    monkeypatch.setattr(native, "INSTALLED", tmp_path / "absent")
    monkeypatch.setenv("SACCADE_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("SACCADE_NATIVE", raising=False)
    native.find.cache_clear()
    yield monkeypatch
    native.find.cache_clear()


def test_without_a_compiler_the_plain_path_and_the_reason(bare):
    assert not native.available()
    assert native.where() == (
        "plain PyTorch (no C++ compiler found (looked for $CXX, c++, g++, clang++))"
    )
    with pytest.raises(RuntimeError, match="no C\\+\\+ compiler found"):
        native.library()


def test_a_compiler_that_fails_is_named(bare, tmp_path):
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho 'error: not today' >&2\nexit 1\n")
    broken.chmod(0o755)
    bare.setenv("CXX", str(broken))
    bare.setenv("PATH", os.defpath)
    assert not native.available()
    assert "not today" in native.where()
    assert not list(tmp_path.rglob(build.NAME))


def test_switched_off_by_the_environment(bare):
    bare.setenv("SACCADE_NATIVE", "0")
    assert native.where() == "plain PyTorch (SACCADE_NATIVE=0)"


def test_importing_builds_nothing(tmp_path):
    """Only the first call may take the time to compile."""
    code = "import saccade.ops.native.sasa, saccade.ops.native as n; print(n.find.cache_info())"
    environment = os.environ | {"SACCADE_CACHE": str(tmp_path)}
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "misses=0" in result.stdout


@pytest.mark.skipif(not native.available(), reason=native.where())
def test_says_which_kernels_run():
    assert native.where().startswith(f"C++ kernels, {native.instruction_set()} (")
    with pytest.raises(ValueError, match="cannot run 'mmx'"):
        native.use("mmx")


@pytest.mark.slow
def test_builds_on_first_use_and_finds_it_again(monkeypatch, tmp_path):
    monkeypatch.setattr(native, "INSTALLED", tmp_path / "absent")
    monkeypatch.setenv("SACCADE_CACHE", str(tmp_path))
    try:
        build.compiler()
    except build.NoCompilerError as error:
        pytest.skip(str(error))
    for expected in ("built now by", "built on first use"):
        native.find.cache_clear()
        assert expected in native.where()
    native.find.cache_clear()


def sanitized(*arguments):
    """What tools/sanitize.py says; skips where there is no compiler with sanitisers."""
    try:
        command = build.compiler()
    except build.NoCompilerError as error:
        pytest.skip(str(error))
    kind = "thread" if "thread" in arguments else "address,undefined"
    probe = [*command, f"-fsanitize={kind}", "-x", "c++", "-", "-o", os.devnull]
    tried = subprocess.run(probe, input="int main() {}", capture_output=True, text=True)
    if tried.returncode:
        pytest.skip(f"{command[0]} has no sanitisers here")
    result = subprocess.run(
        [sys.executable, "tools/sanitize.py", *arguments],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_random_calls_are_clean_under_the_address_sanitiser():
    """Also right, all of them; the program is built once for given sources."""
    output = sanitized("address", "--sets", "generic", "--calls", "60", "--seed", "3")
    assert "address: 0 findings in 60 calls" in output


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["address", "thread"])
def test_many_random_calls_of_every_instruction_set_are_clean(kind):
    assert f"{kind}: 0 findings in 5000 calls" in sanitized(kind, "--calls", "5000")

"""Compile the kernels: plain C++17, no headers but the system's, one object per instruction set.

An instruction set holds all kernels; the last adds to the one before it a kernel of its own.

Standard library only, and nothing of the package: the package's own build (setup.py) runs this file
before the package, or torch, can be imported.
"""

import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

SOURCES = Path(__file__).parent / "src"
HEADER_READER = Path(__file__).with_name("header.py")
NAME = "kernels.dylib" if sys.platform == "darwin" else "kernels.so"

# -mtune=generic: tuned for the very machine, GCC's vector code loses 15-20%. No -ffast-math: it
# would switch the whole process to flush-to-zero and make NaN unreliable.
COMMON = ["-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-fno-math-errno"]
GCC = [
    "-fno-tree-loop-distribute-patterns",  # a few zeros are stored faster than memset is called
    "-fno-predictive-commoning",  # values kept for the next turn of a loop crowd out its sums
]
AVX512 = [
    "-mavx512f", "-mavx512vl", "-mavx512dq", "-mavx512bw", "-mfma",
    "-mtune=generic", "-mprefer-vector-width=256",
]  # fmt: skip
INSTRUCTION_SETS = {
    "generic": ["kernels.cpp", "-DSACCADE_DOUBLE"],
    "avx2": ["kernels.cpp", "-mavx2", "-mfma", "-mtune=generic"],
    "avx512": ["kernels.cpp", *AVX512],
    "avx512bf16": ["sasa_half.cpp", *AVX512, "-mavx512bf16"],
}


class NoCompilerError(RuntimeError):
    """There is nothing to build with, or it fails; the message says which."""


def compiler() -> list[str]:
    """The C++ compiler as a command: $CXX, else what the system calls c++, g++ or clang++."""
    for command in filter(None, (os.environ.get("CXX"), "c++", "g++", "clang++")):
        words = shlex.split(command)
        if shutil.which(words[0]):
            return words
    raise NoCompilerError("no C++ compiler found (looked for $CXX, c++, g++, clang++)")


def fingerprint() -> str:
    """Names the sources; the library carries it, so that a stale build is never called."""
    digest = hashlib.sha256()
    for source in (Path(__file__), HEADER_READER, *sorted(SOURCES.iterdir())):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def layout() -> str:
    """The fields of call.h, listed for entry.cpp to say where the compiler put each."""
    words = []
    for name, fields in _header_reader().read().structures.items():
        words.append(f"STRUCTURE({name}, {len(fields)})")
        words += [f"FIELD({name}, {field})" for field in fields]
    return " ".join(words)


def _header_reader() -> ModuleType:
    """header.py by its path: where setup.py runs this file, there is no package to import."""
    spec = importlib.util.spec_from_file_location("kernel_header", HEADER_READER)
    if spec is None or spec.loader is None:
        raise ImportError(f"{HEADER_READER} cannot be read")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compile_to(target: Path) -> None:
    """Build the shared library at `target`, atomically: a reader sees a whole file or none."""
    cxx = compiler()
    common = COMMON if "clang" in _run([*cxx, "--version"]) else COMMON + GCC
    x86 = platform.machine().lower() in ("x86_64", "amd64")
    sets = list(INSTRUCTION_SETS) if x86 else ["generic"]
    if x86 and not _knows_bf16(cxx):
        sets.remove("avx512bf16")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".build-") as folder:
        jobs = {f"{name}.o": [*INSTRUCTION_SETS[name], f"-DSACCADE_ISA={name}"] for name in sets}
        jobs["entry.o"] = ["entry.cpp", f"-DSACCADE_FINGERPRINT={fingerprint()}"]
        jobs["entry.o"] += [f"-DSACCADE_LAYOUT={layout()}", *(["-DSACCADE_X86"] if x86 else [])]
        jobs["entry.o"] += ["-DSACCADE_AVX512BF16"] if "avx512bf16" in sets else []

        def compile_one(item: tuple[str, list[str]]) -> str:
            output, (source, *flags) = item
            path = str(Path(folder) / output)
            _run([*cxx, *common, *flags, "-c", str(SOURCES / source), "-o", path])
            return path

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(compile_one, jobs.items()))
        linked = Path(folder) / NAME
        extra = [] if sys.platform == "darwin" else ["-ldl", "-lpthread"]
        _run([*cxx, "-shared", *objects, "-o", str(linked), *extra])
        os.replace(linked, target)


def _knows_bf16(cxx: list[str]) -> bool:
    """Older compilers know AVX-512 but not its bfloat16, neither as a flag nor as a question."""
    question = 'int main() { return __builtin_cpu_supports("avx512bf16"); }'
    try:
        _run([*cxx, "-mavx512bf16", "-fsyntax-only", "-x", "c++", "-"], question)
    except NoCompilerError:
        return False
    return True


def _run(command: list[str], text: str = "") -> str:
    try:
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    except OSError as error:
        raise NoCompilerError(f"{command[0]} does not start: {error}") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line.lower()]
        reason = (lines or done.stderr.splitlines() or ["no message"])[0]
        raise NoCompilerError(f"{command[0]} failed: {reason.strip()}")
    return done.stdout

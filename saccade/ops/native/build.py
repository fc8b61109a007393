"""Compile the kernels: plain C++17, no headers but the system's, one object per instruction set.

Each instruction set has all kernels; the last one is the one before it and one more kernel.

The library ends in a seal, a line with the fingerprint of the sources and a digest of all bytes
before it. It shows whether a file was cut short or altered before the system loads it: loading a
file with a missing page would end the process. The seal is inside the file, so it stays with the
library wherever pip or a copy puts it.

Standard library only, and nothing of the package: the package's own build (setup.py) runs this file
before the package, or torch, can be imported.
"""

import hashlib
import importlib.util
import os
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
NAME = {"darwin": "kernels.dylib", "win32": "kernels.dll"}.get(sys.platform, "kernels.so")

MOST = 2**28  # bytes that are read of a file
SEAL, DIGEST = "\nsaccade kernels {}\n", 64  # how a library ends: this line, and a digest in hex

# -mtune=generic: tuned for the machine it runs on, GCC's vector code is 15-20% slower. No
# -ffast-math: it would switch the whole process to flush-to-zero and make NaN unreliable.
COMMON = ["-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-fno-math-errno"]
GCC = [
    "-fno-tree-loop-distribute-patterns",  # storing a few zeros is faster than calling memset
    "-fno-predictive-commoning",  # it takes registers from a loop's sums
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
    "neon": ["kernels.cpp"],
    "neonbf16": ["sasa_half.cpp", "-march=armv8.2-a+bf16"],
}
# By processor: the sets that every compiler can build, and the one that needs a newer compiler.
X86, ARM = ("x86_64", "amd64"), ("aarch64", "arm64")
KINDS = {
    **dict.fromkeys(X86, (["generic", "avx2", "avx512"], "avx512bf16")),
    **dict.fromkeys(ARM, (["generic", "neon"], "neonbf16")),
}
# The macro that tells entry.cpp that a set was built.
KNOWN = {"avx512": "X86", "neon": "ARM", "avx512bf16": "AVX512BF16", "neonbf16": "NEONBF16"}


class NoCompilerError(RuntimeError):
    """There is no compiler, or it fails; the message says which."""


class DamagedError(RuntimeError):
    """A file that is not a library as it was built; the message says what is wrong with it."""


def compiler() -> list[str]:
    """The C++ compiler as a command: $CXX, else what the system calls c++, g++ or clang++."""
    for command in filter(None, (os.environ.get("CXX"), "c++", "g++", "clang++")):
        try:
            words = shlex.split(command)
        except ValueError as error:
            raise NoCompilerError(
                f"$CXX is no command ({error}): {command!r}; set it to a compiler, such as g++"
            ) from None
        if words and shutil.which(words[0]):
            return words
    raise NoCompilerError("no C++ compiler found (looked for $CXX, c++, g++, clang++)")


def fingerprint() -> str:
    """Names the sources; the library carries it, so that a stale build is never called."""
    digest = hashlib.sha256()
    for source in (Path(__file__), HEADER_READER, *sorted(SOURCES.iterdir())):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def layout() -> str:
    """A C++ list of call.h's fields, by which entry.cpp reports where the compiler put each."""
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
    if target.is_dir():
        raise IsADirectoryError(f"{target} is a folder; remove it to have the kernels built there")
    cxx, mark = compiler(), fingerprint()
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".build-") as folder:
        objects = compile_objects(Path(folder), cxx, instruction_sets(cxx))
        linked = Path(folder) / target.name
        _run([*cxx, "-shared", *objects, "-o", str(linked), *libraries(cxx)])
        seal(linked, mark)
        os.replace(linked, target)


def triple(cxx: list[str]) -> str:
    """What the compiler builds for: x86_64-linux-gnu, aarch64-linux-gnu, x86_64-pc-windows-msvc."""
    return _run([*cxx, "-dumpmachine"]).strip().lower()


def instruction_sets(cxx: list[str]) -> list[str]:
    """Those that the compiler can build for its kind of processor."""
    machine = triple(cxx)
    sets, newest = KINDS.get(machine.partition("-")[0], (["generic"], ""))
    if "mingw" in machine and not _is_clang(cxx):
        return ["generic"]  # GCC for Windows aligns its stack to 16 bytes, whatever it spills there
    return [*sets, newest] if newest and _knows(cxx, newest) else sets


def libraries(cxx: list[str]) -> list[str]:
    """What programs with threads are linked with."""
    return ["-lpthread"] if "linux" in triple(cxx) else []


def compile_objects(
    folder: Path, cxx: list[str], sets: list[str], flags: tuple[str, ...] = ()
) -> list[str]:
    """Compile the kernels of these instruction sets, and what calls them; `flags` come last."""
    common = COMMON if _is_clang(cxx) else COMMON + GCC
    if "windows-msvc" in triple(cxx):  # all code is position-independent there; no flag for it
        common = [flag for flag in common if flag != "-fPIC"]
    jobs = {f"{name}.o": [*INSTRUCTION_SETS[name], f"-DSACCADE_ISA={name}"] for name in sets}
    jobs["entry.o"] = ["entry.cpp", f"-DSACCADE_LAYOUT={layout()}"]
    jobs["entry.o"] += [f"-DSACCADE_{KNOWN[name]}" for name in sets if name in KNOWN]
    jobs["onnxruntime.o"] = ["onnxruntime.cpp"]

    def compile_one(item: tuple[str, list[str]]) -> str:
        output, (source, *own) = item
        path = str(folder / output)
        _run([*cxx, *common, *own, *flags, "-c", str(SOURCES / source), "-o", path])
        return path

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(compile_one, jobs.items()))


def seal(path: Path, mark: str) -> None:
    """Append to a library its seal: `mark`, the fingerprint of its sources, and a digest."""
    with path.open("r+b") as file:
        line = SEAL.format(mark).encode()
        digest = hashlib.sha256(file.read() + line).hexdigest()
        file.write(line + digest.encode())


def sealed(path: Path) -> str:
    """The fingerprint of the sources of a whole library; DamagedError if it is not whole."""
    if not path.is_file():
        raise DamagedError("it is a folder, not a file" if path.is_dir() else "it is no plain file")
    try:
        with path.open("rb") as file:
            content = file.read(MOST + 1)
    except OSError as error:
        raise DamagedError(f"it cannot be read ({error.strerror})") from None
    if len(content) > MOST:
        raise DamagedError("it is larger than any library of these sources")
    content, digest = content[:-DIGEST], content[-DIGEST:]
    line = content[-len(SEAL.format("0" * 16)) :].decode(errors="replace")
    mark = line[-17:-1]
    if line != SEAL.format(mark):
        raise DamagedError("it is cut short, or of a version before 0.1")
    if hashlib.sha256(content).hexdigest().encode() != digest:
        raise DamagedError("its bytes are not those that were built")
    return mark


def _knows(cxx: list[str], name: str) -> bool:
    """Older compilers know AVX-512 and NEON, but not their bfloat16 instructions."""
    flags = [flag for flag in INSTRUCTION_SETS[name] if flag.startswith("-")]
    try:
        _run([*cxx, *flags, "-fsyntax-only", "-x", "c++", "-"], "int main() {}")
    except NoCompilerError:
        return False
    return True


def _is_clang(cxx: list[str]) -> bool:
    return "clang" in _run([*cxx, "--version"])


def _run(command: list[str], text: str = "") -> str:
    try:
        process = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    except OSError as error:
        raise NoCompilerError(f"{command[0]} does not start: {error}") from None
    if process.returncode:
        lines = [line for line in process.stderr.splitlines() if "error" in line.lower()]
        reason = (lines or process.stderr.splitlines() or ["no message"])[0]
        raise NoCompilerError(f"{command[0]} failed: {reason.strip()}")
    return process.stdout

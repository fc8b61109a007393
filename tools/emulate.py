"""Random calls of the C++ kernels on another processor, in an emulator.

    python tools/emulate.py                                  ARM (64 bits), by qemu-user
    python tools/emulate.py --compiler "clang++ --target=..." --runner wine64

Needs a compiler for that processor and an emulator (Debian: g++-aarch64-linux-gnu, qemu-user). The
kernels of all its instruction sets are linked with sanitize.cpp, which needs no Python there and
compares each result with its equation in float64. Exit code 1 after findings.
"""

import argparse
import shlex
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from saccade.ops.native import build

DRIVER = Path(__file__).with_name("sanitize.cpp")


def program(folder: Path, cxx: list[str], sets: list[str], link: list[str]) -> Path:
    """The driver with the kernels of these instruction sets inside, in one file."""
    driver, linked = str(folder / "driver.o"), folder / "driver.exe"
    own = ["-std=c++17", "-O1", "-DGUARDED", "-I", str(build.SOURCES)]
    with ThreadPoolExecutor(1) as pool:
        compiling = pool.submit(run, [*cxx, *own, "-c", str(DRIVER), "-o", driver])
        objects = build.compile_objects(folder, cxx, sets)
        compiling.result()
    run([*cxx, "-static", driver, *objects, "-o", str(linked), *build.libraries(cxx), *link])
    return linked


def run(command: list[str]) -> None:
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        raise build.NoCompilerError(f"{command[0]} failed: {result.stderr.strip()[:2000]}")


def main() -> int:
    """Build, run, and say how many calls were wrong."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--compiler", default="aarch64-linux-gnu-g++")
    parser.add_argument("--runner", default="qemu-aarch64 -cpu max")
    parser.add_argument("--link", default="", help="further words for the linker")
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--keep", type=Path, help="keep the program in this folder, or use it there"
    )
    options = parser.parse_args()
    cxx, started = shlex.split(options.compiler), time.monotonic()
    sets = build.instruction_sets(cxx)
    with tempfile.TemporaryDirectory(prefix="emulate-") as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "driver.exe"
        if not path.is_file():
            path = program(folder, cxx, sets, shlex.split(options.link))
        print(
            f"{build.triple(cxx)}: {', '.join(sets)}, built in {time.monotonic() - started:.0f} s"
        )
        wrong = 0
        for name in sets:
            words = [*shlex.split(options.runner), str(path), options.seed, 0, options.calls, name]
            result = subprocess.run([*map(str, words)], capture_output=True, text=True)
            lines = result.stdout.splitlines()
            findings = [line for line in lines if line.startswith("wrong: ")]
            calls = sum(line.startswith("call ") for line in lines)
            if result.returncode and not findings:
                findings = [f"{lines[-1:]} ended with {result.returncode}: {result.stderr[-500:]}"]
            print(
                *findings,
                f"{name}: {len(findings)} findings in {calls} calls",
                sep="\n",
                flush=True,
            )
            wrong += len(findings) + (calls < options.calls)
    print(f"{time.monotonic() - started:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

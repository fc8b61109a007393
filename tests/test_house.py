"""Rules of the house that no type checker keeps."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "saccade"
FILES = sorted(SOURCE.rglob("*.py"))

# What each part may import of the package, beside itself.
MAY_IMPORT = {
    "words": set(),
    "version": set(),
    "paper": set(),
    "ops": set(),
    "weights": set(),
    "layers": {"ops"},
    "models": {"layers", "paper", "weights", "words"},
    "tasks": {"models", "layers", "paper", "words"},
    "recipes": {"paper", "words"},
    "data": {"recipes", "words"},
    "engine": {"tasks", "data", "recipes", "models", "paper", "words", "version"},
    "count": {"models", "tasks", "paper"},
    "bench": {"models", "tasks", "layers", "ops", "words", "version"},
    "view": {"models", "tasks", "layers"},
    "export": {"models", "tasks", "words"},
    "serve": {"count", "data", "engine", "layers", "models", "tasks", "view", "weights"},
}

# Tests over all models: what others do to them, their derivatives, traces, counts, timm's protocol.
OF_ALL_MODELS = ("wrapped", "attributed", "derivatives", "traced", "flops", "timm")


def part(path):
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported(path):
    """The parts of saccade that a file imports, wherever in the file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("saccade"):
            names = (
                [node.module]
                if node.module != "saccade"
                else [f"saccade.{n.name}" for n in node.names]
            )
        elif isinstance(node, ast.Import):
            names = [n.name for n in node.names if n.name.startswith("saccade.")]
        else:
            continue
        yield from (name.split(".")[1] for name in names)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_go_one_way(path):
    here = part(path)
    if here in ("__init__", "__main__", "cli"):
        return
    assert here in MAY_IMPORT, f"say in this test what saccade/{here} may import"
    assert set(imported(path)) - {here} <= MAY_IMPORT[here]


def test_tests_mirror_the_source():
    """A file has its test at the same place; its word or its folder may stand for it.

    So `sasa_tiles.py` may be tested with `sasa.py`, and `native/build.py` in `test_native.py`.
    What holds for all layers or all models, seen from outside, mirrors no file.
    """
    tests = {p.relative_to(ROOT / "tests") for p in (ROOT / "tests").rglob("test_*.py")}
    used = {Path(f"test_{name}.py") for name in ("house", "readme", "weights")}
    used |= {Path("layers", f"test_{name}.py") for name in ("wrapped", "perturbed")}
    used |= {Path("models", f"test_{name}.py") for name in OF_ALL_MODELS}
    for path in FILES:
        if path.name in ("__init__.py", "__main__.py", "version.py"):
            continue
        here = path.relative_to(SOURCE)
        stems = path.stem, path.stem.split("_")[0], path.parent.name
        mirrors = {here.with_name(f"test_{stem}.py") for stem in stems}
        assert mirrors & tests, f"{here} has no test"
        used |= mirrors
    assert tests - used == set(), "tests of no source file"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_files_say_what_they_are_for_and_stay_short(path):
    text = path.read_text()
    assert ast.get_docstring(ast.parse(text)), "a module starts with what it is for"
    assert len(text.splitlines()) <= 400, "one idea a file"


def test_importing_is_silent():
    run = subprocess.run(
        [sys.executable, "-W", "error::UserWarning:saccade", "-c", "import saccade"],
        capture_output=True, text=True, cwd=ROOT, check=True,
    )  # fmt: skip
    assert run.stdout == run.stderr == ""


def test_nothing_names_a_machine():
    listed = subprocess.run(["git", "ls-files"], capture_output=True, text=True, cwd=ROOT)
    if listed.returncode:
        pytest.skip("not a git checkout: the list of files is not known")
    pattern = re.compile(r"(^|[\s\"'(=])/(root|home|work|tmp/[a-z])\b")
    for name in listed.stdout.split():
        path = ROOT / name
        if path.suffix in (".py", ".md", ".toml", ".yaml") and path.is_file():
            assert not pattern.search(path.read_text()), name


def test_the_code_is_clean():
    for command in (["ruff", "check", "."], ["ruff", "format", "--check", "."]):
        run = subprocess.run(
            [sys.executable, "-m", *command], capture_output=True, text=True, cwd=ROOT
        )
        assert run.returncode == 0, run.stdout + run.stderr


def test_the_types_are_clean():
    run = subprocess.run(
        [sys.executable, "-m", "ty", "check", "--python", sys.prefix, "saccade"],
        capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr

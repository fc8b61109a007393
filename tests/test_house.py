"""Rules of the house that no type checker keeps."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fast import FAST

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "saccade"
FILES = sorted(SOURCE.rglob("*.py"))

# What each part may import of the package, beside itself. `paper` here is its measures; the Claim
# itself (`claim`) is read by all and reads nothing.
MODELS = {
    "claim", "files", "outside", "spelling", "version", "weights", "models", "layers", "ops",
}  # fmt: skip
TASKS = MODELS | {"recipes", "data", "draw", "tasks"}
ENGINE = TASKS | {"engine"}
MAY_IMPORT = {
    "files": set(),
    "spelling": set(),
    "version": set(),
    "claim": set(),
    "outside": set(),
    "samples": set(),
    "weights": set(),
    "ops": set(),
    "layers": {"ops"},
    "models": MODELS,
    "recipes": {"claim", "spelling"},
    "data": {"files", "recipes", "spelling"},
    "draw": set(),
    "tasks": TASKS,
    "engine": ENGINE,
    "infer": ENGINE,
    "report": ENGINE,
    "bench": MODELS | {"tasks", "export", "draw"},
    "view": MODELS | {"tasks", "draw"},
    "export": ENGINE,
    "study": ENGINE | {"report"},
    "paper": ENGINE | {"report", "study"},
    "serve": ENGINE | {"view", "paper", "samples"},
    "face": ENGINE | {"infer", "report", "view"},
}

# Tests over all models: what others do to them, their derivatives, traces, counts, timm's protocol.
OF_ALL_MODELS = ("wrapped", "attributed", "derivatives", "traced", "flops", "timm")


def name_of(path):
    """`saccade/data/boxes/coco.py` as `saccade.data.boxes.coco`; a package by its own name."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in FILES}


def part(module):
    """The part of the package that a module belongs to."""
    if module in ("saccade.paper", "saccade.paper.claim"):
        return "claim"
    return module.split(".")[1] if "." in module else "__init__"


def imported(path):
    """The modules of saccade that a file imports, wherever in the file."""
    modules = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports name the whole module"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            modules |= {name if name in MODULES else node.module for name in names}
        elif isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
    return {module for module in modules if module in MODULES}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_go_one_way(path):
    here = part(name_of(path))
    if here in ("__init__", "__main__", "cli"):
        return
    assert here in MAY_IMPORT, f"say in this test what saccade/{here} may import"
    assert {part(module) for module in imported(path)} - {here} <= MAY_IMPORT[here]


def needs(module):
    """The modules that python runs for this one: those it imports, and the packages they lie in.

    A package that the module itself lies in is left out: python is running it already.
    """
    inside = {module.rsplit(".", i)[0] for i in range(module.count(".") + 1)}
    for other in imported(MODULES[module]):
        packages = {other.rsplit(".", i)[0] for i in range(other.count(".") + 1)}
        yield from packages - inside


def cycles(graph):
    """Sets of modules that import each other, directly or not (Tarjan)."""
    number, low, stack, circles = {}, {}, [], []

    def visit(module):
        number[module] = low[module] = len(number)
        stack.append(module)
        for other in graph[module]:
            if other not in number:
                visit(other)
            if other in stack:
                low[module] = min(low[module], low[other])
        if low[module] == number[module]:
            circle = stack[stack.index(module) :]
            del stack[stack.index(module) :]
            if len(circle) > 1:
                circles.append(sorted(circle))

    for module in graph:
        if module not in number:
            visit(module)
    return circles


def test_no_imports_go_in_circles():
    """Not inside folders either, and imports inside functions count."""
    graph = {module: set(needs(module)) for module in MODULES}
    assert cycles(graph) == []


def test_a_circle_is_seen():
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [["b", "c"]]


def test_no_two_classes_share_a_name():
    places = {}
    for module, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(module)
    assert {name: there for name, there in places.items() if len(there) > 1} == {}


PARTICIPLES = {"found", "shown", "kept", "asked", "told", "worn", "given", "made", "wanted"}
IN_SOURCE = {
    "begun", "called", "done", "gone", "heard", "listed", "looked", "lost", "meant", "noted",
    "opened", "refused", "seen", "spoken", "taken", "torn", "tried", "used", "written",
}  # fmt: skip


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_names_say_what_they_hold(path):
    """Not what happened to it: `image_paths`, not `found`."""
    assert unspoken(path, PARTICIPLES | IN_SOURCE) == []


@pytest.mark.parametrize("folder", ["tests", "benchmarks"])
def test_names_of_scripts_and_tests_do_too(folder):
    assert {str(p): unspoken(p) for p in (ROOT / folder).rglob("*.py") if unspoken(p)} == {}


def unspoken(path, participles=frozenset(PARTICIPLES)):
    """Names that a file gives to something and that say only what happened to it."""
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            continue  # a name from elsewhere: hypothesis has its `given`
        words = (getattr(node, field, None) for field in ("id", "arg", "attr", "name"))
        name = next((word for word in words if isinstance(word, str)), "")
        if name.strip("_") in participles and not isinstance(node, ast.alias):
            names.append(f"line {node.lineno}: {name!r} holds what?")
    return names


def test_tests_mirror_the_source():
    """A file has its test at the same place; its word or its folder may stand for it.

    So `sasa_tiles.py` may be tested with `sasa.py`, and `native/build.py` in `test_native.py`.
    What holds for all layers or all models, seen from outside, mirrors no file.
    """
    tests = {p.relative_to(ROOT / "tests") for p in (ROOT / "tests").rglob("test_*.py")}
    used = {
        Path(f"test_{name}.py") for name in ("house", "readme", "weights", "contributing", "docs")
    }
    used.add(Path("tasks/test_outside.py"))  # a task that is no part of saccade
    used.add(Path("paper/test_tables.py"))  # the papers' tables, as printed
    used.add(Path("engine/test_papers.py"))  # the papers' recipes, as the engine runs them
    used.add(Path("test_campaign.py"))  # tools/campaign
    used.add(Path("test_instructions.py"))  # tools/instructions.py
    used.add(Path("test_workflows.py"))  # .github/workflows
    used.add(Path("ops/triton/test_random.py"))  # all of Triton's kernels, by saccade.bench
    used.add(Path("ops/native/test_products.py"))  # src/product_tasks.h
    used.add(Path("test_type_checks.py"))  # tests/type_checks.py
    used.add(Path("test_released.py"))  # files that earlier versions wrote
    used.add(Path("models/test_transformers.py"))  # saccade.models as transformers loads them
    used.add(Path("test_attack.py"))  # what a stranger's files may do to any command
    used |= {Path("layers", f"test_{name}.py") for name in ("wrapped", "perturbed", "sizes")}
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
    assert len(text.splitlines()) <= 500, "one idea a file: usually 400 lines, 500 at most"


def test_the_fast_tier_names_files_that_exist():
    assert [place for place in FAST if not (ROOT / place).exists()] == []


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
    # F821, undefined names, is off for jaxtyping's shape strings, which tests do not have.
    undefined = ["ruff", "check", "--isolated", "--select", "F821", "tests"]
    for command in (["ruff", "check", "."], ["ruff", "format", "--check", "."], undefined):
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

"""Whether saccade runs with the lowest versions that it asks for, and with the newest.

    python tools/floors.py lowest            a new environment with the lowest direct versions
    python tools/floors.py newest            the same with the newest of all
    python tools/floors.py lowest --beside   only what is no torch, before this environment's own

The environment is made by uv in a temporary folder (about 6 GB with torch; `--place` says where),
the smoke suite runs in it, and it is removed; with `--keep FOLDER` it stays there, and the next
call takes it as it is. `--beside` takes a minute: the lowest versions of the other direct
dependencies, with what they need, go into a folder that this python looks into first.
"""

import argparse
import contextlib
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = ("detection", "export", "web", "viz", "flax", "log", "hub")
TESTING = ("pytest>=8.4", "pytest-xdist>=3.8", "beartype>=0.22", "httpx>=0.28", "hypothesis>=6.130")
HEAVY = ("torch", "torchvision")
OF_TORCH = re.compile(r"(torch|torchvision|triton|nvidia-[\w-]+|cuda-[\w-]+)==")
SMOKE = (  # a few tests for each library that is called; two minutes of one core
    "tests/cli/test_command.py", "tests/data/boxes/test_boxes.py", "tests/data/test_table.py",
    "tests/data/convert/test_convert.py", "tests/data/test_datasets.py",
    "tests/engine/test_train.py::test_a_killed_run_goes_on_bit_for_bit",
    "tests/models/test_flax.py", "tests/models/test_saved.py",
    "tests/models/test_timm.py::test_features_of_all_stages",
    "tests/models/test_timm.py::test_the_head_can_be_taken_apart",
    "tests/models/test_transformers.py",
    "tests/report/test_tensorboard.py", "tests/report/test_write.py::test_everything_is_written",
    "tests/serve/test_limits.py::test_other_sites_may_not_send",
    "tests/serve/test_limits.py::test_uploads_share_a_budget",
    "tests/serve/test_serve.py::test_the_interface_is_documented",
    "tests/serve/test_serve.py::test_the_answer_is_as_documented",
    "tests/tasks/detect/test_average_precision.py",
    "tests/tasks/detect/test_detr.py::test_losses_are_transformers_own",
    "tests/tasks/detect/test_retinanet.py::test_losses_are_torchvisions",
    "tests/tasks/segment/test_overlap.py",
    "tests/export/test_export.py::test_onnx_and_torch_files_at_any_size",
    "tests/test_released.py",
)  # fmt: skip


def main() -> int:
    """Make the environment, run the suite in it, and remove it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("which", choices=["lowest", "newest"])
    parser.add_argument("--beside", action="store_true", help="all but torch, in a folder")
    parser.add_argument("--place", help="where the temporary folder is made")
    parser.add_argument("--keep", help="a folder in which the environment stays for another time")
    parser.add_argument("tests", nargs="*", default=SMOKE, help="instead of the smoke suite")
    options = parser.parse_intermixed_args()
    with contextlib.ExitStack() as ends:
        place = options.keep or ends.enter_context(
            tempfile.TemporaryDirectory(dir=options.place, prefix="floors-")
        )
        build = beside if options.beside else whole
        python, more = build(Path(place), options.which)
        environment = {**os.environ, **more}
        print(versions(python, environment), flush=True)
        suite = [python, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider"]
        return subprocess.run([*suite, *options.tests], cwd=ROOT, env=environment).returncode


def whole(place: Path, which: str) -> tuple[str, dict[str, str]]:
    """An environment of its own with saccade and all that it asks for."""
    resolution = "lowest-direct" if which == "lowest" else "highest"
    expected = [f"{ROOT}[{','.join(EXTRAS)}]", *TESTING]
    python = str(place / which / "bin" / "python")
    mark, project = place / f"{which}.toml", (ROOT / "pyproject.toml").read_text()
    if not mark.exists() or mark.read_text() != project:  # not whole, or of other versions
        place.mkdir(parents=True, exist_ok=True)
        uv("venv", "--clear", "--python", sys.executable, str(place / which))
        uv("pip", "install", "--python", python, "--resolution", resolution, *expected)
        mark.write_text(project)
    return python, {}


def beside(place: Path, which: str) -> tuple[str, dict[str, str]]:
    """A folder with the lowest (or newest) direct versions of all but torch, and what they need."""
    resolution = "lowest-direct" if which == "lowest" else "highest"
    needs, pins, target = place / "needs.in", place / "needs.txt", str(place / "packages")
    torch = [f"{name}=={version(name)}".partition("+")[0] for name in HEAVY]
    needs.write_text("\n".join([*direct(), *torch]))
    at = ["--python", sys.executable]
    uv("pip", "compile", "-q", *at, "--resolution", resolution, "-o", str(pins), str(needs))
    lines = [line for line in pins.read_text().splitlines() if re.match(r"\w", line)]
    pins.write_text("\n".join(line for line in lines if not OF_TORCH.match(line)))
    uv("pip", "install", "-q", *at, "--no-deps", "--target", target, "-r", str(pins))
    return sys.executable, {"PYTHONPATH": os.pathsep.join([str(ROOT), target])}


def direct() -> list[str]:
    """What pyproject.toml asks for, without torch and what belongs to it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needs = [*project["dependencies"]]
    for extra in EXTRAS:
        needs += project["optional-dependencies"][extra]
    return [need for need in needs if name(need) not in HEAVY]


def name(need: str) -> str:
    return re.split(r"[\[<>=!~ ]", need)[0]


def uv(*words: str) -> None:
    """Run uv, which pip installs; it looks where pip is set to look."""
    settings = {"UV_DEFAULT_INDEX": _of_pip("index-url"), "UV_FIND_LINKS": _of_pip("find-links")}
    environment = {**{key: value for key, value in settings.items() if value}, **os.environ}
    subprocess.run([sys.executable, "-m", "uv", *words], check=True, env=environment)


def _of_pip(setting: str) -> str:
    command = [sys.executable, "-m", "pip", "config", "get", f"global.{setting}"]
    return subprocess.run(command, text=True, capture_output=True).stdout.strip()


def versions(python: str, environment: dict[str, str]) -> str:
    """The versions that the suite will run with."""
    names = [*HEAVY, *map(name, direct())]
    code = (
        "import sys; from importlib.metadata import version\n"
        "print(', '.join(f'{n} {version(n)}' for n in sys.argv[1:]))"
    )
    run = [python, "-c", code, *names]
    return subprocess.run(
        run, text=True, check=True, env=environment, stdout=subprocess.PIPE
    ).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())

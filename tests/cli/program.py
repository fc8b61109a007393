"""The program `saccade` as an installation has it, run in a process of its own."""

import os
import resource
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """\
#!{python}
import atexit, sys
sys.path.insert(0, {root!r})
from saccade.cli import main
if "SHOW_TORCH" in __import__("os").environ:
    atexit.register(lambda: print("torch" in sys.modules, file=sys.stderr))
main()
"""


def installed(place: Path) -> Path:
    """The script that pip would write."""
    place.mkdir(parents=True, exist_ok=True)
    script = place / "saccade"
    script.write_text(SCRIPT.format(python=sys.executable, root=str(ROOT)))
    script.chmod(0o755)
    return script


def called(*words, **more):
    """A program's outcome, and the CPU seconds that it took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = subprocess.run([*map(str, words)], capture_output=True, text=True, cwd=ROOT, **more)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return result, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, **more}

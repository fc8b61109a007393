"""A disk that is full at any file of a run: one sentence, and nothing lost once there is room."""

import contextlib
import os
import random
import subprocess
from collections.abc import Generator
from pathlib import Path

from tools.campaign.runs import RECIPES, Job, Plan, Yard, check_equal, check_standing
from tools.campaign.verdict import Finding, Outcome

ROOM = 512 * 2**20


class Disks:
    """A small tmpfs where that may be mounted, else (and every third time) a limit on files."""

    def __init__(self, place: Path):
        self.yard = Yard(place)
        self.mounts = os.geteuid() == 0 and _can_mount(place / "try")

    def close(self) -> None:
        return

    def trial(self, chance: random.Random, folder: Path) -> Outcome:
        task = chance.choice(list(RECIPES))
        unbroken, _ = self.yard.reference(task, task, RECIPES[task])
        sizes = [path.stat().st_size for path in unbroken.rglob("*") if path.is_file()]
        if self.mounts and chance.random() < 0.67:
            place = folder / "disk"
            size = int(chance.uniform(16384, 1.3 * sum(sizes)))
            with _mounted(place, size):
                what = f"{task} on a disk of {size} bytes"
                message = self.filled(task, place / "run", Plan(), folder, what, place)
                check_equal(place / "run", unbroken)
        else:
            limit = int(chance.uniform(1, 1.1 * max(sizes)) ** chance.choice((1, 0.7)))
            what = f"{task} with files of {limit} bytes at most"
            message = self.filled(task, folder / "run", Plan(limit=limit), folder, what)
            check_equal(folder / "run", unbroken)
        return Outcome(bool(message), f"{what}: {message}", int(bool(message)))

    def filled(
        self, task: str, out: Path, plan: Plan, folder: Path, what: str, disk: Path | None = None
    ) -> str:
        """Train until the disk is full, make room, and go on; gives what was said."""
        words = RECIPES[task], str(self.yard.images(task)), str(out)
        job = Job(folder / "log", "train", *words, plan=plan)
        message = ""
        if job.end() != 0:
            message = job.said().strip()
            if "could not write" not in message:
                raise Finding(f"{what}: it is not told what could not be written\n{message}")
            check_standing(out, 0)
            if disk is not None:
                subprocess.run(["mount", "-o", f"remount,size={ROOM}", str(disk)], check=True)
            again = "resume" if (out / "recipe.json").exists() else "train"
            job = Job(folder / "log", again, *((str(out),) if again == "resume" else words))
            if job.end() != 0:
                raise Finding(f"{what}: after there is room\n{job.said()}\nbefore: {message}")
        return message


@contextlib.contextmanager
def _mounted(place: Path, size: int) -> Generator[None]:
    place.mkdir(exist_ok=True)
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)],
        check=True, capture_output=True,
    )  # fmt: skip
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True, capture_output=True)


def _can_mount(place: Path) -> bool:
    try:
        with _mounted(place, 65536):
            return True
    except (OSError, subprocess.CalledProcessError):
        return False

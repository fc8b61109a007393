"""SIGKILL at any moment, again and again, and `saccade resume` after each."""

import random
import signal
from pathlib import Path

from tools.campaign import runs
from tools.campaign.runs import RECIPES, Job, Plan, Yard, check_equal, check_standing, pause
from tools.campaign.verdict import Finding, Outcome

CALLS = {"replace": 24, "fsync": 60, "open": 60}  # about as many as a run makes
MOST = 12  # kills of one run


class Kills:
    """Runs of three tasks, most of a tiny network, each killed up to twelve times.

    In the end there must be no trace of that.

    Half of the kills come at a random moment, half before or after a random one of the calls that
    write a file: its opening, its way to the disk, its new name.
    """

    def __init__(self, place: Path):
        self.yard = Yard(place)

    def close(self) -> None:
        return

    def trial(self, chance: random.Random, folder: Path) -> Outcome:
        task = chance.choices(list(RECIPES), runs.WEIGHTS)[0]
        recipe, out = RECIPES[task], folder / "run"
        unbroken, seconds = self.yard.reference(task, task, recipe)
        kills, saved, history = 0, 0, []
        expected = chance.randint(1, MOST)
        while True:
            plan = Plan()
            if kills < expected and chance.random() < 0.5:
                call = chance.choice(list(CALLS))
                n = chance.randint(1, chance.choice((3, 10, CALLS[call])))
                plan = Plan(call, n, chance.random() < 0.5)
            if (out / "recipe.json").exists():
                job = Job(folder / "log", "resume", str(out), plan=plan)
            else:
                words = recipe, str(self.yard.images(task)), str(out)
                job = Job(folder / "log", "train", *words, plan=plan)
            if kills < expected and not plan.call:
                pause(chance, job, seconds * chance.choice((0.4, 0.7, 1.0)))
                job.kill()
            code = job.end()
            history.append(f"{plan.call or 'moment'} {plan.n} -> {code}")
            if code == 0:
                break
            if code != -signal.SIGKILL:
                raise Finding(f"{task}, {history}: ended with {code}\n{job.said()}")
            kills += 1
            try:
                saved = check_standing(out, saved)
            except Finding as error:
                raise Finding(f"{task}, {history}: {error}") from error
        try:
            check_equal(out, unbroken)
        except Finding as error:
            raise Finding(f"{task}, {history}: {error}") from error
        return Outcome(False, f"{task}, {history}", kills)

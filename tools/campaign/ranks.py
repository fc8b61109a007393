"""One of two processes is killed: the other ends with a sentence, and the run goes on."""

import random
import signal
import time
from pathlib import Path

from saccade.recipes.recipe import change
from tools.campaign.runs import RECIPES, Job, Yard, check_equal, check_standing, pause
from tools.campaign.verdict import Finding, Outcome, check_end

MOST = 6  # kills of one run
LAUNCHER = 30  # seconds after which a launcher would end the others itself


class Ranks:
    """Runs over gloo, copied and sharded, up to six kills each."""

    def __init__(self, place: Path):
        self.yard = Yard(place)

    def close(self) -> None:
        return

    def trial(self, chance: random.Random, folder: Path) -> Outcome:
        shard, task = chance.random() < 0.3, chance.choice(("classify", "tiny", "tiny"))
        recipe, out = change(RECIPES[task], **{"loop.shard": shard}), folder / "run"
        name = f"{task} {'sharded' if shard else 'copied'}"
        unbroken, seconds = self.yard.reference(name, task, recipe, ranks=2)
        kills, saved, history, expected = 0, 0, [], chance.randint(1, MOST)
        while True:
            if (out / "recipe.json").exists():
                job = Job(folder / "log", "resume", str(out), ranks=2)
            else:
                words = recipe, str(self.yard.images(task)), str(out)
                job = Job(folder / "log", "train", *words, ranks=2)
            if kills < expected:
                pause(chance, job, 0.9 * seconds)
                if self.killed(job, chance.randrange(2), history):
                    kills += 1
                    try:
                        saved = check_standing(out, saved)
                    except Finding as error:
                        raise Finding(f"{name}, {history}: {error}") from error
                    continue
            codes = job.wait()
            if any(codes):
                raise Finding(f"{name}, {history}: ended with {codes}\n{job.said()}{job.said(1)}")
            break
        try:
            check_equal(out, unbroken)
        except Finding as error:
            raise Finding(f"{name}, {history}: {error}") from error
        return Outcome(False, f"{name}, {history}", kills)

    def killed(self, job: Job, rank: int, history: list[str]) -> bool:
        """Kill one rank and judge how the other ends; False if the run was over already."""
        one, other = job.processes[rank], job.processes[1 - rank]
        one.kill()
        one.join()
        if one.exitcode != -signal.SIGKILL:
            return False
        began = time.monotonic()
        other.join(LAUNCHER)
        waited = time.monotonic() - began
        trained = (job.said(1 - rank), other.exitcode)
        if other.exitcode is None:  # it waits for the other to join: a launcher's to end
            job.kill()
        elif other.exitcode > 0:
            check_end(job.words, other.exitcode, trained[0])
        elif other.exitcode < 0:
            raise Finding(f"{history}: the other rank ended with {other.exitcode}\n{trained[0]}")
        history.append(f"rank {rank}, the other ended with {other.exitcode} in {waited:.1f} s")
        return True

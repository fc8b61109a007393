"""Which attention learns best at half a million parameters, beside a convolution of that size?

    python benchmarks/nanos.py FOLDER [--recipe scratch] [--seeds 3] [--jobs 2] [--out runs/nanos]
        [--set schedule.epochs=10 model.start=runs/others/{model}-{seed} ...]

Trains linglo_nano, qna_nano, sasa_nano and sasa_nano_conv by one recipe, a few seeds each, and
puts them side by side (mean and sd over the seeds; compare.png). Each run has one thread, `--jobs`
of them go at once. It may be broken off: finished runs are kept and begun ones go on.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

MODELS = ("linglo_nano", "qna_nano", "sasa_nano", "sasa_nano_conv")


def saccade(*words, **settings):
    command = [sys.executable, "-m", "saccade", *map(str, words)]
    return subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, **settings)


def begun(options, model, seed):
    """The run of one model and seed, where it is not finished: started, or gone on with."""
    folder = options.out / f"{model}-{seed}"
    if (folder / "done").exists():
        return None
    words = ["resume", folder] if (folder / "steps.jsonl").exists() else [
        "train", options.recipe, "--data", options.folder, "--out", folder, "--set",
        f"model.name={model}", f"loop.seed={seed}", "data.workers=0",
        *(word.format(model=model, seed=seed) for word in options.set),
    ]  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    log = open(folder / "log.txt", "a")  # noqa: SIM115  (the child's, until it ends)
    return folder, saccade(*words, stdout=log, stderr=subprocess.STDOUT)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--recipe", default="scratch")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("runs/nanos"))
    parser.add_argument("--set", nargs="*", default=[])
    options = parser.parse_args()
    waiting = [(model, seed) for seed in range(options.seeds) for model in MODELS]
    going = []
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # to end the runs as Ctrl-C does
    try:
        while waiting or going:
            while waiting and len(going) < options.jobs:
                job = begun(options, *waiting.pop(0))
                if job is not None:
                    going.append(job)
                    print(f"{time.strftime('%H:%M')} {job[0].name}", flush=True)
            for folder, job in list(going):
                if job.poll() is not None:
                    going.remove((folder, job))
                    if job.returncode:
                        raise SystemExit(f"{folder} failed; see {folder / 'log.txt'}")
                    (folder / "done").touch()
            time.sleep(1)
    except BaseException:
        for _, job in going:
            job.terminate()
            job.wait()
        raise
    folders = [options.out / f"{model}-{seed}" for model in MODELS for seed in range(options.seeds)]
    saccade("report", *folders, "--out", options.out / "compare.png").wait()


if __name__ == "__main__":
    main()

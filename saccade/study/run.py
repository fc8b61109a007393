"""Train a study's grid: every setting with every seed; finished runs are skipped."""

import platform
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from saccade import files
from saccade.engine import session
from saccade.engine.lock import LockedError
from saccade.recipes.recipe import Recipe, change
from saccade.report.summary import Summary, differences
from saccade.study.grid import Study
from saccade.study.result import SeedResult, SettingResult, StudyResult, fingerprint

Say = Callable[[str], None]


def folder_of(out: Path, key: str, seed: int) -> Path:
    """Where the run of a setting and a seed lies."""
    return out / key / f"seed-{seed}"


def finished(folder: Path, recipe: Recipe) -> Summary | None:
    """The run of a folder if it has come to its end; one of another recipe is refused."""
    if not (folder / "recipe.json").is_file():
        return None
    try:
        summary = Summary.of(folder)
    except ValueError:  # not evaluated yet
        return None
    changes = differences(summary.run.recipe, recipe)
    if changes:
        raise ValueError(
            f"study: {str(folder)!r} was trained by another recipe ({', '.join(changes)}); remove "
            f"it, or name another folder with --out"
        )
    return summary if summary.finished else None


def missing(
    study: Study, out: Path, seeds: Iterable[int], before: StudyResult | None = None
) -> Iterator[tuple[str, int, Recipe]]:
    """What is still to be trained: all settings with the first seed, then with the next."""
    for seed in seeds:
        for key, recipe in study.settings().items():
            one = change(recipe, loop__seed=seed)
            if seed in _earlier(before, key, recipe):
                continue
            if finished(folder_of(out, key, seed), one) is None:
                yield key, seed, one


def _earlier(before: StudyResult | None, key: str, recipe: Recipe) -> dict[int, SeedResult]:
    """The seeds of a setting in earlier results; none where the recipe was another."""
    one = before.settings.get(key) if before else None
    return one.seeds if one and one.recipe == fingerprint(recipe) else {}


def train(
    study: Study,
    data: str,
    out: Path,
    seeds: Iterable[int],
    *,
    before: StudyResult | None = None,
    watch: Any = None,
    say: Say = lambda sentence: None,
    device: str | None = None,
) -> list[str]:
    """Train what is missing, one run after the other.

    Runs that another process trains at the moment are left to it, so that one may start as many
    processes as there are cores.

    Args:
        before: results of earlier runs, whose folders need not be here; they are not repeated

    Returns:
        the runs that others are at work on
    """
    elsewhere = []
    for key, seed, recipe in list(missing(study, out, seeds, before)):
        folder = folder_of(out, key, seed)
        if finished(folder, recipe) is not None:  # by another process, meanwhile
            continue
        say(f"{study.name}: {key}, seed {seed} -> {folder}")
        try:
            _train(recipe, data, folder, f"study {study.name}", watch, device)
        except LockedError:
            elsewhere.append(str(folder))
            continue
        files.remove(folder / "checkpoints")  # the run has ended; its figures and model stay
    return elsewhere


def _train(
    recipe: Recipe, data: str, folder: Path, name: str, watch: Any, device: str | None
) -> None:
    has_checkpoints = (folder / "steps.jsonl").is_file() or (folder / "checkpoints").is_dir()
    if has_checkpoints:
        session.resume(folder, watch=watch, device=device)
    else:
        session.train(recipe, data, folder, name=name, watch=watch, device=device)


def collected(
    study: Study, data: str, out: Path, seeds: Iterable[int], before: StudyResult | None = None
) -> StudyResult:
    """What has been trained so far, here and, of the same recipes, `before`."""
    settings = {}
    seeds = list(seeds)
    for key, recipe in study.settings().items():
        runs = {s: run for s, run in _earlier(before, key, recipe).items() if s in seeds}
        parameters = before.settings[key].parameters if before and runs else None
        for seed in seeds:
            summary = finished(folder_of(out, key, seed), change(recipe, loop__seed=seed))
            if summary is not None:
                runs[seed] = SeedResult.of(summary, study.figure)
                parameters = summary.parameters()
        if runs:
            settings[key] = SettingResult(parameters, runs, fingerprint(recipe))
    return StudyResult(study.figure, Path(data).name, machine(), settings)


def machine() -> str:
    """The processor, as the system names it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


if __name__ == "__main__":  # python -m saccade.study.run linglo runs/study: into the package
    import sys

    from saccade.study.book import find
    from saccade.study.result import FOLDER, shipped

    study = find(sys.argv[1])
    folder = Path(sys.argv[2]) / study.name
    result = collected(study, study.data, folder, study.seeds, shipped(study.name))
    FOLDER.mkdir(exist_ok=True)
    print(files.write_json(FOLDER / f"{study.name}.json", result.plain()))

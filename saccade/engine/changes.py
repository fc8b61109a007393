"""What has changed since a run began: its images, and its recipe.

    data.json   for each set: how many images, a checksum of names and labels, one of the sizes of
                all files, and one of the content of each of some files, which the seed chooses

A short form is kept inside every checkpoint, so that changes are seen without data.json too.
"""

import hashlib
from typing import Any

import numpy as np

from saccade.data.datasets import Splits
from saccade.engine.run import Run
from saccade.recipes.disk import to_plain

SAMPLE = 256  # images of each set whose files are read
SETS = {"train", "val", "final"}
KEYS = ("images", "sha256")  # what any set's fingerprint has


def fingerprint(splits: Splits, seed: int) -> dict[str, Any]:
    """What data.json holds."""
    sets: dict[str, Any] = {"train": splits.train, "val": splits.val}
    if splits.final is not None:
        sets["final"] = splits.final
    return {name: _of_set(images, seed) for name, images in sets.items()}


def _of_set(images: Any, seed: int) -> dict[str, Any]:
    content = getattr(images, "content", None)  # sets from outside may have none
    size = getattr(images, "size", None)
    count = len(images)
    entries: dict[str, Any] = {"images": count, "sha256": images.digest()}
    if callable(size):
        sizes = np.array([size(i) for i in range(count)], np.int64)
        entries["sizes"] = hashlib.sha256(sizes.tobytes()).hexdigest()
    if callable(content):
        indices = np.random.default_rng(seed).permutation(count)[:SAMPLE]
        entries["sample"] = {str(i): _digest(content, i) for i in sorted(indices.tolist())}
    return entries


def _digest(content: Any, i: int) -> str:
    try:
        return hashlib.sha256(content(i)).hexdigest()[:16]
    except Exception:  # such an image is left out of the training, too
        return "unreadable"


def shortened(fingerprint_entries: dict[str, Any]) -> dict[str, Any]:
    """The same with one checksum for all sampled images."""
    return {
        name: {**one, "sample": _joined(one.get("sample"))}
        for name, one in fingerprint_entries.items()
    }


def _joined(sample: Any) -> str | None:
    if not isinstance(sample, dict):
        return sample
    return hashlib.sha256(repr(sorted(sample.items())).encode()).hexdigest()


# -- comparing ------------------------------------------------------------------------------


def check_images(
    run: Run, splits: Splits, about: dict[str, Any], now: dict[str, Any], force: bool
) -> list[str]:
    """Sentences about images that changed; an error unless forced.

    Other names, labels or numbers of images are always an error: the split would be another one,
    and training would see images that were held out before.

    Args:
        run: the run that goes on
        splits: its images as they are
        about: what its last checkpoint says about the run
        now: the fingerprint of the images
        force: go on with other content
    """
    then: Any = run.read_json("data.json")
    in_short: Any = about.get("images")
    if _sound(in_short) and not (_sound(then) and shortened(then) == in_short):
        then = in_short  # a data.json that is lost, damaged or edited tells nothing
    if not _sound(then):
        return []
    differ = [then[k][key] != now[k][key] for k in now for key in KEYS if k in then]
    if any(differ) or then.keys() != now.keys():
        counts = [f"{sets['train']['images']} and {sets['val']['images']}" for sets in (then, now)]
        what = (
            f"{counts[1]} instead of {counts[0]}"
            if len(set(counts)) > 1
            else "other names or labels"
        )
        raise ValueError(
            f"resume: {run.data!r} has other images to train and validate on than the run began "
            f"with ({what}); restore them, or train anew (finetune with model.start={run.folder})"
        )
    where = _differences(splits, then, now)
    if not where:
        return []
    sentence = f"the images at {run.data!r} have changed since the run began ({where})"
    if not force:
        raise ValueError(f"resume: {sentence}; restore them, or go on with them by --force")
    return [f"{sentence}; the run goes on with them"]


def _sound(entries: Any) -> bool:
    """Whether this is a fingerprint."""
    if not isinstance(entries, dict) or not {"train", "val"} <= entries.keys() <= SETS:
        return False
    parts = entries.values()
    return all(isinstance(part, dict) and set(KEYS) <= part.keys() for part in parts)


def _differences(splits: Splits, then: dict[str, Any], now: dict[str, Any]) -> str:
    """An image whose content changed, or another sign of a change; empty if there is none."""
    for name in then:
        images: Any = getattr(splits, name)
        before, after = then[name].get("sample"), now[name].get("sample")
        if isinstance(before, dict) and isinstance(after, dict):
            for i in after:
                if i in before and before[i] != after[i]:
                    return f"such as {images.name(int(i))!r}"
        elif isinstance(before, str) and before != _joined(after):
            return f"in the {name} set"
        if "sizes" in then[name] and then[name]["sizes"] != now[name].get("sizes"):
            return f"files of the {name} set are of another size"
    return ""


def check_recipe(run: Run, about: dict[str, Any], force: bool) -> list[str]:
    """Sentences about a recipe.json that was edited since the last checkpoint; refused unless
    forced.

    Args:
        run: the run that goes on
        about: what its last checkpoint says about the run
        force: go on with the recipe as it is
    """
    try:
        before = Run.from_plain(run.folder, about).recipe  # with the defaults of this version
    except (ValueError, KeyError, TypeError, AttributeError):  # a checkpoint of another version
        return []
    old, now = (_flat(_plain(to_plain(recipe))) for recipe in (before, run.recipe))
    changed_keys = [key for key in sorted(now.keys() | old.keys()) if now.get(key) != old.get(key)]
    if not changed_keys:
        return []
    what = ", ".join(f"{key} {old.get(key)!r} -> {now.get(key)!r}" for key in changed_keys[:3])
    more = f" and {len(changed_keys) - 3} more" if len(changed_keys) > 3 else ""
    path = run.folder / "recipe.json"
    sentence = f"{str(path)!r} was edited since the last checkpoint ({what}{more})"
    if not force:
        raise ValueError(f"resume: {sentence}; undo that, or go on with it by --force")
    return [f"{sentence}; the run goes on with it"]


def _plain(value: Any) -> Any:
    """As JSON would give it back."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple) else value


def _flat(value: Any, path: str = "") -> dict[str, Any]:
    if not isinstance(value, dict) or not value:
        return {path: value}
    parts = (_flat(inner, f"{path}.{key}" if path else str(key)) for key, inner in value.items())
    return {key: inner for part in parts for key, inner in part.items()}

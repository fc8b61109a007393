"""Write a set of images and masks, as `saccade train segment` reads it.

    OUT/images/SPLIT/NAME.jpg       links to the same file where the disk can
    OUT/masks/SPLIT/NAME.png        links too, where they hold ids already
    OUT/classes.json                written last: a set that was broken off is not read

A picture or mask that cannot be read is left out, counted and reported.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

from saccade import files
from saccade.data import picture
from saccade.data.convert import regions
from saccade.data.convert.link import link
from saccade.data.convert.regions import Masked, Regions
from saccade.data.findings import sentences_about
from saccade.data.picture import Unreadable


class SplitOfMasks(NamedTuple):
    """How much of a split was written."""

    images: int


def write(out: Path, source: Regions) -> dict[str, SplitOfMasks]:
    """Write all splits; gives their sizes."""
    counts: dict[str, SplitOfMasks] = {}
    for split, pairs in source.splits.items():
        if not pairs:
            continue
        with ThreadPoolExecutor(4) as pool:
            errors = pool.map(partial(_one, out, split, source), _with_unique_names(pairs))
            images = 0
            for pair, error in zip(pairs, errors, strict=True):
                images += not error
                if error:
                    source.note("pairs that cannot be used (left out)", f"{pair.stem}: {error}")
        counts[split] = SplitOfMasks(images)
    for lines in source.findings.values():
        lines.sort()  # threads write them
    if not any(split.images for split in counts.values()):
        lines = "; ".join(sentences_about(source.findings, ""))
        raise ValueError(f"convert: no mask could be used: {lines}")
    ignored = source.ignored[0] if len(source.ignored) == 1 else source.ignored
    classes = {str(key): name for key, name in source.classes.items()}
    files.write_json(out / "classes.json", {"classes": classes, "ignore_index": ignored})
    return counts


def _with_unique_names(pairs: list[Masked]) -> Iterator[tuple[Masked, str]]:
    """Pairs with the name that each gets; a name that comes twice gets a number."""
    used_names: set[str] = set()
    for n, pair in enumerate(pairs, 1):
        name = pair.stem if pair.stem not in used_names else f"{n}_{Path(pair.stem).name}"
        used_names.add(name)
        yield pair, name


def _one(out: Path, split: str, source: Regions, job: tuple[Masked, str]) -> str:
    """Write a picture and its mask; gives what is wrong with them, if anything is."""
    pair, name = job
    photo = out / "images" / split / f"{name}{pair.photo.suffix.lower()}"
    mask = out / "masks" / split / f"{name}.png"
    size = picture.size(pair.photo)
    if size is None:
        return "its picture cannot be read"
    try:
        if source.read is None and pair.mask.suffix.lower() == ".png":
            own = picture.size(pair.mask)
            if own is None:
                return "its mask cannot be read"
            shape = own.stored
        else:
            values = regions.ids(pair.mask) if source.read is None else source.read(pair)
            shape = values.shape[1], values.shape[0]
    except Unreadable as error:
        return error.reason
    if shape != size.upright:
        (W, H), (w, h) = shape, size.upright
        return f"its mask has {W} x {H} pixels and the picture {w} x {h}"
    if source.read is None and pair.mask.suffix.lower() == ".png":
        link(pair.mask, mask)
    else:
        with files.writing(mask):
            mask.parent.mkdir(parents=True, exist_ok=True)
            regions.as_png(values).save(mask)
    link(pair.photo, photo)
    return ""

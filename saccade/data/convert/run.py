"""Recognise a set's format by its layout, read it, and write it as saccade reads it.

Boxes become a COCO set (`to_coco`), a class for every pixel images and masks (`to_masks`).
"""

import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from saccade.data.convert import cityscapes, coco_masks, layout, pairs, to_coco, to_masks, voc, yolo
from saccade.data.convert.regions import Regions
from saccade.data.convert.source import Source
from saccade.data.findings import Findings, sentences_about
from saccade.data.folder import text


class Options(NamedTuple):
    """What a reader may be given beside the folder."""

    names: list[str] | None = None
    colours: Path | None = None


@dataclass(frozen=True)
class Format:
    """A format that sets come in."""

    name: str
    layout_words: str
    """Its layout, in a few words."""
    is_here: Callable[[Path], bool]
    read: Callable[[Path, Options], Source | Regions]
    weak: bool = False
    """Chosen by itself only where no other format fits."""


FORMATS = {
    "voc": Format(
        "VOC", "Annotations/*.xml with JPEGImages", lambda at: bool(layout.voc_parts(at)),
        lambda at, options: voc.read(at, options.names),
    ),
    "yolo": Format(
        "YOLO", "images/train with labels/train/*.txt", layout.has_yolo,
        lambda at, options: yolo.read(at, options.names),
    ),
    "voc-masks": Format(
        "VOC's masks", "SegmentationClass with JPEGImages", pairs.is_voc,
        lambda at, options: pairs.read_voc(at, options.names, options.colours),
    ),
    "cityscapes": Format(
        "Cityscapes", "leftImg8bit with gtFine", cityscapes.is_here,
        lambda at, _: cityscapes.read(at),
    ),
    "stuff": Format(
        "COCO-Stuff", "stuffthingmaps", coco_masks.is_stuff,
        lambda at, _: coco_masks.read_stuff(at),
    ),
    "panoptic": Format(
        "COCO panoptic", "annotations/panoptic_*.json", coco_masks.is_panoptic,
        lambda at, _: coco_masks.read_panoptic(at),
    ),
    "masks": Format(
        "images and masks", "images with masks, of ids or of colours",
        lambda at: bool(pairs.folders(at)),
        lambda at, options: pairs.read(at, options.names, options.colours), weak=True,
    ),
    "outlines": Format(
        "COCO's outlines", "annotations/instances_*.json", coco_masks.is_outlines,
        lambda at, _: coco_masks.read_outlines(at), weak=True,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Converted:
    """The format that was read, the splits that were written, and faults of the data."""

    format: str
    splits: dict[str, Any]
    """`Split` of boxes, or `SplitOfMasks`."""
    classes: list[str]
    notes: list[str] = field(default_factory=list)
    """Sentences about what was left out, and about faults."""
    findings: Findings = field(default_factory=dict)
    """The same in full, a line for each case."""


def convert(
    source: str | Path,
    out: str | Path,
    classes: str | Path | None = None,
    format: str | None = None,
    colours: str | Path | None = None,
) -> Converted:
    """Write a set that saccade reads for one in another format.

    Args:
        source: the set's folder
        out: a new or empty folder
        classes: a file with a name a line; the set's own classes if None
        format: one of FORMATS; by the layout if None
        colours: a table of colours, for masks in colours; the set's own if None
    """
    place, target = Path(source), Path(out)
    if not place.is_dir():
        raise FileNotFoundError(f"convert: no folder {str(source)!r}; check the path")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise FileExistsError(f"convert: {str(out)!r} is there and not empty; give another folder")
    names = None if classes is None else _names(Path(classes))
    format_name, others = _choose_format(place, format)
    one = FORMATS[format_name]
    annotations = one.read(place, Options(names, None if colours is None else Path(colours)))
    if isinstance(annotations, Source):
        splits: dict[str, Any] = to_coco.write(target, annotations, names, str(source), one.name)
        class_names = annotations.classes if names is None else names
    else:
        if not any(annotations.splits.values()):
            why = "; ".join(sentences_about(annotations.findings, one.name))
            raise ValueError(f"convert: no picture of {str(source)!r} has a mask; {why}")
        splits = dict(to_masks.write(target, annotations))
        class_names = list(annotations.classes.values())
    notes = sentences_about(annotations.findings, one.name)
    notes += [f"it is also {FORMATS[name].name}: --format {name}" for name in others]
    return Converted(one.name, splits, class_names, notes, annotations.findings)


def _choose_format(place: Path, format: str | None) -> tuple[str, list[str]]:
    """The format of a folder, and others that it has too."""
    if format is not None:
        if format not in FORMATS:
            raise ValueError(f"convert: format is one of {', '.join(FORMATS)}, got {format!r}")
        if not FORMATS[format].is_here(place):
            raise ValueError(
                f"convert: {str(place)!r} is not laid out as {FORMATS[format].name}; "
                f"wanted: {FORMATS[format].layout_words}"
            )
        return format, []
    here = [name for name, one in FORMATS.items() if one.is_here(place)]
    if _is_ready(place):
        more = "".join(f" (or give --format {name})" for name in here if name != "masks")
        raise ValueError(
            f"convert: {str(place)!r} needs no conversion: saccade train segment --data "
            f"{shlex.quote(str(place))} reads it as it is{more}"
        )
    strong = [name for name in here if not FORMATS[name].weak]
    if {"voc", "voc-masks"} == set(strong):  # as VOC comes
        return "voc", ["voc-masks"]
    if len(strong) == 1 or (not strong and here):
        return (strong or here)[0], [name for name in here if name not in (strong or here)[:1]]
    if strong:
        both = " and as ".join(FORMATS[name].name for name in strong)
        raise ValueError(
            f"convert: {str(place)!r} can be read as {both}; say which: --format {strong[0]}"
        )
    layouts = "; ".join(f"{one.layout_words} ({one.name})" for one in FORMATS.values())
    raise ValueError(f"convert: {str(place)!r} has no layout that is known; wanted: {layouts}")


def _is_ready(place: Path) -> bool:
    """Images and masks with classes.json, or ADE20K as it is unpacked."""
    class_files = (place / part / "classes.json" for part in (".", *pairs.FOLDERS))
    ade = all((place / part / "training").is_dir() for part in ("images", "annotations"))
    return ade or ((place / "images").is_dir() and any(path.is_file() for path in class_files))


def masks_advice(place: Path) -> str:
    """What to do with a folder of masks that has to be converted first; "" for any other."""
    for name in ("voc-masks", "cityscapes", "stuff", "panoptic", "masks"):
        if FORMATS[name].is_here(place):
            return (
                f"{str(place)!r} looks like {FORMATS[name].name}: saccade convert "
                f"{shlex.quote(str(place))} OUT --format {name} makes a set of images and masks of "
                f"it, for saccade train segment --data OUT"
            )
    return ""


def _names(path: Path) -> list[str]:
    if not path.is_file():
        raise FileNotFoundError(f"convert: no file {str(path)!r}; --classes takes a name a line")
    names = [line.strip() for line in text(path).splitlines()]
    names = [name for name in names if name]
    twice = next((name for name in names if names.count(name) > 1), None)
    if not names or twice:
        fault = f"{twice!r} is there twice" if twice else "it is empty"
        raise ValueError(f"convert: {str(path)!r}: a name a line, each once, but {fault}")
    return names

"""Read folders of pictures and masks: ids or colours, in the layouts that people have.

    images/SPLIT/NAME.jpg     masks/SPLIT/NAME.png          or labels, semantic, annotations
    SPLIT/NAME.png            SPLIT_labels/NAME_L.png       or SPLITannot, SPLIT_masks
    SPLIT/images/NAME.jpg     SPLIT/masks/NAME.png
    SPLIT/NAME.jpg            SPLIT/NAME_mask.png           with _classes.csv (Roboflow)
    JPEGImages/NAME.jpg       SegmentationClass/NAME.png    VOC, with ImageSets/Segmentation/*.txt

A mask is a grey or palette file of ids, or a picture whose colours a table names (see `colours`).
"""

from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from saccade.data.convert import colours, regions
from saccade.data.convert.layout import SPLITS, files
from saccade.data.convert.regions import IGNORED, LOSSLESS, Masked, Regions
from saccade.data.folder import Inside, contents, text
from saccade.data.picture import ENDINGS, Unreadable

FOLDERS = ("masks", "labels", "semantic", "annotations", "annot", "gt", "mask", "label")
ENDS = ("", "_L", "_mask", "_masks", "_label", "_labels", "_gt", "_seg")
VOC = ("SegmentationClass", "SegmentationClassAug", "SegmentationClassRaw")
VOC_CLASSES = (
    "background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair",
    "cow", "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa",
    "train", "tvmonitor",
)  # fmt: skip
LOOKED_AT = 20  # masks that say whether a set has ids or colours
SHOWN = 8  # ids or colours in a sentence

Folders = list[tuple[str, Path, Path]]  # split, pictures, masks


def is_voc(place: Path) -> bool:
    return (place / "JPEGImages").is_dir() and any((place / name).is_dir() for name in VOC)


def folders(place: Path) -> Folders:
    """The folders of pictures and of masks, by split; one folder twice where they lie together."""
    splits = [(SPLITS[f.name.lower()], f) for f in sorted(place.glob("*/")) if _is_split(f)]
    pairs: Folders = []
    for name in FOLDERS:
        whole = place / "images", place / name
        if all(folder.is_dir() for folder in whole):
            inner = [f for f in sorted((place / name).glob("*/")) if _is_split(f)]
            pairs = [(SPLITS[f.name.lower()], whole[0] / f.name, f) for f in inner]
            pairs = [row for row in pairs if row[1].is_dir()] or [("train", *whole)]
        else:
            pairs = [
                (split, photos, masks)
                for split, f in splits
                for photos, masks in ((f / "images", f / name), (f, Path(f"{f}_{name}")),
                                      (f, Path(f"{f}{name}")))
                if photos.is_dir() and masks.is_dir()
            ]  # fmt: skip
        pairs = [row for row in pairs if contents(row[2], LOSSLESS).names]
        if pairs:
            return pairs
    return [(split, f, f) for split, f in splits if any(f.glob("*_mask.png"))]


def _is_split(folder: Path) -> bool:
    return folder.name.lower() in SPLITS


def read(place: Path, names: list[str] | None, table: Path | None) -> Regions:
    """Pictures with a mask of their name, in the order of their names."""
    inside, source = Inside(place), Regions({}, {})
    pairs = folders(place)
    for split, photos, masks in pairs:
        source.splits.setdefault(split, []).extend(_matched(photos, masks, source, inside))
    table = table or colours.table_in(place, *(p for row in pairs for p in row[1:]))
    classes_file = next((p for row in pairs if (p := row[1] / "_classes.csv").is_file()), None)
    class_names = _roboflow(classes_file) if classes_file is not None and names is None else None
    return _with_classes(place, source, names, table, class_names)


def read_voc(place: Path, names: list[str] | None, table: Path | None) -> Regions:
    """The pictures of ImageSets/Segmentation, or all that have a mask."""
    inside, source = Inside(place), Regions({}, {})
    masks = next(place / name for name in VOC if (place / name).is_dir())
    rows = {pair.stem: pair for pair in _matched(place / "JPEGImages", masks, source, inside)}
    lists = _lists(place)
    if lists:
        source.findings.pop("pictures without a mask (left out)", None)  # VOC has many
    for split, stems in (lists or {"train": list(rows)}).items():
        for stem in stems:
            if stem in rows:
                source.splits.setdefault(split, []).append(rows[stem])
            else:
                source.note("pictures listed without a mask or a file (left out)", stem)
    table = table or colours.table_in(place)
    own = dict(enumerate(VOC_CLASSES)) if names is None else None
    return _with_classes(place, source, names, table, own)


def _lists(place: Path) -> dict[str, list[str]]:
    """Names by split; trainval counts where there is no train."""
    texts = {p.stem: p for p in files(place / "ImageSets" / "Segmentation", "*.txt")}
    if "train" in texts:
        texts.pop("trainval", None)
    lists: dict[str, list[str]] = {}
    for name, path in texts.items():
        if name in SPLITS:
            lines = [line.split() for line in text(path).splitlines() if line.strip()]
            lists.setdefault(SPLITS[name], []).extend(line[0] for line in lines)
    return {split: list(dict.fromkeys(stems)) for split, stems in lists.items()}


def _matched(photos: Path, masks: Path, source: Regions, inside: Inside) -> list[Masked]:
    """Pictures with their masks, by name without ending."""
    together = photos == masks
    mask_names = contents(masks, LOSSLESS).names
    if together:
        mask_names = [name for name in mask_names if Path(name).stem.endswith("_mask")]
    by_stem = {str(Path(name).with_suffix("")): name for name in mask_names}
    unused, rows = set(mask_names), []
    for name in contents(photos, ENDINGS).names:
        if together and name in unused | set(by_stem.values()):
            continue
        stem = str(Path(name).with_suffix(""))
        mask = next((by_stem[stem + end] for end in ENDS if stem + end in by_stem), None)
        if mask is None:
            source.note("pictures without a mask (left out)", name)
            continue
        unused.discard(mask)
        pair = Masked(photos / name, masks / mask, stem.replace("\\", "/"))
        inside.check((pair.photo, pair.mask), "convert")
        rows.append(pair)
    for name in sorted(unused):
        source.note("masks without a picture (left out)", name)
    return rows


# -- what the pixels mean -------------------------------------------------------------------


def _with_classes(
    place: Path,
    source: Regions,
    names: list[str] | None,
    table: Path | None,
    own: dict[int, str] | None,
) -> Regions:
    """The set, with its classes and with how a mask is read."""
    pairs = list(source.pairs())
    if not pairs:
        return source
    some = [pair.mask for pair in pairs[:: max(len(pairs) // LOOKED_AT, 1)][:LOOKED_AT]]
    modes = {regions.mode(path) for path in some} - {""}
    if not modes:
        raise ValueError(f"convert: no mask of {len(some)} can be read, such as {str(some[0])!r}")
    colourful = bool(modes & {"RGB", "RGBA"})
    if table is not None and (colourful or "P" in modes):
        return _in_colours(source, colours.read(table))
    if table is not None:  # grey: the numbers of the table's rows
        own = dict(enumerate(colours.read(table).classes))
    if colourful and own is not None and len(own) == len(VOC_CLASSES):
        palette = colours.voc_palette(len(own))
        colour_table = colours.ColourTable(
            list(own.values()),
            {c: i for i, c in enumerate(palette)} | {(224, 224, 192): IGNORED},
        )  # fmt: skip
        return _in_colours(source, colour_table)
    if colourful:
        raise ValueError(
            f"convert: masks in {str(place)!r} are colours ({_colours_of(some)}), and no table "
            f"says what they mean; give one: --colours FILE, {colours.FORMS}"
        )
    source.classes = dict(enumerate(names)) if names is not None else own or {}
    if not source.classes:
        raise ValueError(
            f"convert: masks in {str(place)!r} hold ids ({_ids_of(some)}), and nothing says what "
            f"they mean; give --classes FILE, a name a line, the first for id 0"
        )
    return source


def _in_colours(source: Regions, table: colours.ColourTable) -> Regions:
    source.classes = dict(enumerate(table.classes))

    def decoded(pair: Masked) -> UInt8[np.ndarray, "H W"]:
        mask, strange = table.decode(regions.colours(pair.mask))
        if strange:
            kind = "masks with colours that are in no row of the table (such pixels are ignored)"
            source.note(kind, f"{pair.mask.name} ({strange} pixels)")
        return mask

    source.read = decoded
    return source


def _roboflow(path: Path) -> dict[int, str]:
    """Names by id: lines `0, background` below a header."""
    rows = [line.split(",", 1) for line in text(path).splitlines()[1:] if line.strip()]
    try:
        return {int(number): name.strip() for number, name in rows}
    except ValueError as error:
        raise ValueError(f"convert: {str(path)!r}: wanted lines `id, name` ({error})") from error


def _ids_of(paths: list[Path]) -> str:
    values: set[int] = set()
    for path in paths:
        try:
            values |= set(np.unique(regions.ids(path)).tolist())
        except Unreadable:
            continue
    return _few([str(value) for value in sorted(values)])


def _colours_of(paths: list[Path]) -> str:
    values: set[tuple[int, ...]] = set()
    for path in paths[:3]:
        try:
            flat = regions.colours(path).reshape(-1, 3)
        except Unreadable:
            continue
        values |= {tuple(row) for row in np.unique(flat, axis=0)[: SHOWN + 1].tolist()}
    return _few([" ".join(map(str, value)) for value in sorted(values)])


def _few(words: list[str]) -> str:
    return ", ".join(words[:SHOWN]) + (", ..." if len(words) > SHOWN else "")

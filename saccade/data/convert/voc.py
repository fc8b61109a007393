"""Read Pascal VOC data sets: one xml file for each picture.

    Annotations/*.xml            size, and for each object a name and a bndbox
    JPEGImages/ (or images/)     the pictures, or they lie beside the xml files
    ImageSets/Main/*.txt         train, val, trainval, test: a name a line; all is train without

or SPLIT/*.xml with the pictures beside them (Roboflow).

Corners count pixels from 1, both included: a box from 1 to 3 is three pixels wide and begins at 0.

    x = xmin - 1    w = xmax - xmin + 1

Objects marked difficult are kept as any other, with "difficult": 1 beside them in the json; parts
of objects (a person's head and hands) are no objects of their own.
"""

import xml.etree.ElementTree as ET
from pathlib import Path

from saccade.data import picture
from saccade.data.convert.layout import SPLITS, files, voc_parts
from saccade.data.convert.source import Labelled, Named, Source
from saccade.data.folder import Inside, text

FOLDERS = ("JPEGImages", "images", "Images", "Annotations", "annotations", ".")
MOST = 1e9  # pixels
CORNERS = ("xmin", "ymin", "xmax", "ymax")


def read(place: Path, names: list[str] | None) -> Source:
    """All pictures, in the order of their split's list or else of their names."""
    source, inside = Source({}, []), Inside(place)
    for split, whole, folder in voc_parts(place):
        xmls = {path.stem: path for path in files(folder, "*.xml")}
        lists = {} if split else _lists(whole)
        for name, stems in (lists or {split or "train": list(xmls)}).items():
            rows = source.splits.setdefault(name, [])
            for stem in stems:
                if stem not in xmls:
                    source.note("pictures listed without an xml (left out)", f"{stem} of {name}")
                elif (row := _read(whole, xmls[stem], source, inside)) is not None:
                    rows.append(row)
        listed_stems = {stem for stems in lists.values() for stem in stems}
        for stem in xmls if lists else ():
            if stem not in listed_stems:
                source.note("xml files in no list of ImageSets/Main (left out)", xmls[stem].name)
    class_names = {box.name for rows in source.splits.values() for row in rows for box in row.boxes}
    source.classes = sorted(class_names)
    return source


def _lists(place: Path) -> dict[str, list[str]]:
    """Names by split; trainval counts where there is no train, and no name comes twice."""
    folder = place / "ImageSets" / "Main"
    texts = {path.stem: path for path in files(folder, "*.txt") if path.stem in SPLITS}
    if "train" in texts:
        texts.pop("trainval", None)
    lists: dict[str, list[str]] = {}
    for name, path in texts.items():
        lines = text(path).splitlines()
        stems = [line.split()[0] for line in lines if line.strip()]
        lists[SPLITS[name]] = list(dict.fromkeys(lists.get(SPLITS[name], []) + stems))
    return {split: lists[split] for split in ("train", "val", "test") if lists.get(split)}


def _read(place: Path, path: Path, source: Source, inside: Inside) -> Labelled | None:
    if not inside(path):
        raise inside.refuse(str(path), "convert")
    try:
        root = ET.parse(path).getroot()
    except (ET.ParseError, ValueError, LookupError) as error:  # also of encodings
        source.note("xml files that cannot be read (left out)", f"{path.name} ({error})")
        return None
    file = _picture(place, path, root.findtext("filename") or "")
    if file is None:
        source.note("xml files without their picture (left out)", path.name)
        return None
    if not inside(file):
        raise inside.refuse(str(file), "convert")
    size = _size(root)
    if size is None:
        real = picture.size(file)
        if real is None:
            source.note("pictures that cannot be read (left out)", file.name)
            return None
        source.note("xml files without a size (taken from the picture)", path.name)
        size = real.upright
    boxes = (_box(n, node, path, source) for n, node in enumerate(root.findall("object"), 1))
    return Labelled(file, file.name, size, [box for box in boxes if box is not None])


def _picture(place: Path, path: Path, file_name: str) -> Path | None:
    """The picture with the xml file's own name, else the one that the xml names."""
    file_name = file_name.replace("\\", "/").rpartition("/")[2].strip()
    for name in FOLDERS:
        folder = place / name
        for ending in picture.ENDINGS:
            for file in (folder / (path.stem + ending), folder / (path.stem + ending.upper())):
                if file.is_file():
                    return file
    for name in FOLDERS if picture.is_one(file_name) else ():
        if (place / name / file_name).is_file():
            return place / name / file_name
    return None


def _size(root: ET.Element) -> tuple[int, int] | None:
    W, H = (_number(root.findtext(f"size/{side}")) for side in ("width", "height"))
    return (int(W), int(H)) if W is not None and H is not None and W >= 1 and H >= 1 else None


def _box(n: int, node: ET.Element, path: Path, source: Source) -> Named | None:
    where = f"{path.name}, object {n}"
    name = (node.findtext("name") or "").strip()
    if not name:
        source.note("objects without a name (left out)", where)
        return None
    corners = [_number(node.findtext(f"bndbox/{corner}")) for corner in CORNERS]
    missing = [corner for corner, value in zip(CORNERS, corners, strict=True) if value is None]
    if missing:
        source.note("objects without four corners (left out)", f"{where} ({', '.join(missing)})")
        return None
    x0, y0, x1, y1 = (value for value in corners if value is not None)
    if x0 > x1 or y0 > y1:
        source.note("objects whose corners are the wrong way round (left out)", where)
        return None
    if x0 < 1 or y0 < 1:
        kind = "boxes that begin before pixel 1 (the set may count from 0: off by one if so)"
        source.note(kind, where)
    difficult = _number(node.findtext("difficult")) == 1
    if difficult:
        source.note("objects marked difficult (kept as any other)", where)
    return Named(name, (x0 - 1, y0 - 1, x1 - x0 + 1, y1 - y0 + 1), difficult)


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if abs(value) < MOST else None  # NaN is not

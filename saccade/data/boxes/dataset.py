"""Find and read the training and validation set of a folder in COCO's format.

    FOLDER/annotations/instances_{train,val}.json      pictures in FOLDER/images/{train,val}
    FOLDER/annotations/instances_{train,val}2017.json  in FOLDER/{train,val}2017: COCO's own
    FOLDER/{train,valid}/_annotations.coco.json        pictures beside it (Roboflow)
    FILE.json, or a FOLDER with one json               beside it or in images/; part held out

Classes are the categories of the training file, in the order of their ids; those of the other file
are matched by name. Boxes are in pixels of the width and height that the json gives. Where the file
of a picture is of another size:

    only as stored, before EXIF turns it upright, is it that size    it is left as stored
    it has the same shape, but larger or smaller                      boxes are scaled with it
    it has another shape                                              boxes are used unchanged

Each such picture is reported.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Integer, UInt8
from PIL import Image
from torch import Tensor

from saccade.data import picture
from saccade.data.boxes import coco
from saccade.data.boxes.coco import Annotations
from saccade.data.boxes.outlines import decoded
from saccade.data.convert import layout as foreign
from saccade.data.convert.layout import files
from saccade.data.datasets import VALIDATION, Splits
from saccade.data.findings import Findings, note, sentences_about
from saccade.data.images import Images, Strings, size_of
from saccade.recipes.recipe import Data
from saccade.spelling import nearest

KNOWN = (
    "annotations/instances_train.json and images/train, train/_annotations.coco.json, "
    "or one COCO json with its pictures beside it"
)
FOREIGN = ("labels", "Annotations", "data.yaml")  # YOLO's and VOC's, even if half is missing
LOOKED_AT = 20_000  # pictures whose size is compared with the json's, evenly spread


class Boxes(Images):
    """Pictures with boxes, held in arrays."""

    def __init__(self, root: Path, annotations: Annotations):
        self.root, self.names = root, Strings(annotations.names)
        self.keys, self.sizes, self.starts = annotations.keys, annotations.sizes, annotations.starts
        self.boxes, self.numbers = annotations.boxes, annotations.labels
        self.crowd, self.area = annotations.crowd, annotations.area
        self.outlines = annotations.outlines
        self.classes, self.ids, self.findings = (
            annotations.classes,
            annotations.ids,
            annotations.findings,
        )
        self.layout_warnings: tuple[str, ...] = ()

    @property
    def warnings(self) -> tuple[str, ...]:
        """Faults of the set, in sentences."""
        return *self.layout_warnings, *sentences_about(self.findings, "")

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def tall(self) -> Integer[np.ndarray, "N"]:
        """1 for images that are higher than wide, else 0."""
        return (self.sizes[:, 1] > self.sizes[:, 0]).astype(np.int64)

    def read(self, i: int) -> tuple[Image.Image, dict[str, Any]]:
        """The picture, and its boxes in pixels of it."""
        W, H = map(int, self.sizes[i])
        image = picture.rgb(self.root / self.names[i], self.name(i), (W, H))
        own = slice(self.starts[i], self.starts[i + 1])
        masks = self._masks(own, (W, H), image.size)
        boxes, labels, crowd, area = (
            torch.from_numpy(part[own].copy())
            for part in (self.boxes, self.numbers, self.crowd, self.area)
        )
        if image.size != (W, H):
            factor = _factor((W, H), image.size)
            boxes = boxes * torch.tensor(factor * 2)
            boxes = boxes.minimum(torch.tensor(image.size * 2))
            area = area * (factor[0] * factor[1])
            there = (boxes[:, 2:] > boxes[:, :2]).all(1)
            boxes, labels, crowd, area = (p[there] for p in (boxes, labels, crowd, area))
            masks = {key: value[there] for key, value in masks.items()}
        return image, {
            **masks,
            "boxes": boxes,
            "labels": labels.long(),
            "crowd": crowd,
            "area": area,
            "id": int(self.keys[i]),
        }

    def _masks(
        self, own: slice, size: tuple[int, int], real: tuple[int, int]
    ) -> dict[str, UInt8[Tensor, "n H W"]]:
        """The objects' masks in pixels of the picture, if the set has them."""
        if self.outlines is None:
            return {}
        masks = torch.from_numpy(decoded(self.outlines[own], size))
        if size != real and len(masks):
            nearest = torch.nn.functional.interpolate(
                masks[:, None].float(), (real[1], real[0]), mode="nearest-exact"
            )
            masks = nearest[:, 0].to(torch.uint8)
        return {"masks": masks.reshape(-1, real[1], real[0])}

    def name(self, i: int) -> str:
        return str(self.root / self.names[i])

    def content(self, i: int) -> bytes:
        return (self.root / self.names[i]).read_bytes()

    def size(self, i: int) -> int:
        return size_of(self.name(i))

    def parts(self) -> list[np.ndarray]:
        return [
            self.names.text, self.names.ends, self.keys, self.sizes, self.starts, self.boxes,
            self.numbers, self.crowd, self.area,
            *([np.frombuffer(b" ".join(self.outlines), np.uint8)] if self.outlines else []),
        ]  # fmt: skip

    def some(self, indices: Integer[np.ndarray, "N"]) -> "Boxes":
        """The images at these positions."""
        counts = self.starts[indices + 1] - self.starts[indices]
        rows = [np.arange(self.starts[i], self.starts[i + 1]) for i in indices]
        own = np.concatenate([np.zeros(0, np.int64), *rows])
        return Boxes(
            self.root,
            Annotations(
                names=[self.names[i] for i in indices.tolist()],
                keys=self.keys[indices],
                sizes=self.sizes[indices],
                starts=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
                boxes=self.boxes[own],
                labels=self.numbers[own],
                crowd=self.crowd[own],
                area=self.area[own],
                classes=self.classes,
                ids=self.ids,
                outlines=None if self.outlines is None else [self.outlines[i] for i in own],
                findings=self.findings,
            ),
        )

    def often(self, share: float) -> Float[np.ndarray, "N"]:
        """How often each image should come, so that rare classes do (repeat factors, as in LVIS).

        A class that fewer than `share` of the images hold asks for the root of `share` over its
        own share; an image comes as often as the rarest class in it asks, once at least.
        """
        image = np.repeat(np.arange(len(self)), np.diff(self.starts))[~self.crowd]
        pairs = np.unique(np.stack((image, self.numbers[~self.crowd])), axis=1)
        holds = np.bincount(pairs[1], minlength=len(self.classes)) / max(len(self), 1)
        factors = np.sqrt(share / np.maximum(holds, 1e-12)).clip(min=1.0)
        often = np.ones(len(self))
        np.maximum.at(often, pairs[0], factors[pairs[1]])
        return often

    def counts(self) -> Integer[np.ndarray, "C"]:
        """Boxes of each class, crowds not counted."""
        return np.bincount(self.numbers[~self.crowd], minlength=len(self.classes))


def _factor(stated_size: tuple[int, int], real: tuple[int, int]) -> tuple[float, float]:
    """The factor from the pixels of the boxes to those of the picture: 1 unless it was resized.

    A resize rounds a side by half a pixel at most.
    """
    (W, H), (w, h) = stated_size, real
    if not (W and H) or abs(W * h - H * w) > 0.51 * max(W + H, w + h):
        return 1.0, 1.0
    return w / W, h / H


def find(path: str, data: Data, seed: int = 0, outlines: bool = False) -> Splits:
    """The images and boxes at a path, with masks if asked; unusable layouts are refused."""
    place = _place(path)
    layout = _layout(place)
    if layout.train is None:
        raise ValueError(
            f"{layout.what}: boxes to validate on but none to train on; add a train set"
        )
    train = layout.train.read(outlines)
    if not train.counts().any():
        raise ValueError(
            f"{layout.what}: {len(train)} images to train on, but not one usable box "
            f"({_first_finding(train.findings)})"
        )
    warnings = [*layout.warnings, *sentences_about(train.findings, "train")]
    final = None
    if layout.val is None:
        train, val = hold_out(train, data.holdout, seed)
    else:
        val = aligned(layout.val.read(outlines), train.classes, "the training set's", train.ids)
        if not val.counts().any():
            raise ValueError(
                f"{layout.what}: {len(val)} images to validate on, but not one usable box; add "
                "some, or remove the set to have data.holdout of the training images held out"
            )
        warnings += sentences_about(val.findings, "val")
        warnings += _in_both(train, val)
        if data.tune:
            final = val
            train, val = hold_out(train, data.holdout, seed)
    warnings += _empty_classes(train)
    findings = {
        f"{split}: {kind}": lines
        for split, part in (("train", train), ("val", val if final is None else final))
        for kind, lines in part.findings.items()
    }
    return Splits(
        train, val, train.classes, _summary(layout.what, train, val, final), warnings,
        notes={"ids": [int(i) for i in train.ids]}, findings=findings, final=final,
    )  # fmt: skip


def every(path: str, classes: list[str], outlines: bool = False) -> Boxes:
    """The images to evaluate a trained model on: a validation set, or else all at the path.

    Classes are numbered as in the model; boxes of a class that the model does not know are
    refused.
    """
    layout = _layout(_place(path))
    annotations = layout.val or layout.train
    assert annotations is not None
    boxes = aligned(annotations.read(outlines), classes, "the model's")
    boxes.layout_warnings = layout.warnings
    return boxes


def aligned(
    boxes: Boxes, classes: list[str], whose: str = "the model's", ids: Sequence[int] | None = None
) -> Boxes:
    """The set with its classes numbered as in another list; a class without boxes may be missing.

    A class that the set does not list gets the id in `ids`, if that is not taken.
    """
    if boxes.classes == classes:
        return boxes
    numbers = {name: c for c, name in enumerate(classes)}
    counts = np.bincount(boxes.numbers, minlength=len(boxes.classes))  # crowds too
    for name, count in zip(boxes.classes, counts, strict=True):
        if count and name not in numbers:
            raise ValueError(
                f"category {name!r} has {count} boxes but is not among {whose} {len(classes)}; "
                f"did you mean {nearest(name, classes)!r}?"
            )
    new_numbers = np.array([numbers.get(name, -1) for name in boxes.classes], np.int32)
    copy = boxes.some(np.arange(len(boxes)))
    copy.numbers, copy.classes = new_numbers[boxes.numbers], list(classes)
    copy.ids = _ids(dict(zip(boxes.classes, boxes.ids, strict=True)), classes, ids)
    return copy


def _ids(own: dict[str, int], classes: list[str], ids: Sequence[int] | None) -> list[int]:
    """Each class's own id, else the one it has elsewhere, else one that is free."""
    ids_in_use, free = set(own.values()), max(own.values(), default=0) + 1
    expected = range(1, len(classes) + 1) if ids is None else ids
    return [
        own.get(name, i if i not in ids_in_use else free + c)
        for c, (name, i) in enumerate(zip(classes, expected, strict=True))
    ]


def hold_out(boxes: Boxes, share: float, seed: int) -> tuple[Boxes, Boxes]:
    """Split off a share of the images by the seed, of those with boxes and those without alike."""
    if not 0 < share < 1:
        raise ValueError(f"data.holdout: a share between 0 and 1, got {share}; try 0.1")
    in_validation = np.zeros(len(boxes), bool)
    alone = np.concatenate([[0], np.cumsum(~boxes.crowd)])
    full = alone[boxes.starts[1:]] > alone[boxes.starts[:-1]]
    for stream, those in enumerate((np.flatnonzero(full), np.flatnonzero(~full))):
        least = 1 if stream == 0 else 0
        count = min(max(least, round(share * len(those))), max(0, len(those) - 1))
        in_validation[np.random.default_rng((seed, stream)).permutation(those)[:count]] = True
    if not in_validation[full].any():
        raise ValueError("one image with boxes leaves none to validate; add images or a val set")
    train, val = (
        boxes.some(np.flatnonzero(~in_validation)),
        boxes.some(np.flatnonzero(in_validation)),
    )
    val.findings = {}  # reported once, with the training set
    return train, val


# -- layouts --------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Source:
    """A json and where its pictures may lie."""

    root: Path
    json: Path
    folders: tuple[Path, ...]

    def read(self, outlines: bool) -> Boxes:
        boxes = Boxes(self.root, coco.read(self.json, self.root, self.folders, outlines))
        _look_at(boxes)
        return boxes


@dataclass(frozen=True)
class _Layout:
    what: str
    train: _Source | None
    val: _Source | None
    warnings: tuple[str, ...] = ()


def _place(path: str) -> Path:
    place = Path(path)
    if not place.exists():
        raise FileNotFoundError(
            f"no folder or file {path!r}; check the path, or give a COCO json or its folder"
        )
    return place


def _layout(place: Path) -> _Layout:
    if place.is_file():
        if place.suffix.lower() != ".json":
            raise ValueError(f"{str(place)!r} is no COCO json; wanted: {KNOWN}")
        return _Layout(place.name, _alone(place), None)
    what = place.resolve().name
    for layout in (_instances(place, what), _roboflow(place, what)):
        if layout is not None:
            return layout
    jsons = [p for part in (place, place / "annotations") for p in files(part, "*.json")]
    if len(jsons) == 1:
        return _Layout(what, _alone(jsons[0]), None)
    if jsons:
        names = ", ".join(str(p.relative_to(place)) for p in jsons[:5])
        raise ValueError(
            f"{str(place)!r} holds {len(jsons)} json files ({names}); give one of them"
        )
    if not any(place.iterdir()):
        raise ValueError(f"{str(place)!r} is empty; wanted: {KNOWN}")
    if advice := foreign.advice(place, deep=True):
        raise ValueError(advice)
    if any((place / name).exists() for name in FOREIGN) or any(place.glob("*/labels")):
        raise ValueError(foreign.convert_first(place))
    raise ValueError(f"no COCO json in {str(place)!r}; wanted: {KNOWN}")


def _alone(json: Path) -> _Source:
    """A single json: pictures beside it, in images/, or where its folder's layout has them."""
    root = json.parent.parent if json.parent.name == "annotations" else json.parent
    split = json.stem.removeprefix("instances_")
    inside = (root, root / "images", root / "images" / split, root / split)
    return _Source(root, json, (json.parent, *inside))


def _instances(place: Path, what: str) -> _Layout | None:
    """annotations/instances_SPLIT.json, perhaps with a year; of two years the later."""
    jsons: dict[str, list[tuple[str, Path]]] = {}
    for json in files(place / "annotations", "instances_*.json"):
        match = re.fullmatch(rf"instances_(train|{'|'.join(VALIDATION)})(\d*)", json.stem)
        if match:
            jsons.setdefault(match[1], []).append((match[2], json))
    if not jsons:
        return None
    warnings = []
    sources: dict[str, _Source] = {}
    for split, candidates in jsons.items():
        year, json = max(candidates, key=lambda one: (len(one[0]), one[0]))
        if len(candidates) > 1:
            warnings.append(f"{split}: {len(candidates)} annotation files, {json.name} is used")
        names = dict.fromkeys((split + year, split, "val" if split in VALIDATION else split))
        folders = [f for name in names for f in (place / "images" / name, place / name)]
        sources[split] = _Source(place, json, (*folders, place / "images", place, json.parent))
    val = next((sources[name] for name in VALIDATION if name in sources), None)
    return _Layout(what, sources.get("train"), val, tuple(warnings))


def _roboflow(place: Path, what: str) -> _Layout | None:
    """SPLIT/_annotations.coco.json beside its pictures."""
    files = {
        split: _Source(place, place / split / "_annotations.coco.json", (place / split,))
        for split in ("train", *VALIDATION)
        if (place / split / "_annotations.coco.json").is_file()
    }
    if not files:
        return None
    val = next((files[name] for name in VALIDATION if name in files), None)
    return _Layout(what, files.get("train"), val)


# -- picture sizes --------------------------------------------------------------------------


def _look_at(boxes: Boxes) -> None:
    """Note pictures whose size is not the json's; in a large set, of some evenly spread ones."""
    indices = np.unique(np.linspace(0, len(boxes) - 1, min(len(boxes), LOOKED_AT)).round())
    more = f" among {LOOKED_AT} looked at" if len(indices) < len(boxes) else ""
    for i in indices.astype(int).tolist():
        stated_size = int(boxes.sizes[i][0]), int(boxes.sizes[i][1])
        real = picture.size(boxes.root / boxes.names[i])
        further = ""
        if real is None or stated_size == real.upright:
            continue
        if stated_size == real.stored:
            kind = f"pictures whose boxes fit only as stored, not upright (left as stored){more}"
        elif _factor(stated_size, real.upright) == (1.0, 1.0):
            kind = f"pictures of another shape than the json says (boxes as they stand){more}"
            further = _beyond(boxes, i, real.upright)
        else:
            kind = f"pictures of another size than the json says (boxes scaled){more}"
        where = "{} ({} x {} in the json, {} x {} upright{})"
        line = where.format(boxes.names[i], *stated_size, *real.upright, further)
        note(boxes.findings, kind, line)


def _beyond(boxes: Boxes, i: int, real: tuple[int, int]) -> str:
    own = boxes.boxes[boxes.starts[i] : boxes.starts[i + 1], 2:]
    count = int((own > np.array(real)).any(1).sum())
    return f"; {count} boxes reach beyond it and are clipped" if count else ""


# -- sentences about a set ------------------------------------------------------------------


def _first_finding(findings: Findings) -> str:
    sentences = sentences_about(findings, "train")
    return sentences[0] if sentences else "its list of annotations is empty"


def _in_both(train: Boxes, val: Boxes) -> list[str]:
    """A warning if pictures are in both sets, which makes the figures too good."""
    train_names = {train.name(i) for i in range(len(train))}
    both = [name for name in map(val.name, range(len(val))) if name in train_names]
    if not both:
        return []
    return [
        f"val: {len(both)} pictures are in the training set too, such as {both[0]!r}: "
        f"the validation figures are too good"
    ]


def _empty_classes(train: Boxes) -> list[str]:
    names = [name for name, n in zip(train.classes, train.counts(), strict=True) if not n]
    if not names:
        return []
    share = f"{len(names)} of {len(train.classes)}"
    return [f"train: {share} categories have no boxes to learn from, such as {names[0]!r}"]


def _summary(what: str, train: Boxes, val: Boxes, final: Boxes | None) -> str:
    use = "to validate" if final is None else "held out of them to choose the best model by"
    end = "" if final is None else f", {_counts(final)} to validate at the end"
    counts = f"{_counts(train)} to train on, {_counts(val)} {use}{end}"
    return f"{what}: {counts}, {len(train.classes)} classes"


def _counts(boxes: Boxes) -> str:
    """A sentence: images, boxes, images without boxes (background), and crowds."""
    empty, crowds = int((np.diff(boxes.starts) == 0).sum()), int(boxes.crowd.sum())
    more = [f"images without: {empty}"] if empty else []
    more += [f"crowds: {crowds}"] if crowds else []
    apart = f" ({', '.join(more)})" if more else ""
    return f"{len(boxes)} images with {int(boxes.counts().sum())} boxes{apart}"

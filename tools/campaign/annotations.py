"""Odd annotations: COCO, YOLO, VOC, a csv, and the legend of masks."""

import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from saccade.data import boxes, datasets, masks
from saccade.data.convert.run import convert
from saccade.data.picture import Unreadable
from saccade.recipes.recipe import Data
from tests.data import scenes
from tests.data.conftest import photo
from tests.data.convert.test_convert import xml
from tests.engine.detect_runs import boxes_folder
from tools.campaign.guard import guarded
from tools.campaign.odd import changed, changed_bytes
from tools.campaign.runs import clear
from tools.campaign.verdict import Finding, Outcome, attempted


class Annotations:
    """One small set of each layout, with one annotation file changed a trial."""

    def __init__(self, place: Path):
        self.place = place
        self.coco = boxes_folder(place / "coco", train=4, val=2, side=32)
        self.voc, self.yolo, self.csv = (place / name for name in ("voc", "yolo", "csv"))
        for n in range(4):
            photo(self.voc / f"JPEGImages/{n}.png", n)
            xml(
                self.voc / f"Annotations/{n}.xml",
                [("dog", (1, 1, 20, 18), ""), ("cat", (3, 4, 9, 8.5), "<difficult>1</difficult>")],
            )
            photo(self.csv / f"{n}.png", n)
        for split in ("train", "val"):
            (self.yolo / "labels" / split).mkdir(parents=True)
            for n in range(2):
                photo(self.yolo / f"images/{split}/{n}.png", n)
                text = "0 0.5 0.5 0.9 0.8\n1 0.25 0.5 0.125 0.1\n1 .1 .1 .5 .1 .5 .5 .1 .5\n"
                (self.yolo / f"labels/{split}/{n}.txt").write_text(text)
        (self.yolo / "data.yaml").write_text("path: .\nnames:\n  0: dog\n  1: cat\nnc: 2\n")
        lines = ["path,label,split"] + [f"{n}.png,{'ab'[n % 2]},{('train', 'val')[n // 2]}"
                                        for n in range(4)]  # fmt: skip
        (self.csv / "set.csv").write_text("\n".join(lines))
        self.masks = scenes.folder(place / "masks", train=3, val=2)

    def close(self) -> None:
        return

    def trial(self, chance: random.Random, folder: Path) -> Outcome:
        acts = (self.of_coco, self.of_yolo, self.of_voc, self.of_csv, self.of_masks)
        act = chance.choices(acts, (10, 4, 4, 4, 1))[0]
        with guarded():
            return act(chance)

    def changed(self, path: Path, chance: random.Random, act: Callable[[], Any]) -> tuple[Any, Any]:
        """What an act gives while a file is changed; afterwards the file is as it was."""
        whole = path.read_bytes()
        tree = path.suffix == ".json" and chance.random() < 0.85
        if tree:
            value = json.loads(whole)
            for _ in range(chance.choice((1, 1, 2, 5))):
                value = changed(value, chance)
            content = json.dumps(value).encode()
        else:
            content = changed_bytes(whole, chance)
        try:
            path.write_bytes(content)
            return attempted(act)
        except Finding as error:
            raise Finding(f"{path.name}: {error}\ncontent: {content[:3000]!r}") from error
        except Exception as error:
            error.add_note(f"{path.name}: {content[:3000]!r}")
            raise
        finally:
            path.write_bytes(whole)

    def of_coco(self, chance: random.Random) -> Outcome:
        split = chance.choice(("train", "train", "val"))
        path = self.coco / "annotations" / f"instances_{split}.json"
        _, sentence = self.changed(path, chance, lambda: check_boxes(self.coco))
        return Outcome(sentence is not None, f"coco: {sentence}")

    def of_yolo(self, chance: random.Random) -> Outcome:
        paths = [*sorted(self.yolo.glob("labels/*/*.txt")), self.yolo / "data.yaml"]
        return self.of_other(self.yolo, chance.choice(paths), chance)

    def of_voc(self, chance: random.Random) -> Outcome:
        return self.of_other(
            self.voc, chance.choice(sorted(self.voc.glob("Annotations/*"))), chance
        )

    def of_other(self, place: Path, path: Path, chance: random.Random) -> Outcome:
        out = self.place / "out"

        def act() -> None:
            convert(place, out)
            check_boxes(out)

        try:
            _, sentence = self.changed(path, chance, act)
        finally:
            clear(out)
        return Outcome(sentence is not None, f"{place.name}: {sentence}")

    def of_csv(self, chance: random.Random) -> Outcome:
        path = self.csv / "set.csv"

        def act() -> None:
            splits = datasets.find(str(path), Data(), 0)
            for part in (splits.train, splits.val):
                for i in range(len(part)):
                    check_label(part.labels[i], splits.classes)
                    _read(part, i)

        _, sentence = self.changed(path, chance, act)
        return Outcome(sentence is not None, f"csv: {sentence}")

    def of_masks(self, chance: random.Random) -> Outcome:
        path = self.masks / "classes.json"

        def act() -> None:
            splits = masks.find(str(self.masks), Data(), 0)
            for part in (splits.train, splits.val):
                for i in range(len(part)):
                    pair = _read(part, i)
                    if pair is not None:
                        values = np.unique(pair[1])
                        known = set(range(len(splits.classes))) | {masks.IGNORED}
                        if not set(values.tolist()) <= known:
                            raise Finding(f"a mask with {values}, {splits.classes}")

        _, sentence = self.changed(path, chance, act)
        return Outcome(sentence is not None, f"masks: {sentence}")


def _read(part: Any, i: int) -> Any:
    try:
        return part.read(i)
    except Unreadable:
        return None


def check_label(label: Any, classes: Any) -> None:
    if not 0 <= int(label) < len(classes):
        raise Finding(f"label {label} of {len(classes)} classes")


def check_boxes(place: Path) -> None:
    """Every box that was taken is finite, inside its picture, larger than nothing, and labelled."""
    splits = boxes.find(str(place), Data(), 0)
    for part in (splits.train, splits.val):
        for i in range(len(part)):
            pair = _read(part, i)
            if pair is None:
                continue
            image, target = pair
            for box, label in zip(target["boxes"].tolist(), target["labels"], strict=True):
                x, y, u, v = box
                if not (all(map(math.isfinite, box)) and 0 <= x < u and 0 <= y < v):
                    raise Finding(f"box {box} was taken")
                if u > image.width + 1e-3 or v > image.height + 1e-3:
                    raise Finding(f"box {box} was taken in a picture of {image.size}")
                check_label(label, splits.classes)

import contextlib
import importlib.util
import io
import json
import math
import sys
from typing import NamedTuple

import numpy as np
import pytest
import torch

from saccade.data import boxes
from saccade.recipes.recipe import Data
from saccade.tasks.detect.average_precision import FIGURES, AveragePrecision

CLASSES = ("ant", "bee", "cat", "dog", "eel", "fox")
IDS = (3, 1, 90, 44, 7, 8)


class Found(NamedTuple):
    boxes: torch.Tensor
    labels: torch.Tensor
    scores: torch.Tensor


def predict(output, sizes):
    assert len(output["found"]) == len(sizes)
    assert all(size == (400, 500) for size in sizes)
    return output["found"]


def metric():
    return AveragePrecision(CLASSES, IDS, predict)


# -- a set with all that is odd -------------------------------------------------------------


def scene(number, chance):
    """An image: what is there, and what a detector that is fairly good says of it.

    Eels are annotated nowhere but sometimes found, foxes neither; of dogs there are crowds. Every
    7th image is empty, every 5th has no predictions, every 11th more than the 100 that are counted.
    Corners are whole, so overlaps lie exactly on the thresholds; scores are few, so there are ties.
    """
    n = 0 if number % 7 == 0 else chance.randint(1, 9)
    corner = np.stack([chance.randint(0, 300, n), chance.randint(0, 200, n)], 1)
    sides = np.array([8, 20, 31, 32, 40, 90, 96, 97, 180])[chance.randint(0, 9, (n, 2))]
    truth = np.concatenate([corner, corner + sides], 1)
    labels = chance.randint(0, 4, n)
    crowd = (labels == 3) & (chance.rand(n) < 0.4)
    area = np.where(chance.rand(n) < 0.5, sides.prod(1), sides.prod(1) * 0.6)
    boxes, named = [], []
    for box, label in zip(truth, labels, strict=True):
        for _ in range(chance.randint(0, 4)):
            boxes.append(box + chance.randint(-6, 7, 4) * (chance.rand() < 0.8))
            named.append(label if chance.rand() < 0.85 else chance.randint(0, 5))
    for _ in range(chance.randint(0, 4)):  # of nothing
        x, y = chance.randint(0, 300, 2)
        boxes.append(np.array([x, y, x + 50, y + 30]))
        named.append(chance.randint(0, 5))
    if n and number % 11 == 3:
        for _ in range(120):
            box = truth[chance.randint(0, n)]
            boxes.append(box + chance.randint(-9, 10, 4))
            named.append(labels[0])
    if number % 5 == 0:
        boxes, named = [], []
    boxes = np.array(boxes, float).reshape(-1, 4)
    boxes[:, 2:] = np.maximum(boxes[:, 2:], boxes[:, :2] + 1)
    scores = chance.randint(1, 20, len(boxes)) / 20
    tensor = torch.tensor
    detections = Found(
        tensor(boxes, dtype=torch.float32), tensor(named).long(), tensor(scores).float()
    )
    target = {
        "boxes": tensor(truth, dtype=torch.float32).reshape(-1, 4),
        "labels": tensor(labels).long(),
        "crowd": tensor(crowd),
        "area": tensor(area, dtype=torch.float32),
        "id": 1000 - 3 * number,
        "original": tensor([400, 500]),
    }
    return detections, target


def scenes(count=60, seed=0):
    chance = np.random.RandomState(seed)  # a stream that is the same in every numpy
    return [scene(number, chance) for number in range(count)]


def batches(cases, size=8):
    for at in range(0, len(cases), size):
        detections, targets = zip(*cases[at : at + size], strict=True)
        target = {k: [t[k] for t in targets] for k in targets[0]}
        target["id"] = torch.tensor(target["id"])
        target["original"] = torch.stack(target["original"])
        yield {"found": list(detections)}, target


def counted(cases, size=8):
    result = metric()
    for output, target in batches(cases, size):
        result.update(output, target)
    return result


# What pycocotools 2.0.11 counts in scenes(), in percent; live() does it again where it is at hand.
STORED = {
    "AP": 13.563022845,
    "AP50": 22.698698466,
    "AP75": 12.008169672,
    "APs": 12.21192035,
    "APm": 15.361273047,
    "APl": 37.84605403,
    "AR1": 18.764705882,
    "AR10": 41.119251337,
    "AR100": 41.931194296,
    "ARs": 30.215204898,
    "ARm": 48.239130435,
    "ARl": 61.388888889,
}
STORED_CLASSES = {
    "bee": (9.141215569, 14.492310693),
    "ant": (15.630116747, 27.331915328),
    "dog": (20.067055738, 30.93625152),
    "cat": (9.413703325, 18.034316322),
}


def evaluated(truth, results):
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    with contextlib.redirect_stdout(io.StringIO()):
        known = COCO()
        known.dataset = truth
        known.createIndex()
        result = COCOeval(known, known.loadRes(results), "bbox")
        result.evaluate()
        result.accumulate()
        result.summarize()
    return result


def live(cases):
    """The twelve figures and the classes' AP and AP50, by pycocotools."""
    truth, results = [], []
    for detections, target in cases:
        for box, label, crowd, area in zip(
            target["boxes"].tolist(), target["labels"].tolist(), target["crowd"].tolist(),
            target["area"].tolist(), strict=True,
        ):  # fmt: skip
            x0, y0, x1, y1 = box
            truth.append(
                {
                    "id": len(truth) + 1, "image_id": target["id"], "category_id": IDS[label],
                    "bbox": [x0, y0, x1 - x0, y1 - y0], "area": area, "iscrowd": int(crowd),
                }
            )  # fmt: skip
        for box, label, score in zip(*(part.tolist() for part in detections), strict=True):
            x0, y0, x1, y1 = box
            results.append(
                {
                    "image_id": target["id"], "category_id": IDS[label],
                    "bbox": [x0, y0, x1 - x0, y1 - y0], "score": score,
                }
            )  # fmt: skip
    result = evaluated(
        {
            "images": [{"id": target["id"]} for _, target in cases],
            "annotations": truth,
            "categories": [{"id": i, "name": n} for i, n in zip(IDS, CLASSES, strict=True)],
        },
        results,
    )
    precision = result.eval["precision"][:, :, :, 0, -1]
    rows = {}
    for at, i in enumerate(result.params.catIds):
        known = precision[..., at]
        if (known > -1).any():
            ap, ap50 = known[known > -1].mean(), precision[0, :, at].mean()
            rows[CLASSES[IDS.index(i)]] = (100 * float(ap), 100 * float(ap50))
    return figures_of(result), rows


def figures_of(result):
    return {k: 100 * float(v) for k, v in zip(FIGURES, result.stats, strict=True) if v > -1}


def theirs(truth, results):
    return figures_of(evaluated(truth, results))


def same(ours, theirs):
    assert set(ours) - {"images"} == set(theirs)
    for name, value in theirs.items():
        assert ours[name] == pytest.approx(value, abs=1e-6), name


def test_figures_equal_those_stored():
    figures = counted(scenes()).compute()
    assert list(figures) == [*FIGURES, "images"]
    assert figures["images"] == 60
    same(figures, STORED)


def test_classes_equal_those_stored():
    rows = counted(scenes()).tables()["per_class"]
    assert [row["class"] for row in rows] == list(CLASSES)
    for row in rows:
        ap, ap50 = STORED_CLASSES.get(row["class"], (None, None))
        assert row["AP"] == pytest.approx(ap, abs=1e-6)
        assert row["AP50"] == pytest.approx(ap50, abs=1e-6)
    alone = torch.cat([t["labels"][~t["crowd"]] for _, t in scenes()])
    assert [row["boxes"] for row in rows] == torch.bincount(alone, minlength=6).tolist()
    json.dumps(rows, allow_nan=False)
    known = [row["AP"] for row in rows if row["AP"] is not None]
    assert sum(known) / len(known) == pytest.approx(STORED["AP"], abs=1e-9)


@pytest.mark.skipif(
    importlib.util.find_spec("pycocotools") is None,
    reason="no pycocotools to compare with here; its stored figures are held above",
)
@pytest.mark.parametrize("seed", range(6))
def test_figures_equal_pycocotools(seed):
    cases = scenes(20 + 10 * seed, seed)
    figures, rows = live(cases)
    result = counted(cases, 5)
    same(result.compute(), figures)
    for row in result.tables()["per_class"]:
        ap, ap50 = rows.get(row["class"], (None, None))
        assert row["AP"] == pytest.approx(ap, abs=1e-6)
        assert row["AP50"] == pytest.approx(ap50, abs=1e-6)
    if seed == 0:
        same(counted(scenes()).compute(), live(scenes())[0])
        assert live(scenes())[0] == pytest.approx(STORED, abs=1e-9), "what is stored is its word"


def test_the_fixture_holds_what_it_says():
    cases = scenes()
    assert any(not len(t["boxes"]) for _, t in cases)
    assert any(len(t["boxes"]) and not len(f.boxes) for f, t in cases)
    assert any(t["crowd"].any() for _, t in cases)
    labels = torch.cat([t["labels"] for _, t in cases])
    assert 4 not in labels
    assert 4 in torch.cat([f.labels for f, _ in cases])
    area = torch.cat([t["area"] for _, t in cases])
    for low, high in ((0, 32**2), (32**2, 96**2), (96**2, math.inf)):
        assert ((area > low) & (area < high)).sum() > 20
    scores = torch.cat([f.scores for f, _ in cases])
    assert len(scores.unique()) < len(scores) / 5, "ties"


def test_small_cases_by_hand():
    box = torch.tensor([[10.0, 10, 110, 110]])

    def one(boxes, score, truth=box, label=0):
        result = metric()
        n = len(boxes)
        output = {"found": [Found(boxes, torch.full((n,), label), torch.full((n,), score))]}
        target = {
            "boxes": truth[None], "labels": torch.zeros(1, len(truth), dtype=torch.int64),
            "crowd": torch.zeros(1, len(truth), dtype=torch.bool),
            "area": torch.full((1, len(truth)), 10_000.0), "id": torch.tensor([5]),
            "original": torch.tensor([[400, 500]]),
        }  # fmt: skip
        result.update(output, target)
        return result.compute()

    assert one(box, 0.9)["AP"] == pytest.approx(100)
    assert one(box, 0.9, label=1)["AP"] == 0, "right place, wrong name"
    sixty = torch.tensor([[10.0, 10, 110, 72]])  # an overlap of .62: right at .50, .55 and .60
    assert one(sixty, 0.9)["AP"] == pytest.approx(30)
    assert one(sixty, 0.9)["AP50"] == pytest.approx(100)
    assert one(sixty, 0.9)["AP75"] == 0
    assert "APs" not in one(box, 0.9), "there is no small object to be found"
    assert one(box, 0.9)["APl"] == pytest.approx(100)
    nothing = torch.zeros(0, 4)
    assert one(nothing, 0.9) == {
        "AP": 0, "AP50": 0, "AP75": 0, "APl": 0, "AR1": 0, "AR10": 0, "AR100": 0, "ARl": 0,
        "images": 1,
    }  # fmt: skip
    lost = torch.tensor([[10.0, 10, 110, math.nan], [10, 10, 110, 110]])
    assert one(lost, 0.5)["AP"] == pytest.approx(100), "a box that is none is no box"


@pytest.mark.data
def test_a_real_set(shared):
    """coco384's own json, read by pycocotools, against what our set and metric make of it."""
    place = shared / "data/detection/coco384"
    if not place.is_dir():
        pytest.skip("no coco384 in the shared data")
    val = boxes.find(str(place), Data()).train  # which has crowds and empty images
    chance = np.random.RandomState(0)
    result = AveragePrecision(val.classes, val.ids, lambda output, sizes: output["found"])
    truth = json.loads((place / "annotations/instances_train.json").read_text())
    for i in range(len(val)):
        start, stop = val.starts[i], val.starts[i + 1]
        n = stop - start
        moved = val.boxes[start:stop] + chance.normal(0, 4, (n, 4))
        named = np.where(chance.rand(n) < 0.8, val.numbers[start:stop], chance.randint(0, 80, n))
        detections = Found(*map(torch.from_numpy, (moved, named, chance.rand(n))))
        target = {
            "boxes": [torch.from_numpy(val.boxes[start:stop])],
            "labels": [torch.from_numpy(val.numbers[start:stop])],
            "crowd": [torch.from_numpy(val.crowd[start:stop])],
            "area": [torch.from_numpy(val.area[start:stop])],
            "id": torch.tensor([int(val.keys[i])]),
            "original": torch.tensor([[1, 1]]),
        }
        result.update({"found": [detections]}, target)
    figures = result.compute()
    assert figures["images"] == 256
    assert 5 < figures["AP"] < 60
    if importlib.util.find_spec("pycocotools") is None:
        pytest.skip("no pycocotools to compare with here")
    same(figures, theirs(truth, result.results()))


# -- several processes ----------------------------------------------------------------------


@pytest.mark.parametrize("processes", [2, 3])
def test_shares_of_processes_add_up(processes):
    cases = scenes()
    shares = [counted(cases[rank::processes], 7) for rank in range(processes)]
    whole = metric()
    for share in shares:
        whole.add(share.state())
    assert whole.compute() == counted(cases).compute()
    assert whole.tables() == counted(cases).tables()


def test_an_image_counts_once():
    cases = scenes(20)
    whole = counted(cases)
    whole.add(counted(cases[5:12]).state())
    for output, target in batches(cases[:4]):
        whole.update(output, target)
    assert whole.compute() == counted(cases).compute()


def test_figures_follow_what_is_added():
    cases = scenes(30)
    result = counted(cases[:20])
    before = result.compute()
    result.add(counted(cases[20:]).state())
    assert result.compute() == counted(cases).compute() != before


def test_the_order_of_images_makes_no_difference():
    cases = scenes(30)
    assert counted(cases[::-1], 3).compute() == counted(cases, 30).compute()


def test_state_is_plain():
    state = counted(scenes(3)).state()
    for one in state["by_image"].values():
        assert all(type(part) is torch.Tensor and not part.requires_grad for part in one.values())


# -- what is said and what is not -----------------------------------------------------------


def test_results_are_in_cocos_format():
    cases = scenes(6)
    results = counted(cases).results()
    assert len(results) == sum(len(detections.boxes) for detections, _ in cases)
    detections, target = cases[1]
    mine = [row for row in results if row["image_id"] == target["id"]]
    assert [row["category_id"] for row in mine] == [IDS[label] for label in detections.labels]
    for row, (x0, y0, x1, y1) in zip(mine, detections.boxes.tolist(), strict=True):
        assert row["bbox"] == [x0, y0, x1 - x0, y1 - y0]
        assert set(row) == {"image_id", "category_id", "bbox", "score"}
    unnamed = AveragePrecision(CLASSES, None, predict)
    unnamed.add(counted(cases).state())
    assert {row["category_id"] for row in unnamed.results()} <= set(range(1, 7))


def test_nothing_is_printed(capfd, caplog):
    with caplog.at_level("DEBUG"):
        counted(scenes(10)).compute()
    assert capfd.readouterr() == ("", "")
    assert not [r for r in caplog.records if r.name.startswith("saccade") or r.levelname != "DEBUG"]


def test_nothing_counted_is_said():
    with pytest.raises(ValueError, match="no image was read"):
        metric().compute()
    with pytest.raises(ValueError, match="no box to be found in 1 images; check the validation"):
        counted(scenes(1)).compute()


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "faster_coco_eval", None)
    with pytest.raises(ImportError, match=r"pip install 'saccade\[detection\]'"):
        metric()

"""Mask R-CNN from a folder to masks on pictures, by the same loop as any other task."""

import json

import numpy as np
import pytest
from PIL import Image

from saccade.data.boxes.outlines import decoded
from saccade.engine import session
from saccade.recipes.recipe import change
from saccade.report import evaluation
from tests.engine.classify_runs import fit
from tests.engine.instance_runs import FIRST, OUTLINED, outlines_folder


@pytest.mark.slow
def test_it_learns_outlines(tmp_path, monkeypatch, capsys):
    from saccade import cli

    monkeypatch.chdir(tmp_path)
    data = outlines_folder(tmp_path / "data")
    recipe = change(OUTLINED, schedule__epochs=60)
    run = fit(recipe, data, tmp_path / "runs" / "outlined")
    (line,) = run.lines()
    assert next(iter(line["val"])) == "mask_AP"
    assert line["val"]["mask_AP50"] > 50, line
    counted = session.evaluation(run.folder, device="cpu")
    assert counted.metric.compute()["mask_AP"] == pytest.approx(line["val"]["mask_AP"], abs=1e-6)
    written = evaluation.write(counted, run.folder / "eval", "outlined")
    assert written.sentences == []
    cli.main(["detect", "data/images/val", "--model", "runs/outlined"])
    rows = json.loads((tmp_path / "detected/results.json").read_text())
    truth = json.loads((data / "annotations/instances_val.json").read_text())
    assert {row["category_id"] for row in rows} <= {FIRST, FIRST + 1}
    near = 0
    for row in rows:
        runs = row["segmentation"]
        (mask,) = decoded([runs["counts"].encode()], (80, 64))
        assert runs["size"] == [64, 80]
        x, _, w, _ = row["bbox"]
        _, columns = mask.nonzero()
        near += len(columns) > 0 and abs(columns.mean() - x - w / 2) < 4
    assert near > 0.7 * len(rows) > 0
    assert truth["images"][0]["width"] == 80
    drawn = np.asarray(Image.open("detected/001.png"), int)
    plain = np.asarray(Image.open(data / "images/val/001.png"), int)
    assert (np.abs(drawn - plain).sum(2) > 30).sum() > 200, "a mask is shaded"


def test_a_set_without_outlines_is_refused(tmp_path):
    data = outlines_folder(tmp_path / "data", 2, 2)
    file = data / "annotations/instances_train.json"
    plain = json.loads(file.read_text())
    for box in plain["annotations"]:
        box.pop("segmentation")
    file.write_text(json.dumps(plain))
    with pytest.raises(ValueError, match="objects without an outline"):
        fit(OUTLINED, data, tmp_path / "run")

"""What an evaluation writes, read again by COCO's own tools and as a person would."""

import json

import pytest

from saccade.engine import session
from saccade.report import evaluation
from tests.engine import shared_runs
from tests.report.test_page import Reader


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    data, run = shared_runs.detector(tmp_path_factory)
    counted = session.evaluation(run.folder, device="cpu")
    folder = run.folder / "eval"
    return data, run, counted, evaluation.write(counted, folder, "things <b>"), folder


def read(folder, name):
    return json.loads((folder / name).read_text())


def test_coco_counts_the_same_of_the_two_files(written):
    from faster_coco_eval import COCO, COCOeval_faster

    data, _, counted, _, folder = written
    truth = COCO(str(folder / "truth.json"), print_function=lambda *_: None)
    guesses = truth.loadRes(str(folder / "results.json"))
    again = COCOeval_faster(truth, guesses, "bbox", print_function=lambda *_: None)
    again.run()
    assert 100 * again.stats[0] == pytest.approx(counted.metric.compute()["AP"], abs=1e-6)
    annotated = read(data, "annotations/instances_val.json")
    assert truth.dataset["categories"] == annotated["categories"]
    sizes = [[one[key] for key in ("id", "width", "height")] for one in truth.dataset["images"]]
    assert sizes == [[one[key] for key in ("id", "width", "height")] for one in annotated["images"]]
    assert [a["bbox"] for a in truth.dataset["annotations"]] == [
        a["bbox"] for a in annotated["annotations"]
    ]


def test_images_are_named_by_their_ids(written):
    *_, folder = written
    assert read(folder, "images.json") == {str(i): f"images/val/00{i}.png" for i in range(1, 5)}


def test_the_page_shows_faults_and_loads_nothing(written):
    _, _, counted, files, folder = written
    assert files.sentences == []
    assert files.files[0] == folder / "report.html"
    for name in ("confusion.png", "classes.png", "precision.png", "figures.json", "tables.json"):
        assert folder / name in files.files
    page = Reader((folder / "report.html").read_text())
    assert "script" not in page.tags
    assert all(one.startswith("data:") for one in page.fetched)
    text = page.text
    assert "things <b>" in text
    assert "missed" in text
    assert len(read(folder, "tables.json")["examples"].popitem()[1]) == 4
    figures = read(folder, "figures.json")["figures"]
    assert figures["AP"] == pytest.approx(counted.metric.compute()["AP"])


def test_where_it_is_written(written, tmp_path):
    data, run, *_ = written
    folder = run.folder
    assert evaluation.folder_of(folder, None, "val") == folder / "eval"
    assert evaluation.folder_of(folder, run.data, "train") == folder / "eval_train"
    assert evaluation.folder_of(folder, str(tmp_path / "more"), "val") == folder / "eval_more"
    assert evaluation.folder_of(folder / "model.safetensors", str(data), "val") is None

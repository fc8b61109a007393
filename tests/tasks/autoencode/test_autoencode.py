"""Auto-encoders, from a folder of pictures to figures and a picture, through the one loop."""

import numpy as np
import pytest
from PIL import Image

import saccade
from saccade import tasks
from saccade.engine import make, session
from saccade.infer.detect import Detector
from saccade.infer.predict import guesses
from saccade.recipes.recipe import change
from saccade.report.summary import Summary
from saccade.tasks.autoencode.task import AutoEncodeTask
from tests.data.scenes import scene
from tests.engine.classify_runs import fit
from tests.engine.dense_runs import AUTOENCODE


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root, chance = tmp_path_factory.mktemp("sea"), np.random.default_rng(0)
    for i in range(14):
        scene(chance, 64, 64)[0].save(root / f"{i}.png")
    return root


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    return fit(AUTOENCODE, data, tmp_path_factory.mktemp("runs") / "a")


def test_it_learns_and_the_model_comes_back(run):
    lines = run.lines()
    best = max(line["val"]["psnr"] for line in lines)
    losses = [line["loss"]["l1"] for line in run.lines("steps.jsonl")]
    assert sum(losses[-4:]) < 0.6 * sum(losses[:4])
    assert list(lines[-1]["val"]) == ["psnr", "ssim", "l1", "images"]
    ready = session.open_model(run.folder)
    assert isinstance(ready.task, AutoEncodeTask)
    assert ready.classes == []
    assert session.evaluate(run.folder).compute()["psnr"] == pytest.approx(best)


def test_no_command_is_named_where_there_is_none(run, data):
    for ask in (
        lambda: Detector(run.folder),
        lambda: next(guesses([str(data)], run.folder)),
    ):
        with pytest.raises(ValueError, match=r"was trained to autoencode$"):
            ask()


def test_its_picture_lies_in_the_folder_and_on_the_page(run):
    with Image.open(run.folder / "reconstruction.png") as picture:
        assert picture.size == (64, 128)  # the one image held out, above what came back
    page = (run.folder / "report.html").read_text()
    assert "<h2>Reconstruction</h2>" in page
    assert "0 classes" not in page
    assert "saccade predict" not in page
    one = Summary.of(run)
    assert one.figure == "psnr"
    assert one.parameters() == sum(p.numel() for p in saccade.load(run.folder).parameters())


def test_all_of_a_saved_one_is_taken_to_start_from(run):
    net = make.model(change(AUTOENCODE, model__start=str(run.folder)), 0)
    trained = saccade.load(run.folder).state_dict()
    assert all((v == trained[k]).all() for k, v in net.state_dict().items())
    other = change(AUTOENCODE, model__start=str(run.folder), task__decoder="transpose")
    with pytest.raises(ValueError, match="is another model"):
        make.model(other, 0)


def test_its_words_belong_to_it():
    assert tasks.of(AUTOENCODE).name == "autoencode"
    with pytest.raises(ValueError, match="trains the model 'autoencoder', got 'qna_t'"):
        make.model(change(AUTOENCODE, model__name="qna_t"), 0)
    with pytest.raises(ValueError, match=r"augment\.mixup: mixes labels"):
        tasks.of(AUTOENCODE).train_transform(
            change(AUTOENCODE.augment, mixup=0.2), (0, 0, 0), (1, 1, 1)
        )
    net = make.model(
        change(AUTOENCODE, task__encoder="conv", task__decoder="qna", task__start="bilinear"), 0
    )
    expected = {"encoder": "conv", "decoder": "qna", "dim": 8, "in_chans": 3, "start": "bilinear"}
    assert net.arguments == expected

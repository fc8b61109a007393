import pytest

from saccade.infer.predict import guesses
from saccade.recipes.recipe import change
from tests.engine.classify_runs import PLAIN, fit, folder


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return folder(tmp_path_factory.mktemp("colours"), train=16)


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    recipe = change(PLAIN, schedule__epochs=6)
    return fit(recipe, data, tmp_path_factory.mktemp("runs") / "run")


def test_guesses_over_files_folders_and_patterns(run, data, tmp_path):
    (tmp_path / "broken.jpg").write_bytes(b"\xff\xd8 no picture")
    words = [str(data / "val" / "red"), str(data / "val" / "blue" / "*.png"),
             str(tmp_path / "broken.jpg"), "gone.png"]  # fmt: skip
    answers = dict(guesses(words, run.folder))
    assert len(answers) == 3 + 3 + 1 + 1
    right = [guess[0].label == file.split("/")[-2] for file, guess in answers.items()
             if not isinstance(guess, str)]  # fmt: skip
    assert sum(right) >= 5
    assert "no readable picture" in answers[str(tmp_path / "broken.jpg")]
    assert "gone.png" in answers["gone.png"]


def test_a_model_must_know_its_classes(tmp_path):
    import saccade

    path = saccade.save(saccade.build("qna_nano", num_classes=2), tmp_path / "m.safetensors")
    with pytest.raises(ValueError, match="holds no class names"):
        next(guesses(["x.png"], path))
    with pytest.raises(ValueError, match="at least one class"):
        next(guesses(["x.png"], path, top=0))
    with pytest.raises(FileNotFoundError, match="no trained model yet"):
        next(guesses(["x.png"], tmp_path))

"""`saccade export` and the example that runs its file, as typed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from saccade.recipes.recipe import change
from tests.engine.small import PLAIN, fit, folder

EXAMPLE = Path(__file__).parents[2] / "examples" / "predict_onnx.py"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    place = tmp_path_factory.mktemp("ship")
    data = folder(place / "colours")
    recipe = change(PLAIN, model__name="sasa_nano_conv", schedule__epochs=6)
    return fit(recipe, data, place / "run").folder


def test_an_exported_model_predicts_without_torch(run, trained, untyped):
    code, out = run("export", str(trained), "--int8")
    assert code == 0, out
    assert "any batch and size" in out
    assert "int8" in out
    photo = trained.parent / "colours" / "val" / "red" / "0.png"
    code, out = run("predict", str(photo), "--model", str(trained), "--json")
    ours = {g["label"]: g["share"] for g in json.loads(out)["guesses"]}
    program = (
        f"import sys; sys.argv = ['x', {str(trained / 'model.onnx')!r}, {str(photo)!r}]\n"
        f"exec(open({str(EXAMPLE)!r}).read())\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    theirs = {line.split()[1]: float(line.split()[0][:-1]) for line in done.stdout.splitlines()[1:]}
    assert theirs == pytest.approx({k: 100 * v for k, v in ours.items()}, abs=0.2)


def test_the_example_is_short():
    assert len(EXAMPLE.read_text().splitlines()) <= 60


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["linglo_b0", "--to", "onx"], "did you mean 'onnx'"),
        (["linglo_b0"], "comes without weights"),
        (["nowhere"], "no run or saved model"),
        (["linglo_b0", "--to", "torch", "--int8"], "int8 is for ONNX"),
        (["linglo_b0", "--untrained", "--int8"], "give a trained model"),
    ],
)
def test_what_cannot_be_exported_is_said(run, words, said):
    code, out = run("export", *words)
    assert code == 2
    assert said in out


def test_what_an_exporter_stumbles_over_is_one_sentence(run, trained, monkeypatch):
    from saccade import export

    def stumble(*_):
        raise KeyError("a graph\nof many lines")

    monkeypatch.setattr(export, "to_torch", stumble)
    code, out = run("export", str(trained), "--to", "torch")
    assert code == 2
    assert "does not go to torch (KeyError" in out
    assert "Traceback" not in out

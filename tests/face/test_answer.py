"""`model.predict`, `model.attention`, `model.transform`: of whatever somebody calls a picture."""

import copy
import json
import pickle

import numpy as np
import pytest
import timm
import timm.data
import torch
from PIL import Image

import saccade
from saccade.engine import make
from saccade.infer.predict import guesses
from saccade.recipes.disk import to_plain
from tests.data.scenes import NAMES
from tests.engine.dense_runs import SEGMENT
from tests.engine.detect_runs import THINGS


@pytest.fixture(scope="module")
def model():
    return saccade.load("linglo_nano")


@pytest.fixture(scope="module")
def photo(tmp_path_factory):
    chance = np.random.default_rng(0)
    pixels = chance.integers(0, 255, (24, 30, 3), np.uint8).repeat(6, 0).repeat(6, 1)
    path = tmp_path_factory.mktemp("photo") / "photo.png"
    Image.fromarray(pixels).save(path)
    return path, pixels


def test_every_form_of_a_picture_has_one_answer(model, photo):
    path, pixels = photo
    ((_, expected),) = guesses([str(path)], "linglo_nano")
    tensor = torch.from_numpy(pixels.copy()).permute(2, 0, 1)
    for form in (path, str(path), Image.open(path), pixels, pixels / 255, tensor, tensor / 255):
        answer = model.predict(form)
        assert answer.labels == tuple(guess.label for guess in expected)
        assert answer.scores == pytest.approx([guess.share for guess in expected], abs=1e-5)
    several = model.predict([path, pixels, [Image.open(path)]], top=2, batch=2)
    assert [answer.label for answer in several] == [expected[0].label] * 3
    assert len(several[0].labels) == 2
    assert len(model.predict(tensor[None])) == 1
    assert len(model.predict(str(path.parent))) == 1


def test_grey_clear_and_deep_pictures(model, photo):
    _, pixels = photo
    grey = pixels[..., 0]
    expected = model.predict(np.stack([grey] * 3, -1)).scores
    for form in (grey, torch.from_numpy(grey.copy()), Image.fromarray(grey), grey[..., None]):
        assert model.predict(form).scores == pytest.approx(expected)
    deep = Image.fromarray(grey.astype(np.int32) * 257)
    assert model.predict(deep).scores == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("form", "sentence"),
    [
        (np.zeros((3, 20, 20), np.uint8), "H W 3"),
        (torch.zeros(20, 20, 3), "3 H W"),
        (torch.randn(3, 20, 20), "before it is normalised"),
        (np.full((20, 20, 3), np.nan), r"in 0\.\.1"),
        (np.full((20, 20, 3), 300), "bytes are 0..255"),
        (np.zeros((0, 20, 3), np.uint8), "is no picture"),
        ("https://example.org/cat.jpg", "nothing is fetched"),
        ("gone.jpg", "there is no such file"),
    ],
)
def test_what_is_no_picture_is_refused(model, form, sentence):
    with pytest.raises(ValueError, match=sentence):
        model.predict(form)


def test_other_things_and_options_are_refused(model, photo):
    with pytest.raises(TypeError, match="give a file"):
        model.predict(3)
    with pytest.raises(ValueError, match="score is nothing that a model trained to classify has"):
        model.predict(photo[1], score=0.5)
    with pytest.raises(ValueError, match="top is how many"):
        model.predict(photo[1], top=0)
    with pytest.raises(ValueError, match="its classifier is untrained"):
        saccade.build("qna_nano").predict(photo[1])


def test_the_model_stays_what_it_was(photo):
    model = saccade.load("qna_nano").train()
    model.head.eval()
    expected = model.predict(photo[1]).scores
    assert model.training
    assert not model.head.training
    assert model.backbone.training
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert other.predict(photo[1]).scores == pytest.approx(expected)
        assert list(other.state_dict()) == list(model.state_dict())
    assert copy.deepcopy(model).eval().fuse().predict(photo[1]).scores == pytest.approx(
        expected, abs=1e-4
    )
    half = copy.deepcopy(model).to(torch.bfloat16)
    assert half.predict(photo[1]).scores == pytest.approx(expected, abs=0.05)


def test_a_model_of_timms_answers_and_stays_one(tmp_path, photo):
    net = timm.create_model("resnet18", num_classes=3)
    test = {"size": 64, "crop": 1.0, "interpolation": "bilinear"}
    path = saccade.save(net, tmp_path / "m.safetensors", classes=["a", "b", "c"], test=test)
    model = saccade.load(path)
    assert isinstance(model, type(net))
    assert type(model).__name__ == "ResNet"
    assert set(model.predict(photo[1]).labels) == {"a", "b", "c"}
    again = pickle.loads(pickle.dumps(copy.deepcopy(model)))
    assert again.predict(photo[1]).scores == pytest.approx(model.predict(photo[1]).scores)
    assert torch.export.export(model, (torch.zeros(1, 3, 64, 64),)) is not None
    with pytest.raises(ValueError, match="no attention to draw"):
        model.attention(photo[1])


def test_timms_own_path_sees_what_ours_sees(model, photo):
    path, _ = photo
    config = timm.data.resolve_model_data_config(model)
    assert (config["input_size"], config["crop_pct"]) == ((3, 96, 96), 1.0)
    assert config["interpolation"] == "bilinear"
    x = timm.data.create_transform(**config)(Image.open(path))
    assert torch.allclose(x, model.transform(Image.open(path)), atol=1e-5)
    net = timm.create_model("linglo_nano", pretrained=True).eval()
    assert net.predict(path).label == model.predict(path).label


def test_a_new_classifier_as_in_timm(model, photo):
    one = saccade.load("linglo_nano", num_classes=7)
    assert one.num_classes == one.default_cfg["num_classes"] == 7
    assert one(torch.zeros(2, 3, 96, 96)).shape == (2, 7)
    weights = model.state_dict()
    same = [torch.equal(v, weights[k]) for k, v in one.state_dict().items() if "head" not in k]
    assert all(same)
    with pytest.raises(ValueError, match="no names of classes"):
        one.predict(photo[1])
    assert one.transform(Image.fromarray(photo[1])).shape == (3, 96, 96)
    features = saccade.load("linglo_nano", num_classes=0)
    assert features(torch.zeros(1, 3, 96, 96)).shape == (1, features.num_features)
    with pytest.raises(ValueError, match="num_classes is a whole number"):
        saccade.load("linglo_nano", num_classes="many")


@pytest.mark.parametrize("name", ["linglo_nano", "qna_nano", "sasa_nano"])
def test_attention_of_every_family(name, photo):
    path, pixels = photo
    model = saccade.load(name)
    maps = model.attention(path)
    assert len(maps) >= 3
    for layer, heads in maps.items():
        assert heads.ndim == 3
        assert len(maps.labels[layer]) == len(heads)
        assert model.get_submodule(layer) is not None
    if name == "linglo_nano":
        assert all(heads.sum((1, 2)) == pytest.approx(1, abs=1e-4) for heads in maps.values())
        with pytest.raises(ValueError, match="same for every pixel"):
            model.attention(path, at=(70, 80))
    else:
        there, here = model.attention(pixels, at=(70, 80)), model.attention(pixels, at=(10, 30))
        assert any(not np.array_equal(there[k], here[k]) for k in there)
    with pytest.raises(ValueError, match="one picture"):
        model.attention([path, path])


def test_attention_shows_itself(model, photo):
    pytest.importorskip("matplotlib")
    assert model.attention(photo[0])._repr_png_().startswith(b"\x89PNG")


def test_a_notebook_shows_models_and_answers(model, photo):
    assert "abyssinian" in model._repr_html_()
    assert "<img" in model.predict(photo[0])._repr_html_()


@pytest.mark.parametrize(("kind", "size"), [("segment", (40, 52)), ("detect", (64, 80))])
def test_boxes_and_masks(tmp_path, kind, size):
    """Of fresh networks: what they say makes no sense, but has its form."""
    recipe, classes = (SEGMENT, NAMES) if kind == "segment" else (THINGS, ["disc", "slab"])
    plain = to_plain(recipe)
    path = saccade.save(
        make.model(recipe, len(classes)), tmp_path / "m.safetensors", classes=list(classes),
        task=plain["task"], test=plain["test"],
    )  # fmt: skip
    model = saccade.load(path)
    photo = np.random.default_rng(0).integers(0, 255, (*size, 3), np.uint8)
    one, other = model.predict([photo, photo[:, :40]])
    assert one.draw().size[0] >= size[1]
    if kind == "segment":
        assert (one.mask.shape, other.mask.shape) == (size, (size[0], 40))
        assert sum(one.shares.values()) == pytest.approx(1)
    else:
        several = model.predict(photo, score=0.0)
        assert several.boxes.shape == (len(several.labels), 4)
        assert len(model.predict(photo, score=1.0).labels) == 0
    assert json.dumps(one.plain())

"""The trained models in the package: found by name, as good as their cards say, free to give."""

import json
import re

import pytest
import timm
import torch
from safetensors import safe_open

import saccade
from saccade import samples, weights
from saccade.cli.learn import newest_or_own
from saccade.data import cifar
from saccade.engine import session

every = pytest.mark.parametrize("name", weights.NAMES)
CREDITS = {
    "pets37": "Oxford-IIIT Pet", "cifar10": "A. Krizhevsky", "clothing10": "A. Grigorev",
}  # fmt: skip
each_classifier = pytest.mark.parametrize("name", weights.classifiers())


def test_which_classifiers_there_are():
    for family in ("linglo", "qna", "sasa"):
        assert f"{family}_nano.pets37" in weights.classifiers()
    assert "linglo_cifar.cifar10" in weights.classifiers()
    listed = set(timm.list_pretrained(["linglo_*", "qna_*", "sasa_*"]))
    assert listed == {*weights.classifiers()}


def test_a_header_is_what_safetensors_reads():
    for name in weights.NAMES:
        with safe_open(weights.FILES[name], "pt") as file:
            assert json.loads(file.metadata()["saccade"]) == weights.header(name)


@every
def test_it_loads_and_says_something_about_a_picture(name):
    answer = saccade.load(name).predict(samples.path("cat"))
    first = weights.full(name.partition(".")[0])
    assert saccade.load(name.partition(".")[0]).notes == weights.header(first)["notes"]
    assert str(answer)


def test_a_command_takes_what_comes_with_saccade_where_there_is_no_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert newest_or_own("predict") == "linglo_cifar.cifar10"
    assert newest_or_own("detect") == "linglo_cifar_retinanet.pets_heads_trimaps"
    assert newest_or_own("segment") == "linglo_cifar_semantic_fpn.pets_heads_trimaps"
    with pytest.raises(FileNotFoundError, match="with which model"):
        newest_or_own("upscale")


def test_what_comes_with_the_package_finds_a_cats_head_and_its_pixels():
    """The sample is nearly all cat; its head, in the middle, is larger than any that was learnt."""
    cat = samples.path("cat")
    heads = saccade.load("linglo_cifar_retinanet").predict(cat)
    inside = [b for b in heads.boxes[:3] if b[0] < 260 < b[2] and b[1] < 110 < b[3]]
    assert len(inside) >= 2
    assert "cat_head" in heads.labels[:3]
    mask = saccade.load("linglo_cifar_semantic_fpn").predict(cat).mask
    assert (mask == 1).mean() > 0.6


@each_classifier
def test_it_has_a_card(name):
    card, data = weights.about(name), name.partition(".")[2].removesuffix(weights.TAUGHT)
    for words in (CREDITS[data], "Licence of these weights", f"--data {data}", "top-1"):
        assert words in card


@every
def test_nothing_of_the_machine_that_made_it_is_inside(name):
    with safe_open(weights.FILES[name], "pt") as file:
        metadata = json.dumps(file.metadata())
    assert not re.search(r"[\"' ]/\w", metadata + weights.about(name))


@each_classifier
def test_its_names_mean_one_model(name):
    x = torch.randn(2, 3, 96, 96)
    short = name.partition(".")[0]
    model = saccade.load(name)
    expected, test = model(x), model.notes["test"]
    words = (name, short) if weights.full(short) == name else (name,)
    for word in words:
        assert torch.equal(saccade.load(word)(x), expected)
        net = timm.create_model(word, pretrained=True).eval()
        assert torch.equal(net(x), expected)
        assert net.pretrained_cfg["input_size"] == (3, test["size"], test["size"])
        assert list(net.pretrained_cfg["label_names"]) == list(model.notes["classes"])
    assert name in timm.list_pretrained(f"{short}.*")


@each_classifier
def test_untrained_and_for_1000_classes_unless_asked(name):
    short = name.partition(".")[0]
    trained = saccade.load(name).state_dict()
    for net in (timm.create_model(short), saccade.build(short)):
        assert net.num_classes == 1000
        key = next(k for k, v in net.state_dict().items() if v.ndim == 4)
        assert not torch.equal(net.state_dict()[key], trained[key])


@each_classifier
def test_its_backbone_begins_another(name):
    short = name.partition(".")[0]
    trained = saccade.load(short)
    net = timm.create_model(short, pretrained=True, num_classes=5)
    assert net.num_classes == 5
    x = torch.randn(1, 3, 64, 64)
    maps = timm.create_model(short, pretrained=True, features_only=True).eval()(x)
    assert torch.allclose(maps[-1], net.eval().forward_features(x), atol=1e-5)
    assert torch.allclose(maps[-1], trained.forward_features(x), atol=1e-5)


def pictures_of(tag, shared):
    """What `--data` takes for the set of that name; skips the test where its pictures are not."""
    if tag == "cifar10":
        try:
            cifar.find()
        except FileNotFoundError as absent:
            pytest.skip(str(absent))
        return tag
    folder = shared / "data" / "classification" / tag
    if not folder.is_dir():
        pytest.skip(f"no folder {folder}: the pictures are not here")
    return folder


@pytest.mark.data
@each_classifier
def test_it_is_as_good_as_its_card_says(name, shared):
    data = pictures_of(name.partition(".")[2].removesuffix(weights.TAUGHT), shared)
    reached = session.evaluate(name, str(data)).compute()["top1"]
    stated = float(re.search(r"\| top-1 \| ([\d.]+)%", weights.about(name)).group(1))
    assert reached == pytest.approx(stated, abs=0.35)  # two of 592 pictures, for other machines
    assert reached > 3 * 100 / len(weights.header(name)["notes"]["classes"])

"""Teachers: fitted to the set or used as they are, and kept with the run."""

import json

import pytest
import timm
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

import saccade
from saccade.data import augment
from saccade.data.datasets import find
from saccade.engine import session
from saccade.engine.checkpoint import Checkpoints
from saccade.models.describe import timm_config
from saccade.recipes.augment import Test
from saccade.recipes.classify import Distill
from saccade.recipes.recipe import change
from saccade.tasks.classify import teacher
from tests.engine.classify_runs import PLAIN, fit, folder, same

CLASSES = ("blue", "green", "red")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return folder(tmp_path_factory.mktemp("colours"))


@pytest.fixture(scope="module")
def master(data, tmp_path_factory):
    """A small model trained on the set itself."""
    recipe = change(PLAIN, schedule__epochs=6)
    return fit(recipe, data, tmp_path_factory.mktemp("runs") / "master").folder


@pytest.mark.slow
def test_a_student_learns_from_a_saved_teacher_and_resumes_with_the_same(data, master, tmp_path):
    task = Distill(teacher=str(master), weight=0.8, temperature=2.0)
    recipe = change(PLAIN, task=task, schedule__epochs=2)
    run = fit(recipe, data, tmp_path / "run")
    assert set(run.lines("steps.jsonl")[0]["loss"]) == {"cross_entropy", "teacher"}
    content = (run.folder / "teacher.safetensors").read_bytes()
    state = Checkpoints(run.folder).load()[0]
    assert not any("teacher" in name for name in state["model"])
    session.resume(run.folder, device="cpu")
    assert (run.folder / "teacher.safetensors").read_bytes() == content
    assert same(Checkpoints(run.folder).load()[0]["model"], state["model"]) is None


def test_a_head_is_no_surer_than_it_should_be():
    torch.manual_seed(0)
    y = torch.arange(120) % 3
    clear = F.one_hot(y, 20).float() * 4 + torch.randn(120, 20)
    vague = F.one_hot(y, 200).float() + torch.randn(120, 200)  # more features than images
    decay, right = teacher.best_decay(clear, y, 3)
    assert right > 0.9
    more, less_right = teacher.best_decay(vague, y, 3)
    assert more > decay
    assert less_right < right


def test_it_sees_images_its_own_way():
    net = timm.create_model("resnet10t", num_classes=3).eval()
    net.pretrained_cfg = {**timm_config(net), "mean": (0.1, 0.2, 0.3), "std": (0.5, 0.6, 0.7)}
    seen = timm_config(saccade.build("qna_nano"))
    image = torch.rand(2, 3, 32, 32)

    def normalised(about):
        mean, std = (torch.tensor(about[k])[:, None, None] for k in ("mean", "std"))
        return (image - mean) / std

    sees = teacher.Teacher(net, torch.nn.Identity(), 48, seen)
    own = F.interpolate(normalised(net.pretrained_cfg), (48, 48), mode="bilinear")
    expected = net.forward_head(net.forward_features(own), pre_logits=True)
    assert torch.allclose(sees(normalised(seen)), expected, atol=1e-4)


def test_its_own_classifier_by_a_table_of_names(data, tmp_path):
    net = saccade.build("qna_nano", num_classes=5)
    saccade.save(net, tmp_path / "net.safetensors", classes=list("vwxyz"))
    table = tmp_path / "classes.json"
    table.write_text(
        json.dumps({"about": {"blue": "sky"}, "index": dict(zip(CLASSES, (4, 0, 2), strict=True))})
    )
    assert teacher._rows(str(table), CLASSES) == [4, 0, 2]
    task = Distill(teacher=str(tmp_path / "net.safetensors"), classes=str(table))
    run = fit(change(PLAIN, task=task, schedule__epochs=1), data, tmp_path / "run")
    assert not (run.folder / "teacher.safetensors").exists()


def test_its_own_classes_are_learnt_by_a_head_that_is_dropped(data, tmp_path, monkeypatch):
    """The teacher is asked once, and the saved model has one head."""
    net = saccade.build("qna_nano", num_classes=7).eval()
    monkeypatch.setattr(teacher, "trained_network", lambda _: net)
    task = Distill(teacher="qna_nano", own=7, once=True, weight=0.5)
    run = fit(change(PLAIN, task=task), data, tmp_path / "run")
    logits = load_file(run.folder / "teacher_logits.safetensors")["logits"]
    images = find(str(data), PLAIN.data, 0).train
    transform = augment.test(Test(size=32, crop=1.0), (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    image, _ = transform(*images.read(5))
    assert torch.allclose(net(image[None])[0], logits[5].float(), atol=2e-3)
    state = Checkpoints(run.folder).load()[0]["model"]
    assert state["second.weight"].abs().sum() > 0
    model = saccade.load(run.folder)
    assert model(image[None]).shape == (1, 3)
    assert not any("second" in name for name in model.state_dict())


@pytest.mark.parametrize(
    ("task", "settings", "message"),
    [
        (Distill(teacher="t", own=5, once=True), {}, "has 7 classes of its own, got 5"),
        (Distill(teacher="t", once=True), {"augment__mixup": 0.5}, "set augment.mixup=0"),
    ],
)
def test_a_teacher_that_cannot_be_asked_so(task, settings, message, data, tmp_path, monkeypatch):
    net = saccade.build("qna_nano", num_classes=7).eval()
    monkeypatch.setattr(teacher, "trained_network", lambda _: net)
    with pytest.raises(ValueError, match=message):
        fit(change(PLAIN, task=task, **settings), data, tmp_path / "run")


@pytest.mark.parametrize(
    ("task", "kind", "message"),
    [
        (Distill(teacher="resnet18x"), ValueError, "did you mean"),
        (Distill(teacher="qna_t"), ValueError, "efficientnet_lite0"),
    ],
)
def test_a_teacher_that_is_not_there(task, kind, message, data, tmp_path):
    with pytest.raises(kind, match=message):
        fit(change(PLAIN, task=task), data, tmp_path / "run")


def test_a_teacher_may_give_more_features_than_its_last_map_has(data, tmp_path, monkeypatch):
    net = timm.create_model("mobilenetv3_small_050")  # 288 channels, 1024 features
    monkeypatch.setattr(teacher, "trained_network", lambda _: net)
    recipe = change(PLAIN, task=Distill(teacher="mobilenetv3_small_050"), schedule__epochs=1)
    assert fit(recipe, data, tmp_path / "run").lines()
    vit = timm.create_model("vit_tiny_patch16_224", depth=1)
    monkeypatch.setattr(teacher, "trained_network", lambda _: vit)
    with pytest.raises(ValueError, match=r"does not take images of 32 px .* task\.size=224"):
        fit(recipe, data, tmp_path / "other")


def test_a_table_that_misses_a_class_is_refused(tmp_path):
    table = tmp_path / "classes.json"
    table.write_text(json.dumps({"blue": 1, "green": 2}))
    with pytest.raises(ValueError, match="no index of the teacher for 'red'"):
        teacher._rows(str(table), CLASSES)
    with pytest.raises(FileNotFoundError, match="leave it empty"):
        teacher._rows(str(tmp_path / "gone.json"), CLASSES)


@pytest.mark.data
def test_the_teacher_that_comes_by_pip_knows_what_it_sees(shared):
    """EfficientNet-Lite0 on photographs of one thing each, whose ImageNet class is known."""
    from saccade.data.picture import read, to_input

    try:
        net = teacher.trained_network("efficientnet_lite0").eval()
    except ImportError as error:
        pytest.skip(str(error))
    photos = shared / "data" / "photos"
    entries = json.loads((photos / "photos.json").read_text())
    right = 0
    for entry in entries:
        image = to_input(read(photos / entry["file"], 256), timm_config(net))
        right += int(net(image).argmax()) == entry["imagenet_class"]
    assert right >= len(entries) / 2

"""What is typed or called becomes a recipe, images and a folder."""

import pytest

import saccade
from saccade.engine import plan
from saccade.recipes import book


def test_a_process_started_again_finds_its_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("quick", "quick-2"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "steps.jsonl").touch()
    assert plan.free_folder("quick").name == "quick-3"
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert plan.free_folder("quick").name == "quick-2"
    assert plan.free_folder("scratch").name == "scratch"


def test_words_and_short_forms_change_a_recipe():
    words = plan.words_of(
        {"optim.weight_decay": 0.1, "model.options": {"window": 5}, "test.crop": 1}
    )
    name, recipe, data = plan.plan("scratch", "somewhere", words, model="qna_nano", epochs=3)
    assert (name, data) == ("scratch", "somewhere")
    assert (recipe.model.name, recipe.schedule.epochs) == ("qna_nano", 3)
    assert recipe.optim.weight_decay == 0.1
    assert recipe.model.options == {"window": 5}
    assert plan.plan("quick", "solar").name == "quick_solar"
    assert plan.plan(book.find("quick"), "mnist").recipe == book.find("quick")


def test_what_is_missing_is_asked_for():
    with pytest.raises(ValueError, match="which images"):
        plan.plan("scratch", None)
    with pytest.raises(ValueError, match="with which weights of 'resnet18'"):
        plan.plan("finetune", "somewhere", model="resnet18")
    fetched = plan.plan("finetune", "x", ["model.options.pretrained=true"], model="resnet18")
    assert fetched.recipe.model.start == ""


def test_fine_tuning_begins_with_weights_of_the_package(tmp_path):
    chosen = plan.plan("finetune", "somewhere").recipe.model
    assert (chosen.name, chosen.start) == ("linglo_cifar", "linglo_cifar.cifar10_distilled")
    chosen = plan.plan("finetune", "somewhere", model="qna_nano").recipe.model
    assert (chosen.name, chosen.start) == ("qna_nano", "qna_nano.pets37")


def test_distillation_begins_with_weights_of_the_package_where_there_are_some():
    def start(*words: str, **short: str) -> str:
        return plan.plan("distill", "somewhere", words, **short).recipe.model.start

    assert start() == "linglo_cifar.cifar10_distilled"
    assert start(model="sasa_cifar") == "sasa_cifar.cifar10"
    assert start(model="resnet18") == ""
    assert start("model.start=") == ""


def test_the_network_is_that_of_the_weights_to_start_from(tmp_path):
    file = saccade.save(saccade.build("sasa_nano", num_classes=2), tmp_path / "a.safetensors")
    assert plan.plan("finetune", "x", start=str(file)).recipe.model.name == "sasa_nano"
    assert plan.plan("detect", "x", start="qna_nano.pets37").recipe.model.name == "qna_nano"
    typed = plan.plan("finetune", "x", start=str(file), model="qna_nano").recipe.model
    assert typed.name == "qna_nano"  # and training says that they do not fit
    (tmp_path / "b.safetensors").write_bytes(b"damaged")
    recipe = plan.plan("finetune", "x", start=str(tmp_path / "b.safetensors")).recipe
    assert recipe.model.name == book.find("finetune").model.name

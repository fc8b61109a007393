import timm

import saccade
from saccade import tasks
from saccade.files import write_json
from saccade.models import retinanet
from saccade.report import model_card
from tests.report.run_folders import written

FIGURES = {"top1": 91.234, "loss": 0.3, "images": 40}


def test_a_runs_card(tmp_path):
    run = written(
        tmp_path / "private" / "run", sets=["optim.lr=0.5"], epochs=1, data="/secret/pets",
        names=["cat", "dog"],
    )  # fmt: skip
    write_json(run.folder / "data.json", {"train": {"images": 100}, "val": {"images": 40}})
    net = saccade.build("linglo_nano", num_classes=2)
    notes = {"classes": ["cat", "dog"], "figures": FIGURES, "recipe": "quick"}
    text = model_card.card_text(net, notes, tasks.TASKS["classify"], run)
    assert "library_name: timm" in text
    assert "| top-1 | 91.23% |" in text
    assert "on 40 images" in text
    assert "- Data: pets (100 train, 40 val images)" in text
    assert "optim.lr=0.5" in text
    assert "2 classes: cat, dog." in text
    assert "secret" not in text
    assert "private" not in text
    assert 'timm.create_model("hf-hub:' in text


def test_without_a_run_or_notes():
    text = model_card.card_text(
        timm.create_model("resnet10t", num_classes=3), {}, tasks.TASKS["classify"]
    )
    assert text.startswith("---\nlibrary_name: timm")
    assert "| |" not in text
    many = {"classes": [f"c{i}" for i in range(50)], "recipe": "detect"}
    net = retinanet.build("sasa_nano_conv", 50, dim=16, depth=1)
    text = model_card.card_text(net, many, tasks.TASKS["detect"])
    assert "library_name: saccade" in text
    assert "and 10 more" in text
    assert "- Recipe: `detect`" in text
    assert "saccade detect PICTURES" in text


def test_notes_and_files_of_a_stranger_are_left_out(tmp_path):
    run = written(tmp_path / "run", epochs=1, names=["cat", "dog"])
    for name, content in (("final.json", {"val": [1]}), ("data.json", {"train": 3, "val": "x"})):
        write_json(run.folder / name, content)
    net = saccade.build("linglo_nano", num_classes=2)
    figures = {"top1": "high", "loss": None, "\x1b[2J": 1, "images": "x", "top5": 50.0}
    notes = {"classes": ["cat", "dog"], "figures": figures, "recipe": "a\n# Heading"}
    for text in (
        model_card.card_text(net, notes, tasks.TASKS["classify"], run),
        model_card.card_text(net, notes, tasks.TASKS["classify"]),
    ):
        assert "| top-5 | 50.00% |" in text
        assert not any(word in text for word in ("high", "None", "\x1b", "# Heading", "x images"))


def test_names_are_no_markup_of_the_card(tmp_path):
    evil = ["<img src=http://evil.example/x>", "[a](http://evil.example)", "`b`", "sea_lion"]
    run = written(tmp_path / "run", epochs=1, names=evil, data="/x/<b>pets|", name="a`b")
    write_json(run.folder / "environment.json", {"torch": "<i>2", "x": 1})
    write_json(run.folder / "final.json", {"val": {"top1": 10**400, "a|<u>": 3.0}})
    net = saccade.build("linglo_nano", num_classes=4)
    text = model_card.card_text(net, {"classes": evil}, tasks.TASKS["classify"], run)
    assert r"\<img src=http://evil.example/x\>, \[a\](http://evil.example), \`b\`, sea_lion" in text
    assert r"Data: \<b\>pets\|" in text
    assert "Recipe: `a'b`" in text
    assert r"Versions: torch \<i\>2" in text
    assert r"| a\|\<u\> | 3.00 |" in text

from html.parser import HTMLParser

import pytest

from saccade.files import write_json
from saccade.report.page import page
from saccade.report.summary import Summary
from tests.report.run_folders import EPOCHS, written

EVIL = "<script>alert('x')</script>"
VOID = {"meta", "img", "br"}


class Reader(HTMLParser):
    """What a browser would make of it: tags that close, words, and what is fetched."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.open, self.words, self.fetched, self.alone = [], [], [], [], {}
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        for key, value in attrs:
            assert not key.startswith("on")
            if key in ("src", "href"):
                self.fetched.append(value)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.alone.setdefault(self.open[-1] if self.open else "", []).append(data)
        self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


def read(run, pictures=None, notes=()):
    return Reader(page(Summary.of(run), pictures or {}, notes))


def test_it_tells_the_run(tmp_path):
    run = written(tmp_path / "r", sets=["optim.lr=0.5"], best=97.3, bad={"a.png": "zero bytes"})
    write_json(run.folder / "baseline.json", {"name": "a linear model", "top1": 90.1})
    page = read(run, {"curves": b"one", "confusion": b"two"}, ["a note"])
    for part in (
        "quick: linglo_nano on mnist",
        f"97.30% top-1 of 1000 validation images, at epoch {EPOCHS}",
        "7.20 points above the baseline: a linear model reaches 90.10%.",
        "a note",
        "saccade predict PICTURE --model",
        "saccade eval",
        "1 of them; each was replaced",
        "zero bytes",
        "Changed from 'quick': optim.lr 0.5 instead of 0.002",
        "torch",
        "taken for",
    ):
        assert part in page.text, part
    assert page.alone["mark"] == ["0.5", "0.5"]
    assert "saccade resume" not in page.text
    assert "script" not in page.tags


def test_it_needs_no_net(tmp_path):
    page = read(written(tmp_path), {"curves": b"one", "confusion": b"two"})
    assert page.fetched == ["data:image/png;base64,b25l", "data:image/png;base64,dHdv"]
    assert {"link", "script", "iframe"}.isdisjoint(page.tags)


def test_a_row_an_evaluation_and_the_best_marked(tmp_path):
    values = [1.0, 3.0, 2.0]
    run = written(tmp_path, epochs=3, figures=lambda epoch: {"top1": values[epoch - 1]})
    text = page(Summary.of(run), {})
    assert text.count('<tr class="best">') == 1
    assert '<tr class="best"><td>2</td><td>40</td><td>3.00</td>' in text


def test_an_unfinished_run_can_go_on(tmp_path):
    page = read(written(tmp_path / "my run; rm -r", epochs=2))
    assert "not finished" in page.text
    assert f"saccade resume '{tmp_path}/my run; rm -r'" in page.text


@pytest.mark.parametrize("where", ["class", "file", "data", "name", "baseline", "environment"])
def test_nothing_from_strangers_becomes_markup(tmp_path, where):
    names = [EVIL, "b"] if where == "class" else ["a", "b"]
    bad = {f"{EVIL}.png": EVIL} if where == "file" else {}
    run = written(
        tmp_path / "r", names=names, bad=bad, data=EVIL if where == "data" else "mnist",
        name=EVIL if where == "name" else None,
    )  # fmt: skip
    write_json(run.folder / "tables.json", {"confusion": [[1, 1], [2, 3]], "classes": names})
    if where == "baseline":
        write_json(run.folder / "baseline.json", {"name": EVIL, "top1": 1.0})
    if where == "environment":
        write_json(run.folder / "environment.json", {EVIL: EVIL})
    page = read(run)
    assert "script" not in page.tags
    assert EVIL in page.text


def test_a_long_list_of_bad_images_is_cut(tmp_path):
    run = written(tmp_path, bad={f"{i}.png": "damaged" for i in range(250)})
    page = read(run)
    assert "250 of them" in page.text
    assert "and 50 more, in bad.json" in page.text
    assert "249.png" not in page.text


def test_a_run_of_which_little_is_left(tmp_path):
    run = written(tmp_path, epochs=1, name="mine", figures=lambda _: {"top1": float("nan")})
    for file in ("tables.json", "environment.json"):
        (tmp_path / file).unlink()
    page = read(run)
    assert "nan top-1" in page.text
    assert "No recipe is named 'mine'" in page.text
    assert "Confusion" not in page.text


def test_examples_and_tables_are_shown(tmp_path):
    run = written(tmp_path)
    rows = [{"caption": EVIL, "jpeg": "QUJD"}, {"caption": "no picture", "jpeg": '"><script>'}]
    content = {
        "per_class": [{"class": EVIL, "AP": None, "boxes": 3}],
        "examples": {EVIL: rows, "none": [], "odd": "text"},
    }
    write_json(run.folder / "tables.json", content)
    page = read(run)
    assert "script" not in page.tags
    assert page.text.count(EVIL) == 3, "the title, a caption, and the class"
    assert "no picture" not in page.text
    assert [one for one in page.fetched if one == "data:image/jpeg;base64,QUJD"]
    assert "as a table" in page.text
    assert "-" in page.text

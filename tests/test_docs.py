"""What the docs say of the package is so: their code runs, their commands are understood."""

import json
import re
import shlex
import shutil

import matplotlib as mpl
import pytest

from saccade import samples, weights
from saccade.cli.command import parse
from saccade.cli.commands import COMMANDS
from tests.engine.classify_runs import folder
from tests.test_house import ROOT
from tools import notebooks, site

DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.glob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"])
QUICK = ("equations", "faq", "timm", "operators", "layers", "graft")
SLOW = ("start", "python", "own-images", "see", "dense")
# Blocks that need what is not here: a run, a file of somebody else's, a compiled library.
ELSEWHERE = ("detection", "ship", "training", "own-layer")  # own-layer: tests/face/test_register.py


def blocks(page, language):
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with a picture, and images in class folders."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(samples.path("cat"), tmp_path / "cat.jpg")
    shutil.copy(samples.path("cat"), tmp_path / "photo.jpg")
    folder(tmp_path / "FOLDER", train=12)
    mpl.use("Agg", force=True)
    return tmp_path


def run_blocks(name):
    code = "\n".join(blocks(DOCS / f"{name}.md", "python"))
    exec(compile(code, f"{name}.md", "exec"), {"__name__": name})


@pytest.mark.parametrize("name", QUICK)
def test_the_code_of_a_page_runs(name, place):
    run_blocks(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_the_code_of_a_page_that_trains_runs(name, place):
    run_blocks(name)


def test_every_page_with_code_is_run():
    with_code = {page.stem for page in DOCS.glob("*.md") if blocks(page, "python")}
    assert with_code == {*QUICK, *SLOW, *ELSEWHERE}


def commands(page):
    """The lines of a page's shell blocks that call saccade, as words."""
    for block in blocks(page, "bash"):
        for line in block.replace("\\\n", " ").splitlines():
            line = re.sub(r"^\S*/saccade |^.*?&& \S*saccade |^do ", "saccade ", line.strip())
            line = line.replace("saccade saccade ", "saccade ")
            if not line.startswith("saccade "):
                continue
            words = shlex.split(line, comments=True)
            if len(words) > 1:
                yield words[1:]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_is_understood(page):
    for name, *rest in commands(page):
        if name.startswith("-"):
            continue
        words = [word for word in rest if word != "--import" and not word.endswith("_attention")]
        words = words[: words.index("|")] if "|" in words else words
        words = words[: words.index(">")] if ">" in words else words
        words = [word.rstrip(";") for word in words]
        parse(name, COMMANDS[name].function, words)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_to_files(page):
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_every_page_has_its_place_on_the_site():
    named = {name for names in site.TOPICS.values() for name in names}
    assert {page.stem for page in DOCS.glob("*.md")} <= named | set(site.rest())
    text = site.home()
    for name in (*site.NOTEBOOKS, "start", "api/index"):
        assert name in text


@pytest.mark.parametrize("name", site.NOTEBOOKS)
def test_a_notebook_is_its_script_with_what_it_showed(name):
    path = ROOT / "examples" / "notebooks" / f"{name}.py"
    whole = json.loads(path.with_suffix(".ipynb").read_text())
    sources = ["".join(cell["source"]) for cell in whole["cells"]]
    assert sources == [text for _, text in notebooks.cells(path.read_text())], (
        f"run it again: python -m tools.notebooks {name}"
    )
    outputs = [out for cell in whole["cells"] for out in cell.get("outputs", ())]
    assert outputs
    assert not [out for out in outputs if out["output_type"] == "error"]
    assert path.with_suffix(".ipynb").stat().st_size < 400_000
    assert not re.search(r"/(root|home|work|tmp)/", json.dumps(outputs))


def test_every_notebook_is_on_the_site():
    scripts = {path.stem for path in (ROOT / "examples" / "notebooks").glob("*.py")}
    assert scripts == set(site.NOTEBOOKS)


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path):
    pytest.importorskip("myst_nb")
    site.build(tmp_path / "site")
    index = (tmp_path / "site" / "index.html").read_text()
    assert "Five minutes" in index
    for page in (tmp_path / "site").rglob("*.html"):
        pattern = r"<(?:script|link|img)[^>]+(?:src|href)=\"(https?://[^\"]+)"
        loaded = re.findall(pattern, page.read_text())
        assert loaded == [], f"{page.name} loads from elsewhere"


def test_the_docs_name_what_comes_trained():
    """The sentence that says which names have weights names these, and no others."""
    text = (DOCS / "see.md").read_text()
    sentence = text[text.index("or a name:") : text.index("other names have fresh weights")]
    named = {word for word in re.findall(r"`(\w+)`", sentence) if "_" in word}
    assert named == {name.partition(".")[0] for name in weights.NAMES}

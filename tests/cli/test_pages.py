"""Help pages, as a person reads them."""

import re
import shlex

import pytest

from saccade.cli.command import options_of, parse
from saccade.cli.commands import COMMANDS, TOPICS
from saccade.cli.pages import overview, page

INNER_LIFE = ("print_config", "--set+", "{true,false}", "type:", "null", "default:", "None", "==")


@pytest.fixture(autouse=True)
def narrow(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


def test_saccade_alone_shows_all_commands_by_topic(typed):
    code, out, err = typed()
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert max(map(len, lines)) <= 80
    assert [line for line in lines if line in TOPICS] == [
        "look", "train", "use", "ship", "measure", "help",
    ]  # fmt: skip
    for name in COMMANDS:
        (line,) = (line for line in lines if line.startswith(f"  {name} "))
        assert f" saccade {name}" in line, "with an example"
    for words in (["--help"], ["-h"], ["help"]):
        assert typed(*words)[1] == out


def examples():
    for line in overview().splitlines():
        if " saccade " in line and line.startswith("  "):
            yield "saccade " + line.split(" saccade ")[1]
    for name in COMMANDS:
        block = page(name).partition("\nexamples\n")[2].partition("\n\n")[0]
        yield from (line.strip() for line in block.splitlines())


@pytest.mark.parametrize("line", dict.fromkeys(examples()))
def test_every_example_is_understood(line):
    words = shlex.split(line.partition(" > ")[0].rpartition(" | ")[2])
    assert words[0] == "saccade"
    parse(words[1], COMMANDS[words[1]].function, words[2:])


@pytest.mark.parametrize("name", COMMANDS)
def test_a_page_says_what_a_person_types(name, typed):
    code, out, err = typed(name, "--help")
    assert (code, err) == (0, "")
    assert out == typed("help", name)[1]
    assert max(len(line) for line in out.splitlines()) <= 80
    assert out.startswith(f"saccade {name}")
    assert "\nexamples\n" in out
    for word in INNER_LIFE:
        assert word not in out
    for option in options_of(COMMANDS[name].function):
        assert option.about, f"--{option.name} is explained"
        word = option.value.word if option.plain else option.typed
        assert re.search(rf"^  {re.escape(word)}", out, re.MULTILINE), word


def test_help_for_what_is_not_there(typed):
    code, out, err = typed("help", "trian")
    assert (code, out) == (2, "")
    assert "no command 'trian'; did you mean 'train'?" in err


def test_a_usual_value_is_shown(typed):
    _, out, _ = typed("help", "bench")
    assert re.search(r"--threads N +CPU threads \(default 1\)", out)
    assert "in turns" in out

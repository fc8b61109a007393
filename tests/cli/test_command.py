"""Words to arguments."""

from pathlib import Path
from typing import Annotated, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from saccade.cli.command import UsageError, Value, options_of, parse, read_help
from saccade.cli.commands import COMMANDS


def example(
    first: str,
    files: list[str] = [],  # noqa: B006
    *,
    count: int = 3,
    share: float | None = None,
    out: Annotated[Path, Value("FOLDER")] = Path("out"),
    kind: Literal["onnx", "torch"] = "onnx",
    set: list[str] = [],  # noqa: B006
    json: Annotated[str, Value("FILE", bare="-")] | None = None,
    force: bool = False,
) -> None:
    """Do something.

    More about it.

    Examples:
        saccade example a b

    Args:
        first: the first
            of all
        count: how many
    """


@pytest.mark.parametrize(
    ("words", "typed"),
    [
        ("a", {"first": "a"}),
        ("a b c", {"first": "a", "files": ["b", "c"]}),
        ("--count 4 a --share=.5 b", {"first": "a", "files": ["b"], "count": 4, "share": 0.5}),
        ("a --count -4", {"first": "a", "count": -4}),
        ("a -", {"first": "a", "files": ["-"]}),
        ("a --force b", {"first": "a", "files": ["b"], "force": True}),
        ("a --set x=1 y=2 --set=z=3", {"first": "a", "set": ["x=1", "y=2", "z=3"]}),
        ("a --out here --kind torch", {"first": "a", "out": Path("here"), "kind": "torch"}),
        ("a --json", {"first": "a", "json": "-"}),
        ("a --json b.jsonl", {"first": "a", "json": "b.jsonl"}),
        ("a -- --count", {"first": "a", "files": ["--count"]}),
    ],
)
def test_words_become_arguments(words, typed):
    assert parse("example", example, words.split()) == typed


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("", "FIRST is missing"),
        ("a --cuont 3", "no option --cuont; did you mean --count?"),
        ("a --cuont=3", "no option --cuont; did you mean --count?"),
        ("a -c", "no option -c; did you mean"),
        ("a --count three", "--count wants a whole number, got 'three'"),
        ("a --share x", "--share wants a number, got 'x'"),
        ("a --kind onx", "--kind has no 'onx'; did you mean 'onnx' (onnx, torch)?"),
        ("a --count", "--count expected one argument"),
        ("a --set", "--set expected at least one argument"),
        ("a --force=yes", "--force"),
        ("a --cou 3", "no option --cou"),
    ],
)
def test_what_is_not_understood_is_one_sentence(words, sentence):
    with pytest.raises(UsageError) as caught:
        parse("example", example, words.split())
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_one_word_too_many():
    with pytest.raises(UsageError, match="one word too many, 'b'; it is typed as 'saccade show"):
        parse("show", COMMANDS["show"].function, ["a", "b"])


@settings(max_examples=25, deadline=None)
@given(st.lists(st.text(st.characters(codec="ascii", exclude_characters="-\0"), min_size=1)))
def test_any_words_that_are_no_options_arrive_as_they_are(words):
    assert parse("example", example, ["x", *words]).get("files", []) == words


@settings(max_examples=25, deadline=None)
@given(st.text(st.characters(codec="ascii"), max_size=8), st.text(max_size=8))
def test_any_setting_arrives_as_it_is(key, value):
    word = f"{key}={value}"
    assert parse("example", example, ["x", f"--set={word}"])["set"] == [word]


def test_the_docstring_is_read():
    text = read_help(example)
    assert text.about == "Do something.\n\nMore about it."
    assert text.examples == ("saccade example a b",)
    assert text.options == {"first": "the first of all", "count": "how many"}


def test_options_as_one_types_them():
    typed = {option.name: option.typed for option in options_of(example)}
    assert typed == {
        "first": "FIRST", "files": "[FILES ...]", "count": "--count N", "share": "--share NUMBER",
        "out": "--out FOLDER", "kind": "--kind onnx|torch", "set": "--set SET ...",
        "json": "--json [FILE]", "force": "--force",
    }  # fmt: skip

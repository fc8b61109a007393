"""Words from outside; what commands do with them is in tests/face/test_register.py."""

import pytest

from saccade import outside


def test_words_are_looked_for_everywhere(monkeypatch):
    monkeypatch.setattr(outside, "MODULES", {"gate": "mine"})
    about = {"name": "x", "options": {"mixers": ["dot", ("gate",)]}, "dim": 3}
    assert outside.needed(outside.words_in(about)) == {"gate": "mine"}


def test_what_is_there_passes_and_the_rest_is_named(monkeypatch):
    monkeypatch.setattr(outside, "MODULES", {"gate": "mine"})
    outside.check(None, "x")
    outside.check({"gate": "mine"}, "x")
    with pytest.raises(outside.NotImportedError, match="--import other --import yours"):
        outside.check({"a": "yours", "b": "other"}, "x")
    for wrong in ("mine", {"a": 3}, {"a": "x; y"}, {"a": "\x1b[2J"}, {"a": "m" * 300}):
        with pytest.raises(ValueError, match="not as saccade writes it"):
            outside.check(wrong, "x")

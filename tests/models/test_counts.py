"""`saccade list` reads its figures from a file; here they are counted."""

import json

import pytest

from saccade.models import zoo
from saccade.models.counts import FILE, counts, is_table_row, matching
from saccade.paper import count

STATED = json.loads(FILE.read_text())
CURE = "python -m saccade.paper.count writes the file anew"


def test_every_variant_is_in_the_file():
    assert list(STATED) == list(zoo.VARIANTS), CURE
    assert list(counts()) == list(zoo.VARIANTS)


def plain(name):
    """A variant itself, such as linglo_b0, and not one of its ablations."""
    return name.count("_") == 1


def test_the_file_states_what_models_have(untyped):
    """Parameters, sides and widths of all; multiply-adds, which take time, without ablations."""
    for name, row in STATED.items():
        measured = count.counts_of(name, macs=plain(name))
        assert {**row, **measured} == row, CURE


@pytest.mark.slow
def test_multiply_adds_of_ablations(untyped):
    for name, row in STATED.items():
        assert count.counts_of(name) == row, CURE


def test_a_word_means_a_part_of_a_name_or_a_pattern():
    names = ["linglo_b0", "linglo_nano", "qna_nano", "qna_table2_x"]
    assert matching("nano", names) == ["linglo_nano", "qna_nano"]
    assert matching("linglo_b?", names) == ["linglo_b0"]
    assert [name for name in names if is_table_row(name)] == ["qna_table2_x"]

"""The rows of a paper: each measured once, kept in a file, and the file held to the code."""

import json

import pytest

from saccade.paper import claims

ROWS = [row for family in claims.FAMILIES for row in claims.rows(family)]


def test_the_file_answers_every_claim():
    """As the claim says, or with a reason; what it does not answer is a figure of a run."""
    for row in ROWS:
        value, claim = claims.measured(row), row.claim
        if value is None:
            assert claim.number is not None, row
            assert not claim.differs, row
        elif claim.number is None:
            assert (value == claim.said) is not bool(claim.differs), row
        else:
            assert claim.holds(value) is not bool(claim.differs), row


def test_the_file_has_nothing_else():
    known = {(row.kind, row.name, row.claim.what) for row in ROWS}
    plain = json.loads(claims.FILE.read_text())
    cells = {
        (k, name, what) for k, names in plain.items() for name in names for what in plain[k][name]
    }
    assert cells - known == set()


def test_sentences_follow_from_the_cells():
    for row in ROWS:
        if row.kind == "sentence":
            assert claims.measure(row) == claims.measured(row)


def test_what_cannot_be_counted_has_a_reason():
    for row in ROWS:
        if "params" in row.claim.what and claims.measured(row) is None:
            assert row.claim.unmeasured, row


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(claims.MEASURES))
def test_the_file_is_what_is_measured(kind):
    """`python -m saccade.paper.claims` writes it anew."""
    assert json.loads(json.dumps(claims.measurements((kind,)))) == {
        kind: json.loads(claims.FILE.read_text())[kind]
    }

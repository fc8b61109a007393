"""Sentences are held to the cells that they speak of."""

import pytest

from saccade.paper import Claim
from saccade.paper.sentences import measure


def test_a_difference():
    cells = {("a", "AP"): "41.5", ("b", "AP"): "36.7"}

    def printed(name, what):
        return [Claim("Table 3", what, cells[name, what])]

    claim = Claim("§4.2", "AP above b's", "4.8")
    assert measure("a", claim, printed) == pytest.approx(4.8)
    assert claim.holds(measure("a", claim, printed))

import pytest

from saccade.paper import Claim


@pytest.mark.parametrize(
    ("printed", "measured", "holds"),
    [
        ("18.0M", 18_016_000, True),
        ("18.0M", 18_060_000, False),
        ("3.4M", 3_449_999, True),
        ("3.4M", 3_352_032, True),
        ("3.4M", 3_342_244, False),
        ("16M", 15_715_560, True),
        ("8.2B", 8.178e9, True),
        ("2.5G", 2.423e9, False),
        ("79.7%", 79.66, True),
        ("(32, 64)", (32, 64), True),
        ("(32, 64)", (32, 65), False),
    ],
)
def test_a_claim_holds_to_its_printed_digits(printed, measured, holds):
    assert Claim("Table 1", "params", printed).holds(measured) is holds


def test_a_measurement_is_shown_as_the_paper_writes():
    assert Claim("Table 1", "params", "18.0M").show(18_064_000) == "18.1M"
    assert Claim("Table 1", "FLOPs", "7B").show(7_206_000_000) == "7B"
    assert Claim("3.4", "heads", "(1, 2)").show((1, 2)) == "(1, 2)"


def test_the_number():
    assert Claim("Table 1", "params", "18.5M").number == 18.5e6
    assert Claim("3.4", "heads", "(1, 2)").number is None

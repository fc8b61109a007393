"""All claims of a paper in rows, each with the function that measures it.

`measured.json` holds the measurements, so that `saccade paper` need not repeat them; tests compare
the file with the code. `python -m saccade.paper.claims` writes it again, in minutes.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from saccade.models import detectors, zoo
from saccade.paper import Claim, baselines, sentences
from saccade.recipes import book

FILE = Path(__file__).with_name("measured.json")
FAMILIES = tuple(zoo.FAMILIES)

# Table 1's columns of other people's networks; LinGlo's own stand with its variants.
PROPERTIES = (
    "linear complexity", "content-based interaction", "global receptive field",
    "stages with all three properties",
)  # fmt: skip
TABLE_1 = {
    "resnet50": ("yes", "no", "no"),
    "swin_tiny": ("yes", "yes", "no"),
    "vit_small": ("no", "yes", "yes"),
    "coatnet_0": ("no", "yes", "yes"),
}


@dataclass(frozen=True)
class ClaimRow:
    """One claim, whom it is about, and by what it is measured."""

    family: str
    kind: str
    """`model`, `detector`, `baseline`, `recipe`, `property` or `sentence`."""
    name: str
    claim: Claim

    @property
    def is_cell(self) -> bool:
        """Whether it stands in a table, not in a sentence."""
        return self.claim.where.startswith("Table")


def rows(family: str) -> list[ClaimRow]:
    """Every claim of one paper."""
    return [ClaimRow(family, kind, name, claim) for kind, name, claim in _all(family)]


def _all(family: str) -> list[tuple[str, str, Claim]]:
    rows_of_all = []
    for name in zoo.names():
        if zoo.family_of(name) == family:
            for claim in zoo.claims(name):
                rows_of_all.append(
                    ("property" if claim.what in PROPERTIES else "model", name, claim)
                )
    for name in detectors.names(family):
        rows_of_all += [("detector", name, claim) for claim in detectors.CLAIMS[name]]
    for name in book.of_family(family):
        rows_of_all += [("recipe", name, claim) for claim in book.CLAIMS.get(name, ())]
    for name, claims in sentences.CLAIMS.get(family, {}).items():
        rows_of_all += [("sentence", name, claim) for claim in claims]
    if family == "linglo":
        for name, claims in baselines.CLAIMS.items():
            rows_of_all += [("baseline", name, claim) for claim in claims]
        for name, printed_value in TABLE_1.items():
            pairs = zip(PROPERTIES, printed_value, strict=False)
            rows_of_all += [
                ("property", name, Claim("Table 1", what, word)) for what, word in pairs
            ]
    return rows_of_all


# -- measuring ------------------------------------------------------------------------------


def measure(row: ClaimRow) -> Any:
    """The code's value for a row, measured now; None if only a training run gives it."""
    value = MEASURES[row.kind](row)
    return str(value) if isinstance(value, tuple) else value


def _model(row: ClaimRow) -> Any:
    from saccade.paper import count

    return count.measure(row.name, row.claim)


def _detector(row: ClaimRow) -> Any:
    from saccade.paper import count

    return count.measure_detector(row.name, row.claim)


def _recipe(row: ClaimRow) -> Any:
    from saccade.paper import recipes

    return recipes.measure(book.find(row.name), row.claim)


def _property(row: ClaimRow) -> str:
    from saccade.paper.properties import CLAIMED

    return CLAIMED[row.claim.what](_properties(row.name))


@cache
def _properties(name: str) -> dict[str, Any]:
    from saccade.paper.properties import measured

    return measured(name)


def _sentence(row: ClaimRow) -> Any:
    def printed(name: str, what: str) -> list[Claim]:
        return [
            r.claim
            for r in rows(row.family)
            if (r.name, r.claim.what) == (name, what) and r.kind != "recipe"
        ]

    return sentences.measure(row.name, row.claim, printed)


MEASURES: dict[str, Callable[[ClaimRow], Any]] = {
    "model": _model,
    "detector": _detector,
    "baseline": lambda row: baselines.measure(row.name, row.claim),
    "recipe": _recipe,
    "property": _property,
    "sentence": _sentence,
}


@cache
def _file() -> dict[str, dict[str, dict[str, Any]]]:
    return json.loads(FILE.read_text())


def measured(row: ClaimRow) -> Any:
    """The code's value for a row, as `measured.json` has it."""
    return _file().get(row.kind, {}).get(row.name, {}).get(row.claim.what)


def measurements(kinds: tuple[str, ...] = tuple(MEASURES)) -> dict[str, dict[str, dict[str, Any]]]:
    """Measurements of all rows of these kinds, as the file keeps them."""
    plain: dict[str, dict[str, dict[str, Any]]] = {kind: {} for kind in kinds}
    for family in FAMILIES:
        for row in rows(family):
            if row.kind not in kinds:
                continue
            value = measure(row)
            if value is not None:
                plain[row.kind].setdefault(row.name, {})[row.claim.what] = value
    return plain


if __name__ == "__main__":
    import sys

    kinds = tuple(sys.argv[1:]) or tuple(MEASURES)
    values = measurements(kinds)
    before = json.loads(FILE.read_text()) if FILE.is_file() else {}
    FILE.write_text(json.dumps({**before, **values}, indent=1, sort_keys=True) + "\n")

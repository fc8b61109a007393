"""Which way of counting FLOPs explains most cells of SASA's tables?

    python benchmarks/sasa_flops.py [--rows 12]

Every network with a printed cost is one cell, however many tables print it: 22 classifiers at 224
pixels and the five detectors of Table 2 at 640 ("boxes"). A convention (saccade/paper/sasa.py)
explains a cell if its count, rounded as printed, gives the printed digits.
"""

import argparse
import itertools
from collections import Counter
from typing import NamedTuple

import torch
from rich import box
from rich.console import Console
from rich.table import Table

from saccade.models import sasa, sasa_retinanet, zoo
from saccade.models.sasa_retinanet import DETECTORS, SIDE
from saccade.paper import Claim
from saccade.paper.sasa import BEST, PRODUCTS, Convention, total, work

CHOICES = {
    "pairs": ("all", "inside"),
    "taps": ("all", "inside"),
    "positions": ("pairs", "axes", "none"),
    "softmax": range(7),
    "norms": range(5),
    "single": (False, True),
    "mixtures": range(3, 8),
}
# The rows of Table 2 in the appendix's own words have other parameters than printed: no cells.
LITERAL = ("sasa_retinanet50_convstem_all", "sasa_retinanet50_all")


class Cell(NamedTuple):
    """A printed cost and what its network computes."""

    name: str
    claim: Claim
    parts: Counter

    def explained(self, how: Convention) -> bool:
        return self.claim.holds(total(self.parts, how))


def cells() -> tuple[list[Cell], list[Cell]]:
    """The classifiers, and the detectors."""
    classifiers, detectors = [], []
    with torch.device("meta"):
        for name, claim in printed(sasa.CLAIMS):
            classifiers.append(Cell(name, claim, work(zoo.build(name), 224)))
        for name, claim in printed(sasa_retinanet.CLAIMS):
            if name not in LITERAL:
                detectors.append(Cell(name, claim, work(DETECTORS[name](), SIDE)))
    return classifiers, detectors


def printed(claims: dict[str, tuple[Claim, ...]]) -> list[tuple[str, Claim]]:
    """The first printed cost of each network."""
    first = {
        name: next((c for c in own if c.what == "FLOPs"), None) for name, own in claims.items()
    }
    return [(name, claim) for name, claim in first.items() if claim is not None]


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parse.add_argument("--rows", type=int, default=13, help="conventions to list")
    a = parse.parse_args()
    console, (classifiers, detectors) = Console(), cells()

    def score(how: Convention) -> tuple[int, int]:
        return tuple(sum(cell.explained(how) for cell in part) for part in (classifiers, detectors))

    scores = {
        how: score(how)
        for how in itertools.starmap(Convention, itertools.product(*CHOICES.values()))
    }
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    narrow = {"positions": "posi-\ntions", "softmax": "soft-\nmax", "mixtures": "mix-\ntures"}
    heads = [narrow.get(name, name) for name in Convention._fields]
    for head in (*heads, f"of\n{len(classifiers)}", f"boxes,\nof {len(detectors)}"):
        table.add_column(head, no_wrap=True)
    table.add_column("missed")
    ranked = sorted(scores, key=lambda how: (scores[how], how == BEST), reverse=True)
    for how in [BEST, PRODUCTS, *ranked[: a.rows]]:
        missed = [
            cell.name[len("sasa_resnet") :] for cell in classifiers if not cell.explained(how)
        ]
        table.add_row(*map(str, how), *map(str, scores[how]), " ".join(missed))
    console.print(table)
    for pairs in CHOICES["pairs"]:
        own = [score[0] for how, score in scores.items() if how.pairs == pairs]
        ways = own.count(max(own))
        console.print(
            f"pairs {pairs}: at best {max(own)} of {len(classifiers)} classifiers, "
            f"by {ways} of {len(own)} conventions"
        )
    listing = Table("network", "printed", "products of all pairs", "best")
    for cell in (*classifiers, *detectors):
        counts = [f"{total(cell.parts, how) / 1e9:.3f}" for how in (PRODUCTS, BEST)]
        listing.add_row(cell.name, cell.claim.said, *counts)
    console.print(listing)


if __name__ == "__main__":
    main()

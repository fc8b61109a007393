"""All recipes by name."""

from saccade.paper import Claim
from saccade.recipes import detect, linglo, qna, quick, sasa, segment
from saccade.recipes.recipe import Recipe
from saccade.words import nearest

BOOKS = {
    "quick": quick, "detect": detect, "segment": segment, "linglo": linglo, "qna": qna,
    "sasa": sasa,
}  # fmt: skip
RECIPES: dict[str, Recipe] = {
    name: recipe for book in BOOKS.values() for name, recipe in book.RECIPES.items()
}
CLAIMS: dict[str, tuple[Claim, ...]] = {
    name: claims for book in BOOKS.values() for name, claims in book.CLAIMS.items()
}


def find(name: str) -> Recipe:
    """The recipe of that name; an unknown one is refused with the nearest."""
    if name not in RECIPES:
        raise ValueError(f"no recipe named {name!r}; did you mean {nearest(name, RECIPES)!r}?")
    return RECIPES[name]

"""All recipes by name."""

from saccade.paper import Claim
from saccade.recipes import cifar, classify, detect, instances, linglo, qna, sasa, segment, upscale
from saccade.recipes.recipe import Recipe
from saccade.spelling import nearest

BOOKS = {
    "classify": classify, "cifar": cifar, "detect": detect, "instances": instances,
    "segment": segment, "upscale": upscale, "linglo": linglo, "qna": qna, "sasa": sasa,
}  # fmt: skip
RECIPES: dict[str, Recipe] = {
    name: recipe for book in BOOKS.values() for name, recipe in book.RECIPES.items()
}
CLAIMS: dict[str, tuple[Claim, ...]] = {
    name: claims for book in BOOKS.values() for name, claims in book.CLAIMS.items()
}


def of_family(word: str) -> dict[str, Recipe]:
    """The recipes of one file; a family of models may have none."""
    return BOOKS[word].RECIPES if word in BOOKS else {}


def add(name: str, recipe: Recipe) -> None:
    """Make a recipe known by a name, for `saccade train NAME`."""
    if RECIPES.get(name, recipe) != recipe:
        raise ValueError(f"a recipe named {name!r} is in the book already; choose another name")
    RECIPES[name] = recipe


def find(name: str) -> Recipe:
    """The recipe of that name; an unknown one is refused with the nearest."""
    if name not in RECIPES:
        raise ValueError(f"no recipe named {name!r}; did you mean {nearest(name, RECIPES)!r}?")
    return RECIPES[name]

"""Four photographs to try a model on, which anybody may use.

saccade.load("linglo_nano").predict(samples.path("cat"))

cat            scikit-image's `chelsea`, by Stefan van der Walt; CC0
espresso_cup   scikit-image's `coffee`, by Rachel Michetti; CC0
rocket         scikit-image's `rocket`, by SpaceX; public domain (CC0)
astronaut      scikit-image's `astronaut`, Eileen Collins, by NASA; public domain
"""

from pathlib import Path

FOLDER = Path(__file__).parent
NAMES = ("cat", "espresso_cup", "rocket", "astronaut")


def path(name: str) -> Path:
    """The file of one of the four; another name is refused."""
    if name not in NAMES:
        raise ValueError(f"samples: there are {', '.join(NAMES)}; got {name!r}")
    return FOLDER / f"{name}.jpg"

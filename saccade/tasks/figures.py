"""Labels, units and digits with which a task's figures are written."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """How people read one figure of a metric."""

    label: str
    """Its name in tables and drawings, such as "top-1"."""
    unit: str = ""
    digits: int = 2


FIGURES: dict[str, Figure] = {"images": Figure("images", digits=0)}
"""All figures that tasks have declared, by the name that a metric gives them."""


def figure(name: str) -> Figure:
    """How a figure is written; one that no task declared is a plain number."""
    plain = Figure(name.replace("_", " "), digits=3 if "loss" in name else 2)
    return FIGURES.get(name, plain)


def label_of(name: str) -> str:
    """A figure's name for people."""
    return figure(name).label


def unit_of(name: str) -> str:
    """A figure's unit, empty if it has none."""
    return figure(name).unit


def formatted(name: str, value: float, unit: bool = True) -> str:
    """A figure's value with its digits, and with its unit if wanted."""
    if not math.isfinite(value):
        return str(value)
    about = figure(name)
    return f"{value:.{about.digits}f}" + (about.unit if unit else "")

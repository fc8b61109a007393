"""All studies by name."""

from saccade.spelling import nearest
from saccade.study.grid import Study
from saccade.study.linglo import LINGLO
from saccade.study.qna import AUTOENCODERS, QNA
from saccade.study.sasa import SASA

STUDIES: dict[str, Study] = {study.name: study for study in (LINGLO, QNA, AUTOENCODERS, SASA)}


def find(name: str) -> Study:
    """The study of that name; an unknown one is refused with the nearest."""
    if name not in STUDIES:
        raise ValueError(f"no study named {name!r}; did you mean {nearest(name, STUDIES)!r}?")
    return STUDIES[name]

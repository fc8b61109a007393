"""Choose what `saccade bench sasa` (or qna, linglo) measures: the operator, its peers, its
options."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from saccade.bench import linglo, qna, sasa
from saccade.bench.peer import Peer, Shape
from saccade.spelling import nearest

SHAPE = Shape(4, 56, 56, 64, 8)
OPERATORS: dict[str, Callable[..., dict[str, Peer]]] = {
    "sasa": sasa.peers,
    "qna": qna.peers,
    "linglo": linglo.peers,
}


def peers(
    word: str, names: Sequence[str] = (), shape: Shape = SHAPE, **options: Any
) -> dict[str, Peer]:
    """An operator and its peers, or only those named; options that are None keep their default."""
    make = OPERATORS[word]
    set_options = {key: value for key, value in options.items() if value is not None}
    parameters = inspect.signature(make).parameters
    for key in set_options:
        if key not in parameters:
            raise ValueError(f"bench: {word} has no {key}; leave --{key} out")
    by_name = make(shape, **set_options)
    for name in names:
        if name not in by_name:
            close = nearest(name, by_name)
            raise ValueError(
                f"bench: {word} has no peer named {name!r}; did you mean {close!r}? "
                f"There are {', '.join(n for n in by_name if n != word)}"
            )
    return {name: peer for name, peer in by_name.items() if not names or name in (word, *names)}

"""Show the progress of a run while it trains: a progress bar, a log, several, or none."""

from contextlib import ExitStack
from typing import Any, Protocol, runtime_checkable

from saccade.engine.run import Run


@runtime_checkable
class Watcher(Protocol):
    """What a run calls on its way: at the beginning, after each step, after each evaluation."""

    def began(self, run: Run, step: int, steps: int) -> None: ...
    def stepped(self, step: int, terms: dict[str, float], rate: float, images: int) -> None: ...
    def evaluated(self, line: dict[str, Any], best: bool) -> None: ...
    def say(self, sentence: str) -> None: ...


class Silent:
    """A watcher that shows nothing: for all processes but the first, and for tests."""

    def began(self, run: Run, step: int, steps: int) -> None: ...
    def stepped(self, step: int, terms: dict[str, float], rate: float, images: int) -> None: ...
    def evaluated(self, line: dict[str, Any], best: bool) -> None: ...
    def say(self, sentence: str) -> None: ...


class Several:
    """Several watchers as one.

    The first is for the person. If another one fails, it is left out from then on, and the first
    prints why: the run itself goes on.
    """

    def __init__(self, first: Any, *others: Any):
        self.first = first
        self.others = list(others)
        self.stack = ExitStack()

    def began(self, run: Run, step: int, steps: int) -> None:
        self._tell("began", run, step, steps)

    def stepped(self, step: int, terms: dict[str, float], rate: float, images: int) -> None:
        self._tell("stepped", step, terms, rate, images)

    def evaluated(self, line: dict[str, Any], best: bool) -> None:
        self._tell("evaluated", line, best)

    def say(self, sentence: str) -> None:
        self._tell("say", sentence)

    def __enter__(self) -> "Several":
        for watcher in (self.first, *self.others):
            if hasattr(watcher, "__enter__"):
                self.stack.enter_context(watcher)
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def _tell(self, what: str, *arguments: Any) -> None:
        getattr(self.first, what)(*arguments)
        for watcher in list(self.others):
            try:
                getattr(watcher, what)(*arguments)
            except Exception as error:
                self.others.remove(watcher)
                self.first.say(f"{type(watcher).__name__} has stopped: {error}")

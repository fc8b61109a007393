"""Words for errors: the name someone probably meant."""

from collections.abc import Iterable
from difflib import SequenceMatcher


def nearest(word: str, words: Iterable[str]) -> str:
    """The known name most like `word`; the first of equals."""
    return max(words, key=lambda name: SequenceMatcher(None, word, name).ratio())

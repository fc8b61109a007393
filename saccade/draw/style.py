"""How matplotlib draws here: by its own settings, and with no text taken for a formula."""

import contextlib
from collections.abc import Generator


@contextlib.contextmanager
def plain_style() -> Generator[None]:
    """matplotlib's defaults inside; before and after, whatever the program has set.

    A `matplotlibrc` in the working folder may be a stranger's, and could have LaTeX started.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise ImportError("pictures need matplotlib: pip install 'saccade[viz]'") from error
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        yield


def unmarked(text: str) -> str:
    """Text that matplotlib does not take for a formula, although it may hold dollar signs."""
    return text.replace("$", r"\$")

"""What the docs say of the package is so."""

import re
from pathlib import Path

import pytest

from saccade import weights

DOCS = Path(__file__).resolve().parents[1] / "docs"


def test_the_docs_name_what_comes_trained():
    """The sentence that says which names have weights names these, and no others."""
    text = (DOCS / "see.md").read_text()
    sentence = text[text.index("or a name:") : text.index("other names have fresh weights")]
    named = {word for word in re.findall(r"`(\w+)`", sentence) if "_" in word}
    assert named == {name.partition(".")[0] for name in weights.NAMES}


def blocks(page):
    """The page's Python, in order: what a reader would type."""
    text = (DOCS / page).read_text()
    return re.findall(r"^```python\n(.*?)^```", text, re.S | re.M)


@pytest.mark.parametrize("page", ["layers.md", "graft.md"])
def test_the_code_of_a_page_runs(page):
    """All blocks of a page, one after the other, in one session."""
    code = blocks(page)
    assert len(code) > 2
    names = {}
    for i, block in enumerate(code):
        exec(compile(block, f"{page}, block {i + 1}", "exec"), names)

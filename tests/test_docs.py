"""What the docs say of the package is so."""

import re
from pathlib import Path

from saccade import weights

DOCS = Path(__file__).resolve().parents[1] / "docs"


def test_the_docs_name_what_comes_trained():
    """The sentence that says which names have weights names these, and no others."""
    text = (DOCS / "see.md").read_text()
    sentence = text[text.index("or a name:") : text.index("other names have fresh weights")]
    named = {word for word in re.findall(r"`(\w+)`", sentence) if "_" in word}
    assert named == {name.partition(".")[0] for name in weights.NAMES}

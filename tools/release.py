"""What a release needs to agree on.

    python tools/release.py check v0.1.0   the tag is the version everywhere, the changelog dated
    python tools/release.py notes          the changelog of this version

Exit code 1, with a sentence, where something differs.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def version() -> str:
    """Of the package, read without importing it."""
    text = (ROOT / "saccade" / "version.py").read_text()
    return re.findall(r'^__version__ = "(.+)"$', text, re.M)[0]


def notes() -> str:
    """The section of this version in the changelog, without its title."""
    _, title, rest = (ROOT / "CHANGELOG.md").read_text().partition(f"\n## {version()} - ")
    return rest.partition("\n")[2].partition("\n## ")[0].strip() if title else ""


def faults(tag: str) -> list[str]:
    """What keeps this tag from being released."""
    own, wrong = version(), []
    if tag != f"v{own}":
        wrong.append(f"the tag is {tag}, the version in saccade/version.py {own}")
    dates = re.findall(rf"^## {re.escape(own)} - (\d{{4}}-\d\d-\d\d)$", _text("CHANGELOG.md"), re.M)
    if len(dates) != 1:
        wrong.append(f"CHANGELOG.md has no section '## {own} - YYYY-MM-DD'")
    for line in (f"version: {own}", *(f'date-released: "{date}"' for date in dates)):
        if line not in _text("CITATION.cff"):
            wrong.append(f"CITATION.cff does not say {line!r}")
    if not (ROOT / "tests" / "released" / own).is_dir():
        wrong.append(f"tests/released/{own} is missing: python tools/released.py writes it")
    return wrong


def _text(name: str) -> str:
    return (ROOT / name).read_text()


def main(words: list[str]) -> int:
    match words:
        case ["notes"]:
            print(notes())
            return 0 if notes() else 1
        case ["check", tag]:
            print(*(faults(tag) or [f"{tag} may be released"]), sep="\n")
            return 1 if faults(tag) else 0
    print(__doc__)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

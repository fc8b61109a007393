"""Faults of a data set: one line for each case, by what was done about it, and sentences."""

from collections.abc import Sequence

Findings = dict[str, list[str]]
"""Lines, one for each case, by their kind; the kind says what was done."""
LONGEST = 300  # letters of an example
NO_FILES = "entries that are no files: FIFOs, devices, sockets or closed folders (left out)"


def note(findings: Findings, kind: str, line: str) -> None:
    """Add a case."""
    findings.setdefault(kind, []).append(line)


def sentences_about(findings: Findings, what: str) -> list[str]:
    """One sentence for each kind of finding: how many there are, and an example."""
    return [
        f"{what}{': ' if what else ''}{len(lines)} {kind}, such as {_short(lines[0])}"
        for kind, lines in findings.items()
    ]


def _short(line: str) -> str:
    return line if len(line) <= LONGEST else f"{line[:LONGEST]}..."


def no_files(others: Sequence[str]) -> list[str]:
    """A sentence about entries of a folder that are no files, if there are any."""
    return sentences_about({NO_FILES: [repr(name) for name in others]} if others else {}, "")

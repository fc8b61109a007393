"""What came of the trials: a line of JSON each, a line of progress, and a table at the end."""

import collections
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, TextIO


class Ledger:
    """The lines of a campaign's folder; those of an earlier one in the same folder count too."""

    def __init__(self, folder: Path, seed: int, screen: TextIO | None = None):
        self.folder, self.seed, self.screen = folder, seed, screen or sys.stdout
        self.shown, self.code = 0.0, code_state()
        folder.mkdir(parents=True, exist_ok=True)
        self.lines: dict[str, list[dict[str, Any]]] = {}
        self.last: dict[str, int] = {}

    def read(self, kind: str) -> list[dict[str, Any]]:
        """The lines of a kind so far; a damaged last one is left out."""
        path = self.folder / f"{kind}.jsonl"
        lines = self.lines.setdefault(kind, [])
        if not lines and path.is_file():
            for text in path.read_text().splitlines(keepends=True):
                if text.endswith("\n"):
                    lines.append(json.loads(text))
            path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return lines

    def next(self, kind: str) -> int:
        """The seed of the next trial: seed * 1,000,000 + its number."""
        if kind not in self.last:
            first = self.seed * 1_000_000
            seeds = (line["seed"] for line in self.read(kind))
            self.last[kind] = max(
                (s for s in seeds if 0 <= s - first < 1_000_000), default=first - 1
            )
        self.last[kind] += 1
        return self.last[kind]

    def write(self, kind: str, line: dict[str, Any]) -> None:
        line = {**line, "code": self.code}
        self.read(kind).append(line)
        with (self.folder / f"{kind}.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
        if line["outcome"] == "finding":
            self.say(f"finding: --repeat {kind}:{line['seed']}  {line['what'][:200]!r}")

    def counts(self, kind: str) -> dict[str, int]:
        lines = self.read(kind)
        count = {"trials": len(lines), "events": sum(line["events"] for line in lines)}
        for outcome in ("right", "refused", "finding"):
            count[outcome] = sum(line["outcome"] == outcome for line in lines)
        return count

    # -- the screen --------------------------------------------------------------------------

    def progress(self, kind: str, end: bool = False) -> None:
        """Twice a second, over the line before; only on a terminal, or at the end of a kind."""
        if not end and (not self.screen.isatty() or time.monotonic() - self.shown < 0.5):
            return
        self.shown = time.monotonic()
        c = self.counts(kind)
        text = (
            f"{kind}: {c['trials']} trials, {c['right']} right, {c['refused']} refused in a "
            f"sentence, {c['finding']} findings"
        )
        self.screen.write(f"\r\x1b[K{text}" if self.screen.isatty() else f"{text}\n")
        if end and self.screen.isatty():
            self.screen.write("\n")
        self.screen.flush()

    def say(self, text: str) -> None:
        self.screen.write(("\r\x1b[K" if self.screen.isatty() else "") + text + "\n")
        self.screen.flush()

    def table(self, kinds: list[str], units: dict[str, str]) -> str:
        """In Markdown, for the docs."""
        rows = ["| kind | trials | of which | right | refused in a sentence | findings |",
                "|---|---:|---|---:|---:|---:|"]  # fmt: skip
        for kind in kinds:
            c = self.counts(kind)
            rows.append(
                f"| {kind} | {c['trials']:,} | {c['events']:,} {units[kind]} | {c['right']:,} | "
                f"{c['refused']:,} | {c['finding']:,} |"
            )
        return "\n".join([*rows, *self.states(kinds)])

    def states(self, kinds: list[str]) -> list[str]:
        """Where trials are of several states of the code: what was counted of each."""
        events: dict[str, collections.Counter[str]] = {}
        for kind in kinds:
            for line in self.read(kind):
                events.setdefault(line.get("code", "unknown"), collections.Counter())[kind] += line[
                    "events"
                ]
        if len(events) < 2:
            return []
        rows = (
            f"code {code}: " + ", ".join(f"{kind} {count:,}" for kind, count in counts.items())
            for code, counts in events.items()
        )
        return ["", *rows]


def code_state() -> str:
    """The commit that is tried, with `-dirty` where files differ from it."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=10", "--exclude=*"]
    home = Path(__file__).parent
    try:
        run = subprocess.run(command, cwd=home, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return run.stdout.strip()

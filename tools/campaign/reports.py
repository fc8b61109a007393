"""Reports of a stranger's run: odd figures, markup in every word, links and FIFOs among its files.

The words of a run reach the terminal, a page, pictures and a card. None may steer the terminal, be
markup of the page, or name a file elsewhere.
"""

import copy
import json
import os
import random
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import torch

from saccade.engine import session
from saccade.recipes.recipe import change
from tests.engine.classify_runs import PLAIN, folder
from tools.campaign.checkpoints import in_this_process
from tools.campaign.guard import guarded
from tools.campaign.odd import changed, changed_bytes, places
from tools.campaign.verdict import Finding, Outcome

SIDE = ("report.jsonl", "steps.jsonl", "tables.json", "environment.json", "data.json",
        "baseline.json", "bad.json", "final.json", "recipe.json")  # fmt: skip
MARKUP = (
    "<b id=evil>", '"><img src=x onerror=evil>', "'><svg onload=evil>", "</title><b id=evil>",
    '<meta http-equiv="refresh" content="0;url=http://evil.example/">', "&lt;b id=evil&gt;",
    "](http://evil.example/)<b id=evil>", "```\n<b id=evil>\n```", "| evil |\n| --- |",
    "\x1b[2Jevil", "\x1b]0;evil\x07", "\u202eevil", "../../evil", "$\\frac{evil",
    "/tmp/evil", "$x$",
)  # fmt: skip
TAGS = {
    "html", "head", "meta", "title", "style", "body", "section", "h1", "h2", "p", "b", "table",
    "thead", "tbody", "tr", "th", "td", "div", "img", "ul", "li", "details", "summary", "pre",
    "figure", "figcaption", "span", "mark",
}  # fmt: skip


class Reports:
    """The end of a small run, with other words in the files beside its model."""

    def __init__(self, place: Path):
        torch.set_num_threads(1)
        self.run, data = place / "run", folder(place / "data", train=3, val=1)
        recipe = change(PLAIN, schedule__epochs=1)
        session.train(recipe, str(data), self.run, device="cpu")
        (self.run / "baseline.json").write_text('{"top1": 50.0, "name": "a line"}')
        (self.run / "bad.json").write_text('{"red/1.png": "cut short"}')
        shutil.rmtree(self.run / "checkpoints")

    def close(self) -> None:
        return

    def trial(self, chance: random.Random, folder: Path) -> Outcome:
        run, words = folder / "run", ["report", str(folder / "run")]
        (folder / "secret").write_text("secret 4711")
        shutil.copytree(self.run, run)
        acts = [self.harm(chance, run, folder) for _ in range(chance.choice((1, 1, 2, 3)))]
        draw = chance.random()
        if draw < 0.15:
            shutil.copytree(self.run, folder / "other")
            out = folder / chance.choice(("all.html", "all.png"))
            words += [str(folder / "other"), "--out", str(out)]
        elif draw < 0.3:
            words.append("--json")
        elif draw < 0.4:
            words = ["export", str(run), "--to", "hub", "--out", str(folder / "hub")]
        before = {path for path in folder.rglob("*") if not path.is_relative_to(run)}
        with guarded():
            code, message = in_this_process(words)
        what = f"{words[0]} after {acts}"
        after = {path for path in folder.rglob("*") if not path.is_relative_to(run)}
        new = {path.relative_to(folder).parts[0] for path in after - before}
        if new - {"all.html", "all.png", "hub"}:
            raise Finding(f"{what}: it wrote {new}")
        if (folder / "secret").read_text() != "secret 4711" or "4711" in message:
            raise Finding(f"{what}: a file outside was shown or written")
        if any(not c.isprintable() and c not in "\n\t" for c in message):
            raise Finding(f"{what}: it steers the terminal: {message!r}")
        for path in (run / "report.html", folder / "all.html"):
            if path.is_file():
                check_page(path.read_text(errors="replace"), what)
        return Outcome(code != 0, f"{what}: {message}")

    def harm(self, chance: random.Random, run: Path, folder: Path) -> str:
        """Change a file of the run."""
        path = run / chance.choice([name for name in SIDE if os.path.lexists(run / name)])
        act = chance.choices(("markup", "odd", "bytes", "deep", "fifo", "link"), (8, 8, 2, 1, 1, 1))
        if act[0] in ("markup", "odd") and path.is_file():
            lines = path.read_text(errors="replace").splitlines()
            lines = lines if path.suffix == ".jsonl" else ["\n".join(lines)]
            at = chance.randrange(len(lines)) if lines else 0
            try:
                value = json.loads(lines[at])
            except (ValueError, IndexError, RecursionError):
                return "nothing"
            value = changed(value, chance) if act[0] == "odd" else marked_up(value, chance)
            lines[at] = json.dumps(value)
            path.write_text("\n".join(lines) + "\n")
        elif act[0] == "bytes" and path.is_file():
            path.write_bytes(changed_bytes(path.read_bytes(), chance))
        elif act[0] == "deep":
            path.write_text('{"a":' * 200_000)
        elif act[0] in ("fifo", "link"):
            path.unlink()
            if act[0] == "fifo":
                os.mkfifo(path)
            else:
                path.symlink_to(chance.choice((folder / "secret", Path("/dev/zero"), run)))
        return f"{act[0]} {path.name}"


def marked_up(value: Any, chance: random.Random) -> Any:
    """A copy of a tree in which a word, or a key, is markup."""
    value, odd = copy.deepcopy(value), chance.choice(MARKUP)
    ways = [path for path in places(value) if path]
    if not ways:
        return {odd: odd}
    *path, key = chance.choice(ways)
    owner = value
    for step in path:
        owner = owner[step]
    if isinstance(owner, dict) and chance.random() < 0.4:
        owner[odd] = owner.pop(key)
    else:
        owner[key] = odd
    return value


class Page(HTMLParser):
    """What a browser would take for markup, as far as a report has none of it."""

    def __init__(self):
        super().__init__()
        self.foreign: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = {"class", "tabindex", "alt", "lang", "charset", "name"}
        if tag not in TAGS:
            self.foreign.append(tag)
        for key, value in attrs:
            text = value or ""
            if key == "src":
                known_word = text.startswith(("data:image/png;base64,", "data:image/jpeg;base64,"))
            elif key == "http-equiv":
                known_word = text == "Content-Security-Policy"
            elif key == "content":
                known_word = text.startswith(("default-src 'none'", "width=device-width"))
            else:
                known_word = key in known
            if not known_word:
                self.foreign.append(f"{tag} {key}={text[:50]}")


def check_page(text: str, what: str) -> None:
    """Raise `Finding` where a page has markup that no report has."""
    page = Page()
    page.feed(text)
    if page.foreign:
        raise Finding(f"{what}: a page with {page.foreign[:5]}")

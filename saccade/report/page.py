"""Write a run's report as one HTML page without scripts, with its pictures embedded.

Names of classes and files may hold HTML: everything goes through `escape`, and the page's content
policy forbids it to load or run anything.
"""

import base64
import shlex
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

from saccade import tasks
from saccade.recipes import book
from saccade.report.summary import Summary, confused, flat, setting
from saccade.report.tables import Tables
from saccade.tasks.figures import formatted, label_of

MOST_BAD = 200
PICTURES = {
    "curves": "Training and validation loss, validation figures and learning rate over the epochs",
    "confusion": "Confusion matrix: a row per true class, a column per predicted class",
    "classes": "Bars: the figure of each class",
    "precision": "Precision over recall, a line for each overlap",
}
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
STYLE = """
:root { color-scheme: light dark; --ink: #1d1f21; --soft: #64686c; --page: #fdfdfc;
  --line: #d9dadb; --mark: #fff1c2; --good: #0072b2 }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e5e6; --soft: #9a9fa4; --page: #17191b;
  --line: #34383b; --mark: #4a3d10; --good: #56b4e9 } }
* { box-sizing: border-box }
body { margin: 0 auto; padding: 1.2rem 1rem 3rem; max-width: 60rem; background: var(--page);
  color: var(--ink); font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere }
h1 { font-size: 1.5rem; line-height: 1.2; margin: 0 0 .2rem }
h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; padding-top: .6rem;
  border-top: 1px solid var(--line) }
p { margin: .3rem 0 }
.soft { color: var(--soft) }
.result { margin: 1rem 0 }
.result b { font-size: 2.4rem; line-height: 1.1; color: var(--good); margin-right: .4rem }
.scroll { overflow: auto; max-height: 26rem }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums }
th, td { padding: .22rem .8rem .22rem 0; text-align: right; white-space: nowrap;
  vertical-align: top }
th { font-weight: 600; color: var(--soft); position: sticky; top: 0; background: var(--page) }
tr.best td { font-weight: 700; color: var(--good) }
table.words td { text-align: left; white-space: normal; overflow-wrap: anywhere }
table.words td:first-child { color: var(--soft); white-space: nowrap }
mark { background: var(--mark); color: inherit; padding: 0 .25rem; border-radius: .2rem }
img { display: block; max-width: 100%; height: auto; margin: .5rem 0 }
.examples { display: flex; flex-wrap: wrap; gap: .8rem }
.examples figure { margin: 0; max-width: min(100%, 45rem) }
.examples img { margin: 0 0 .2rem; border-radius: .3rem }
figcaption { font-size: .8rem; color: var(--soft); max-width: 16rem }
pre { background: color-mix(in srgb, var(--soft) 14%, transparent); padding: .7rem .9rem;
  border-radius: .4rem; overflow: auto; font-size: .85rem; margin: .4rem 0 }
details > summary { cursor: pointer; color: var(--soft) }
ul { padding-left: 1.2rem; margin: .3rem 0 }
"""


def page(summary: Summary, pictures: Mapping[str, bytes], notes: Iterable[str] = ()) -> str:
    """The whole page; `notes` say what is missing and why."""
    run = summary.run
    title = f"{run.name}: {run.recipe.model.name} on {run.data}"
    best = "Of the best evaluation, whose model was saved."
    parts = [
        _head(summary, title),
        *(f'<p class="soft">{escape(note)}</p>' for note in notes),
        section("Evaluations", _evaluations(summary)),
        section("Curves", _picture("curves", pictures)),
        *of_tables(summary.tables, pictures, best),
        section("Go on", _commands(summary)),
        section("Images that could not be read", _bad(summary)),
        section("Recipe as resolved", _recipe(summary)),
        section("Environment", _words(summary.environment.items())),
    ]
    return document(title, parts)


def of_tables(tables: Tables, pictures: Mapping[str, bytes], sentence: str = "") -> list[str]:
    """The sections about what an evaluation left beside its figures."""
    return [
        section("Confusion", _confusion(tables, pictures, sentence)),
        section("Classes", _picture("classes", pictures) + _per_class(tables)),
        section("Precision over recall", _picture("precision", pictures)),
        *(section(title, _examples(rows)) for title, rows in tables.examples.items()),
        *(section(one.title, _picture(one.name, pictures, one.caption)) for one in tables.pictures),
    ]


def compared(table: Any, picture: bytes | None, sentences: Iterable[str]) -> str:
    """Several runs as a page: the table of `comparison.table`, its picture, and what to know."""
    heads = [str(column.header) for column in table.columns]
    rows = [map(str, row) for row in zip(*(column.cells for column in table.columns), strict=True)]
    top = "".join(f"<th>{escape(head)}</th>" for head in heads)
    body = "".join("<tr>" + "".join(f"<td>{escape(c)}</td>" for c in r) + "</tr>" for r in rows)
    parts = [
        "<h1>Runs side by side</h1>",
        f'<div class="scroll" tabindex="0"><table><thead><tr>{top}</tr></thead><tbody>{body}'
        "</tbody></table></div>",
        *(f'<p class="soft">{escape(sentence)}</p>' for sentence in sentences),
        section("Curves", _picture("curves", {} if picture is None else {"curves": picture})),
    ]
    return document("Runs side by side", parts)


def document(title: str, parts: Iterable[str]) -> str:
    """A page of these parts, all of them HTML; empty ones are left out."""
    return (
        "<!doctype html>\n"
        '<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style></head>\n<body>\n"
        + "\n".join(part for part in parts if part)
        + "\n</body></html>\n"
    )


def _head(summary: Summary, title: str) -> str:
    run, best = summary.run, summary.best
    value, figure = summary.value(best), summary.figure
    images = best["val"].get("images")
    of = f" of {images:.0f} validation images" if images else ""
    classes = f"{len(run.classes)} classes, " if run.classes else ""
    lines = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="soft">{classes}epoch {summary.last["epoch"]} of '
        f"{run.recipe.schedule.epochs}, {summary.minutes:.1f} minutes, seed "
        f"{run.recipe.loop.seed}" + ("" if summary.finished else ", not finished") + "</p>",
        f'<p class="result"><b>{formatted(figure, value)}</b> {escape(label_of(figure))}{of}, '
        f"at epoch {best['epoch']}</p>",
    ]
    if summary.baseline is not None:
        name, base = summary.baseline
        gap = value - base
        verdict = f"{abs(gap):.2f} points {'above' if gap >= 0 else 'below'}"
        lines.append(
            f"<p>{verdict} the baseline: {escape(name)} reaches {formatted(figure, base)}.</p>"
        )
    return "\n".join(lines)


def section(title: str, body: str) -> str:
    """A part with a heading; nothing if it is empty."""
    return f"<section><h2>{escape(title)}</h2>\n{body}</section>" if body else ""


def _evaluations(summary: Summary) -> str:
    names = summary.figures
    heads = ["epoch", "step", *map(label_of, names), "rate", "minutes"]
    rows = []
    for line in summary.lines:
        cells = [
            str(line["epoch"]), str(line["step"]),
            *(formatted(name, line["val"].get(name, float("nan")), unit=False) for name in names),
            f"{line['rate']:.2e}", f"{line['seconds'] / 60:.1f}",
        ]  # fmt: skip
        kind = ' class="best"' if line is summary.best else ""
        rows.append(f"<tr{kind}>" + "".join(f"<td>{escape(c)}</td>" for c in cells) + "</tr>")
    top = "".join(f"<th>{escape(head)}</th>" for head in heads)
    return (
        f'<div class="scroll" tabindex="0"><table><thead><tr>{top}</tr></thead><tbody>\n'
        + "\n".join(rows)
        + "</tbody></table></div>"
    )


def _picture(name: str, pictures: Mapping[str, bytes], caption: str = "") -> str:
    if name not in pictures:
        return ""
    data = base64.b64encode(pictures[name]).decode()
    alt = escape(caption or PICTURES[name])
    return f'<img src="data:image/png;base64,{data}" alt="{alt}">'


def _confusion(tables: Tables, pictures: Mapping[str, bytes], sentence: str) -> str:
    matrix, classes = tables.confusion
    if not matrix:
        return ""
    pairs = confused(matrix, classes, most=10)
    items = "".join(
        f"<li>{escape(p.truth)} taken for {escape(p.guess)}: {p.times} of {p.of}</li>"
        for p in pairs
    )
    most = f"<p>Most confused:</p><ul>{items}</ul>" if items else "<p>Nothing was confused.</p>"
    picture = _picture("confusion", pictures)
    about = f"{sentence} {tables.about_confusion}".strip()
    return f'<p class="soft">{escape(about)}</p>{picture}\n{most}'


def _per_class(tables: Tables) -> str:
    """The table of figures for each class."""
    rows = tables.per_class
    if not rows:
        return ""
    heads = list(rows[0])
    top = "".join(f"<th>{escape(str(head))}</th>" for head in heads)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(_cell(row.get(head)))}</td>" for head in heads) + "</tr>"
        for row in rows
    )
    table = f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
    return f"<details><summary>as a table</summary>{table}</details>"


def _cell(value: Any) -> str:
    return "-" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)


def _examples(rows: list[tuple[str, str]]) -> str:
    """Pictures with their captions, side by side."""
    if not rows:
        return ""
    figures = "".join(
        f'<figure><img src="data:image/jpeg;base64,{jpeg}" alt="{escape(caption)}">'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
        for caption, jpeg in rows
    )
    return f'<div class="examples">{figures}</div>'


def _commands(summary: Summary) -> str:
    folder = shlex.quote(str(summary.run.folder))
    command = tasks.of(summary.run.recipe).command
    commands = [
        *([] if summary.finished else [f"saccade resume {folder}"]),
        *([f"saccade {command} PICTURE --model {folder}"] if command else []),
        f"saccade eval {folder}",
        f"saccade report {folder}",
    ]
    return f"<pre>{escape(chr(10).join(commands))}</pre>"


def _bad(summary: Summary) -> str:
    bad = summary.bad
    if not bad:
        return ""
    rows = _words(list(bad.items())[:MOST_BAD])
    more = len(bad) - MOST_BAD
    rest = f'<p class="soft">and {more} more, in bad.json</p>' if more > 0 else ""
    sentence = f"{len(bad)} of them; each was replaced by another."
    return f"<p>{sentence}</p><div class='scroll' tabindex='0'>{rows}</div>{rest}"


def _recipe(summary: Summary) -> str:
    name, changes = escape(summary.run.name), summary.changed
    if summary.run.name not in book.RECIPES:
        sentence = f"<p>No recipe is named '{name}'; this is all it had.</p>"
    elif changes:
        rows = "".join(
            f"<tr><td>{escape(key)}</td><td><mark>{escape(setting(here))}</mark> "
            f'<span class="soft">instead of {escape(setting(there))}</span></td></tr>'
            for key, (here, there) in changes.items()
        )
        sentence = (
            f"<p>Changed from '{name}':</p><table class='words'><tbody>{rows}</tbody></table>"
        )
    else:
        sentence = f"<p>As '{name}' has it.</p>"
    rows = "".join(
        f"<tr><td>{escape(key)}</td><td>{_marked(setting(value), key in changes)}</td></tr>"
        for key, value in flat(summary.run.recipe).items()
    )
    table = f'<table class="words"><tbody>{rows}</tbody></table>'
    return f"{sentence}<details><summary>all settings</summary>{table}</details>"


def _marked(text: str, mark: bool) -> str:
    return f"<mark>{escape(text)}</mark>" if mark else escape(text)


def _words(pairs: Iterable[tuple[str, Any]]) -> str:
    rows = "".join(f"<tr><td>{escape(str(k))}</td><td>{escape(str(v))}</td></tr>" for k, v in pairs)
    return f'<table class="words"><tbody>{rows}</tbody></table>' if rows else ""

"""`paper`: what the papers print, beside what the code does and what runs reached."""

import re
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

from saccade.cli.command import Value
from saccade.cli.console import say, show, show_json, table

LEGEND = "=  as printed    [n]  see below    not run  a training by the paper's recipe would tell"
WIDEST = 40  # letters in a line of names, or of a printed cell
STATUS = {
    "held": "held", "differs": "differ (with reason)",
    "unexpected": "no longer as noted", "run": "run in full",
    "run at small scale": "run at small scale", "not run": "not run",
    "not counted": "not counted (with reason)",
}  # fmt: skip
UNKNOWN = "not as printed, and no reason is known"
ALWAYS = ("held", "differs", "run at small scale", "not run")  # printed even where it is 0


def paper(
    family: Annotated[str, Value("linglo|qna|sasa")] | None = None,
    *,
    runs: Annotated[Path, Value("FOLDER", "files")] = Path("runs"),
    anew: bool = False,
    json: bool = False,
) -> None:
    """Print what a paper says beside what the code does and what a run reached.

    It has every cell of the paper's tables, and what its text says of training and results. The
    code's side is counted on the models, read off the objects that a recipe builds, or reached by a
    run. Models with equal claims share a row. The last line counts all; without a paper, there is
    one such line for each of the three. "No longer as noted" is what a changed program, measured
    with --anew, does otherwise than the claims say.

    Examples:
        saccade paper
        saccade paper qna
        saccade paper linglo --runs runs

    Args:
        family: the paper
        runs: where to look for finished runs by the paper's recipes
        anew: measure everything now, in minutes, instead of showing what tests hold the code to
        json: print JSON
    """
    from saccade.paper import claims
    from saccade.paper.runs import finished

    if family is not None and family not in claims.FAMILIES:
        papers = ", ".join(claims.FAMILIES)
        raise ValueError(f"no paper named {family!r}; there is {papers}")
    if runs != Path("runs") and not runs.is_dir():
        raise FileNotFoundError(f"paper: no folder {str(runs)!r} to look for runs in")
    runs_by_name = finished(runs)
    if family is None:
        lines = {name: _lines(name, runs_by_name, anew) for name in claims.FAMILIES}
        if json:
            show_json([{"paper": name, **line} for name in lines for line in lines[name]])
        else:
            show(_overview(lines))
            say("saccade paper linglo shows each claim of one; so do qna and sasa")
        return
    lines_of_one = _lines(family, runs_by_name, anew)
    if json:
        show_json(lines_of_one)
        return
    reasons: dict[str, int] = {}
    show(_grid(family, lines_of_one, reasons))
    for reason, mark in reasons.items():
        say(f"[{mark}] {reason}")
    say(_summed_up(lines_of_one))


def _lines(family: str, runs: Any, anew: bool) -> list[dict[str, Any]]:
    """Every claim of a paper with what became of it, sections of text first, then tables."""
    from saccade.paper import claims
    from saccade.paper.runs import best_of_study, best_run

    lines = []
    for row in sorted(claims.rows(family), key=lambda row: _order(row.claim)):
        name, claim = row.name, row.claim
        measured = (claims.measure if anew else claims.measured)(row)
        best = best_run(name, claim, runs) if measured is None else None
        if measured is None and (best is None or not best.full):
            best = best_of_study(name, claim) or best
        line: dict[str, Any] = {
            "where": claim.where, "model": name, "what": claim.what, "paper": claim.said,
            "code": measured, "differs": claim.differs or None,
            "unmeasured": claim.unmeasured or None, "run": None, "run_note": None,
            "kind": row.kind, "status": _status(claim, measured, best),
        }  # fmt: skip
        if best is not None:
            as_claimed = best.value >= (claim.number or 0) or claim.holds(best.value)
            line |= {
                "run": best.value, "run_mark": best.mark, "as_claimed": as_claimed,
                "run_note": f"{best.mark}: {best.note}",
            }  # fmt: skip
        lines.append(line)
    return lines


def _order(claim: Any) -> tuple[Any, ...]:
    """Text before tables, section 4 before 10, k = 3 before k = 11."""
    parts = re.split(r"(\d+)", claim.where.removeprefix("§"))
    place = [(int(p), "") if p.isdecimal() else (-1, p) for p in parts if p]
    return claim.where.startswith("Table"), place, claim.what


def _status(claim: Any, measured: Any, best: Any) -> str:
    if best is not None:
        return "run" if best.full else "run at small scale"
    if measured is None:
        return "not counted" if claim.unmeasured else "not run"
    if claim.holds(measured) is bool(claim.differs):
        return "unexpected"
    return "differs" if claim.differs else "held"


# -- tables ---------------------------------------------------------------------------------------


def _grid(family: str, lines: list[dict[str, Any]], reasons: dict[str, int]) -> Any:
    """The lines as a table; notes to print below it are added to `reasons`, with their numbers."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    grid = Table(
        title=f"{family}: paper | code | run\n{LEGEND}", title_justify="left", title_style="",
        box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0),
    )  # fmt: skip
    grid.add_column("model", max_width=WIDEST)
    grid.add_column("what", no_wrap=True)
    grid.add_column("paper", justify="right", max_width=WIDEST)
    for column in ("code", "run"):
        grid.add_column(column, justify="right", no_wrap=True)
    alike: dict[tuple[Any, ...], list[str]] = {}
    for line in lines:
        alone = line["model"] if line["code"] is None else ""  # equal accuracies are a coincidence
        key = (line["where"], line["what"], line["paper"], alone, *_cells(line, reasons))
        alike.setdefault(key, []).append(line["model"])
    before = ""
    for (where, what, printed_value, _, code, style, run, run_style), names in alike.items():
        if where != before:
            before = where
            grid.add_section()
            grid.add_row(Text(_section(where), "bold"))
        grid.add_row(_short(names), what, printed_value, Text(code, style), Text(run, run_style))
    return grid


def _cells(line: dict[str, Any], reasons: dict[str, int]) -> tuple[str, str, str, str]:
    """The columns `code` and `run` of a line, each with its style."""

    def mark(reason: str) -> str:
        return f"[{reasons.setdefault(reason, len(reasons) + 1)}]"

    if line["run"] is not None:
        unit = "%" if line["paper"].endswith("%") else ""
        full = "green" if line["as_claimed"] else "yellow"
        cell = f"{line['run']:.1f}{unit} {line['run_mark']} {mark(line['run_note'])}"
        return "", "", cell, full if line["status"] == "run" else ""
    if line["unmeasured"]:
        return mark(f"not counted: {line['unmeasured']}"), "", "", ""
    if line["code"] is None:
        return "", "", "not run", ""
    exact = _exact(line["code"], line["paper"])
    if line["status"] == "unexpected":
        note = f"as printed now, but noted is: {line['differs']}" if line["differs"] else UNKNOWN
        return f"{exact} {mark(note)}".strip(), "red", "", ""
    if line["differs"]:
        return f"{exact} {mark('differs: ' + line['differs'])}", "yellow", "", ""
    return f"{exact} =".strip(), "green", "", ""


def _overview(lines: dict[str, list[dict[str, Any]]]) -> Any:
    """The papers in a row each, and what became of their claims."""
    counts = {family: Counter(line["status"] for line in lines[family]) for family in lines}
    columns = [key for key in STATUS if key in ALWAYS or any(counts[f][key] for f in counts)]
    short = [STATUS[key].removesuffix(" (with reason)") for key in columns]
    heads = ["claims", "in tables", *short]
    grid = table("paper", *heads, right=tuple(heads))
    for family, rows in lines.items():
        values = len(rows), _cells_of_tables(rows), *(counts[family][key] for key in columns)
        grid.add_row(family, *map(str, values))
    return grid


def _summed_up(lines: list[dict[str, Any]]) -> str:
    """How many claims there are, and what became of them."""
    counts = Counter(line["status"] for line in lines)
    parts = [f"{counts[k]} {words}" for k, words in STATUS.items() if k in counts or k in ALWAYS]
    cells = _cells_of_tables(lines)
    return f"{len(lines)} claims, {cells} of them cells of tables: {', '.join(parts)}"


def _cells_of_tables(lines: list[dict[str, Any]]) -> int:
    return sum(line["where"].startswith("Table") for line in lines)


# -- words ----------------------------------------------------------------------------------------


def _section(where: str) -> str:
    """Where a claim stands, in words: "S2.1" is a section of a supplement."""
    for shape, words in (
        (r"\d.*", "section {}"), (r"§(.*)", "section {}"), (r"S(\d.*)", "supplement, section {}"),
        (r"A\.\d+", "appendix {}"), (r"code", "the authors' code"),
    ):  # fmt: skip
        match = re.fullmatch(shape, where)
        if match:
            return words.format(match[1] if match.lastindex else where)
    return where


def _short(names: list[str]) -> str:
    """`linglo_b0, _b1, _b2`: the common beginning is written once."""
    first, *others = names
    if not others:
        return first
    few, many = min(names), max(names)  # what these begin with alike, all do
    common = few[: next((i for i, c in enumerate(few) if c != many[i]), len(few))]
    common = common if common == few else common.rpartition("_")[0]
    return ", ".join([first, *(name.removeprefix(common) or common for name in others)])


def _exact(measured: object, printed_value: str) -> str:
    """A count in full; what is as printed needs no repeating."""
    text = f"{measured:.6g}" if isinstance(measured, float) else str(measured)
    number = re.fullmatch(r"[\d.]+", printed_value.removesuffix("%"))
    if text == printed_value or (number and text == f"{float(number[0]):.6g}"):
        return ""
    return f"{measured:,}" if isinstance(measured, int) else text

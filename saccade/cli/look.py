"""Commands that look at models and papers: `list`, `show`, `paper`, `tour`."""

from pathlib import Path
from typing import Annotated, Any, cast

from saccade.cli.command import Side, Value
from saccade.cli.console import note, say, show_json, table
from saccade.cli.console import show as print_out


def list_models(
    pattern: Annotated[str, Value("PATTERN", "models")] = "*",
    *,
    all: bool = False,
    json: bool = False,
) -> None:
    """List the models with their size and cost.

    MACs are multiply-adds of one image of the given side; widths are the channels of the four
    stages. Rows of the papers' tables (qna_table2_...) are left out unless you ask for them.

    Examples:
        saccade list
        saccade list nano
        saccade list "linglo_b?"
        saccade list --all

    Args:
        pattern: a part of a name, or a pattern in quotes; all models if left out
        all: also the rows of the papers' tables
        json: print JSON
    """
    from saccade.models.counts import counts, is_table_row, matching

    every = counts()
    matched = matching(pattern, [*every])
    if not matched:
        raise ValueError(f"no model matches {pattern!r}; 'saccade list --all' shows all")
    short = [name for name in matched if not is_table_row(name)]
    names = matched if all or not short else short
    if json:
        show_json([{"model": name, **every[name]._asdict()} for name in names])
        return
    rows = table("model", "params M", "MACs G", "image", "widths",
                 right=("params M", "MACs G", "image", "widths"))  # fmt: skip
    for name in names:
        size, cost = every[name].params / 1e6, every[name].macs / 1e9
        widths = " ".join(map(str, every[name].widths))
        rows.add_row(name, f"{size:.2f}", f"{cost:.2f}", str(every[name].size), widths)
    print_out(rows)
    if len(names) < len(matched):
        note(f"and {len(matched) - len(names)} rows of the papers' tables: saccade list --all")


def show(
    name: Annotated[str, Value("MODEL", "models")],
    *,
    size: Side | None = None,
    json: bool = False,
) -> None:
    """Show one model: stages, widths, parameters, multiply-adds, receptive field.

    Examples:
        saccade show linglo_b0
        saccade show qna_nano --size 96

    Args:
        name: a model; 'saccade list' shows all
        size: image side; the model's own if left out
        json: print JSON
    """
    import torch
    from rich.text import Text
    from rich.tree import Tree

    from saccade import weights
    from saccade.models import zoo
    from saccade.models.backbone import Stage
    from saccade.models.zoo import Classifier
    from saccade.ops.where import backends
    from saccade.paper import count

    model = cast(Classifier, zoo.build(name, device="meta"))
    side = size or model.default_cfg["input_size"][1]
    model.backbone.door.check((1, 3, side, side))
    fields = count.receptive_fields(name, side)
    shapes = [m.shape for m in model.backbone(torch.empty(1, 3, side, side, device="meta"))]
    params, macs = count.params(model), count.macs(model, (side, side))
    stages: list[dict[str, Any]] = []
    for i, (part, shape) in enumerate(zip(model.backbone.stages, shapes, strict=True)):
        stage = cast(Stage, part)
        way, *blocks = (_kind(part) for part in (stage.down, *stage.blocks))
        stages.append(
            {"shape": [*shape[1:]], "stride": model.backbone.strides[i],
             "params": count.params(stage), "sees": fields[i], "down": way,
             "blocks": [[times, kind] for kind, times in _runs(blocks)]}
        )  # fmt: skip
    stem, head = count.params(model.backbone.stem), count.params(model.head)
    fused = count.params(model.eval().fuse())
    if json:
        show_json(
            {"model": name, "size": side, "params": params, "macs": macs, "deployed_params": fused,
             "stem_params": stem, "stages": stages, "head_params": head,
             "trained": weights.full(name)}
        )  # fmt: skip
        return
    bold = "bold"
    tree = Tree(
        Text.assemble(
            (name, bold), f"  {params:,} parameters, {macs / 1e9:.3f} GMACs at {side} x {side}"
        )
    )
    if stem:
        tree.add(f"stem  {stem:,} parameters")
    for i, stage in enumerate(stages):
        C, H, W = stage["shape"]
        branch = tree.add(
            Text.assemble(
                (f"stage {i + 1}", bold),
                f"  {C} x {H} x {W}, stride {stage['stride']}, {stage['params']:,} params, "
                f"sees {_pixels(stage['sees'], side)}",
            )
        )
        branch.add(f"down: {stage['down']}")
        for times, kind in stage["blocks"]:
            branch.add(f"{times} x {kind}")
    tree.add(f"head  {model.num_features} -> {model.num_classes}, {head:,}")
    print_out(tree)
    if fused != params:
        say(f"fused for deployment: {fused:,} parameters")
    trained = weights.full(name)
    if trained is not None:
        say(f"comes trained, as {trained}: {weights.FILES[trained].with_suffix('.md')}")
    say(backends()[0])


def paper(
    family: Annotated[str, Value("linglo|qna|sasa")],
    *,
    runs: Annotated[Path, Value("FOLDER", "files")] = Path("runs"),
    anew: bool = False,
    json: bool = False,
) -> None:
    """Print what a paper says beside what the code does and what a run reached.

    Every cell of its tables, and what its text says of training and results: counted, read off live
    objects, or reached by a run. The last line sums up.

    Examples:
        saccade paper qna
        saccade paper linglo --runs runs

    Args:
        family: the paper
        runs: where to look for finished runs by the paper's recipes
        anew: measure everything now, in minutes, instead of showing what tests hold the code to
        json: print JSON
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from saccade.paper import claims
    from saccade.paper.runs import finished, reached

    if family not in claims.FAMILIES:
        known = ", ".join(claims.FAMILIES)
        raise ValueError(f"no paper named {family!r}; there is {known}")
    if runs != Path("runs") and not runs.is_dir():
        raise FileNotFoundError(f"paper: no folder {str(runs)!r} to look for runs in")
    grid = Table(title=f"{family}: paper | code | run", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in ("model", "what"):
        grid.add_column(column, no_wrap=True)
    for column in ("paper", "code", "run"):
        grid.add_column(column, justify="right", no_wrap=True)
    reasons: dict[str, int] = {}
    lines: list[dict[str, Any]] = []
    done = finished(runs)
    where = ""
    rows = claims.rows(family)
    for row in sorted(rows, key=lambda row: (row.claim.where, row.claim.what)):
        name, claim = row.name, row.claim
        measured = (claims.measure if anew else claims.measured)(row)
        best = reached(name, claim, done) if measured is None else None
        line: dict[str, Any] = {
            "where": claim.where, "model": name, "what": claim.what, "paper": claim.said,
            "code": measured, "differs": claim.differs or None, "run": None, "run_note": None,
            "kind": row.kind, "status": _status(claim, measured, best),
        }  # fmt: skip
        code, run = Text(), Text()
        if best is not None:
            line |= {"run": best.value, "run_note": f"{best.mark}: {best.note}"}
            mark = reasons.setdefault(line["run_note"], len(reasons) + 1)
            unit = "%" if claim.said.endswith("%") else ""
            as_claimed = best.value >= (claim.number or 0) or claim.holds(best.value)
            style = ("green" if as_claimed else "yellow") if best.full else ""
            run = Text(f"{best.value:.1f}{unit} {best.mark} [{mark}]", style)
        elif claim.unmeasured:
            mark = reasons.setdefault(f"not counted: {claim.unmeasured}", len(reasons) + 1)
            code = Text(f"[{mark}]")
        elif measured is None:
            run = Text("not run")
        elif claim.differs:
            mark = reasons.setdefault(f"differs: {claim.differs}", len(reasons) + 1)
            code = Text(f"{_exact(measured, claim.said)} [{mark}]", "yellow")
        else:
            code = Text(f"{_exact(measured, claim.said)} =", "green")
        if claim.where != where:
            where = claim.where
            grid.add_section()
            grid.add_row(Text(where, "bold"))
        grid.add_row(name, claim.what, claim.said, code, run)
        lines.append(line)
    if json:
        show_json(lines)
        return
    print_out(grid)
    for reason, mark in reasons.items():
        say(f"[{mark}] {reason}")
    say(_summed_up(lines))


def _status(claim: Any, measured: Any, best: Any) -> str:
    if best is not None:
        return "run" if best.full else "run at small scale"
    if measured is None:
        return "not counted" if claim.unmeasured else "not run"
    return "differs" if claim.differs else "held"


def _summed_up(lines: list[dict[str, Any]]) -> str:
    """How many claims there are, and what became of them."""
    counts = {line["status"]: 0 for line in lines}
    for line in lines:
        counts[line["status"]] += 1
    words = {
        "held": "held", "differs": "differ (with reason)", "run": "run in full",
        "run at small scale": "run at small scale", "not run": "not run",
        "not counted": "not counted (with reason)",
    }  # fmt: skip
    always = ("held", "differs", "not run", "run at small scale")
    parts = [
        f"{counts.get(key, 0)} {words[key]}" for key in words if key in counts or key in always
    ]
    cells = sum(line["where"].startswith("Table") for line in lines)
    return f"{len(lines)} claims, {cells} of them cells of tables: {', '.join(parts)}"


def tour() -> None:
    """Build LinGlo-b0, hold it to its paper, and look at a photograph: a first minute.

    Examples:
        saccade tour
    """
    try:
        import matplotlib.cbook
    except ImportError as error:
        raise ImportError("tour: draws with matplotlib; pip install 'saccade[viz]'") from error

    from saccade.cli.see import view

    photo = Path(str(matplotlib.cbook.get_sample_data("grace_hopper.jpg", asfileobj=False)))
    say("LinGlo-b0", "bold")
    show("linglo_b0")
    say("\nthe paper's claims", "bold")
    paper("linglo")
    say("\na photograph through it", "bold")
    view(photo, out=Path("tour.png"))
    say("next: saccade list | saccade show linglo_nano | saccade view YOUR.jpg")


# -- words for what is shown ------------------------------------------------------------------


def _exact(measured: object, said: str) -> str:
    """A count in full; what is as printed needs no repeating."""
    if isinstance(measured, int):
        return f"{measured:,}"
    text = f"{measured:.6g}" if isinstance(measured, float) else str(measured)
    return "" if text == said else text


def _kind(module: Any) -> str:
    mix = getattr(module, "mix", None)
    own = type(module).__name__
    if own == "Sequential":
        return " + ".join(_kind(part) for part in module.children())
    return f"{own}({type(mix).__name__})" if mix is not None else own


def _runs(kinds: list[str]) -> list[tuple[str, int]]:
    runs: list[tuple[str, int]] = []
    for kind in kinds:
        if runs and runs[-1][0] == kind:
            runs[-1] = (kind, runs[-1][1] + 1)
        else:
            runs.append((kind, 1))
    return runs


def _pixels(field: int, side: int) -> str:
    return "the whole image" if field >= side else f"{field} px"

"""Commands that look: `saccade list`, `show`, `paper`, `view`, `tour`."""

from pathlib import Path
from typing import cast

import torch
from rich import box
from rich.table import Table
from rich.tree import Tree

from saccade import weights
from saccade.cli.console import console
from saccade.models import detectors, zoo
from saccade.models.backbone import Stage
from saccade.models.zoo import Classifier
from saccade.ops.where import backends
from saccade.paper import count


def list_models(pattern: str = "*") -> None:
    """List the models whose name matches, with their size and cost.

    Args:
        pattern: such as "linglo_b*"
    """
    names = zoo.names(pattern)
    if not names:
        raise ValueError(f"no model matches {pattern!r}; 'saccade list' shows all")
    table = Table("model", box=None, pad_edge=False)
    for column in ("params M", "MACs G", "image", "widths"):
        table.add_column(column, justify="right")
    for name in names:
        model = _on_meta(name)
        side = model.default_cfg["input_size"][1]
        size, cost = count.params(model) / 1e6, count.macs(model, (side, side)) / 1e9
        widths = " ".join(map(str, model.backbone.widths))
        table.add_row(name, f"{size:.2f}", f"{cost:.2f}", str(side), widths)
    console.print(table)


def show(name: str, size: int | None = None) -> None:
    """Show one model: stages, widths, parameters, multiply-adds, receptive field.

    Args:
        name: a model ('saccade list' shows all)
        size: image side in pixels; the model's own if not given
    """
    model = _on_meta(name)
    side = size or model.default_cfg["input_size"][1]
    model.backbone.door.check((1, 3, side, side))
    fields = count.receptive_fields(name, side)
    shapes = [m.shape for m in model.backbone(torch.empty(1, 3, side, side, device="meta"))]
    tree = Tree(
        f"[bold]{name}[/]  {count.params(model):,} parameters, "
        f"{count.macs(model, (side, side)) / 1e9:.3f} GMACs at {side} x {side}"
    )
    stem = count.params(model.backbone.stem)
    if stem:
        tree.add(f"stem  {stem:,} parameters")
    for i, (part, shape) in enumerate(zip(model.backbone.stages, shapes, strict=True)):
        stage = cast(Stage, part)
        _, C, H, W = shape
        branch = tree.add(
            f"[bold]stage {i + 1}[/]  {C} x {H} x {W}, stride {model.backbone.strides[i]}, "
            f"{count.params(stage):,} params, sees {_pixels(fields[i], side)}"
        )
        way, *blocks = (_kind(part) for part in (stage.down, *stage.blocks))
        branch.add(f"down: {way}")
        for kind, times in _runs(blocks):
            branch.add(f"{times} x {kind}")
    tree.add(f"head  {model.num_features} -> {model.num_classes}, {count.params(model.head):,}")
    console.print(tree)
    before = count.params(model)
    after = count.params(model.eval().fuse())
    if after != before:
        console.print(f"fused for deployment: {after:,} parameters")
    trained = weights.full(name)
    if trained is not None:
        said = f"comes trained, as {trained}: {weights.FILES[trained].with_suffix('.md')}"
        console.print(said, highlight=False, soft_wrap=True)
    console.print(backends()[0], highlight=False, soft_wrap=True)


def paper(family: str, runs: Path = Path("runs")) -> None:
    """Print what a paper says beside what the code counts and what a run reached.

    Args:
        family: linglo, qna or sasa
        runs: where to look for finished runs by the paper's recipes
    """
    from saccade.paper.runs import finished, reached

    if family not in zoo.FAMILIES:
        known = ", ".join(zoo.FAMILIES)
        raise ValueError(f"no paper named {family!r}; there is {known}")
    if runs != Path("runs") and not runs.is_dir():
        raise FileNotFoundError(f"paper: no folder {str(runs)!r} to look for runs in")
    table = Table(title=f"{family}: paper | code | run", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("model", overflow="fold", min_width=14)
    table.add_column("what", overflow="fold", min_width=12)
    for column in ("paper", "code", "run"):
        table.add_column(column, justify="right", no_wrap=True)
    reasons: dict[str, int] = {}
    done = finished(runs)
    variants = [name for name in zoo.names() if zoo.family_of(name) == family]
    rows = [
        *((claim, name) for name in variants for claim in zoo.claims(name)),
        *((c, name) for name in detectors.names(family) for c in detectors.CLAIMS[name]),
    ]
    where = ""
    for claim, name in sorted(rows, key=lambda row: (row[0].where, row[0].what)):
        whole = name in variants
        measured = (count.measure if whole else count.measure_detector)(name, claim)
        code, run = "", ""
        if measured is None:
            found = reached(name, claim, done)
            run = "not run"
            if found is not None:
                mark = reasons.setdefault(f"{found.mark}: {found.note}", len(reasons) + 1)
                unit = "%" if claim.said.endswith("%") else ""
                run = f"{found.value:.1f}{unit} {found.mark} \\[{mark}]"
                if found.full:
                    as_claimed = found.value >= (claim.number or 0) or claim.holds(found.value)
                    run = f"[{'green' if as_claimed else 'yellow'}]{run}[/]"
        elif claim.differs:
            mark = reasons.setdefault(f"differs: {claim.differs}", len(reasons) + 1)
            code = f"[yellow]{_exact(measured)} \\[{mark}][/]"
        else:
            code = f"[green]{_exact(measured)} =[/]"
        if claim.where != where:
            where = claim.where
            table.add_section()
            table.add_row(f"[bold]{where}[/]")
        table.add_row(name, claim.what, claim.said, code, run)
    console.print(table)
    for reason, mark in reasons.items():
        console.print(f"[{mark}] {reason}", markup=False)


def tour() -> None:
    """Build LinGlo-b0, hold it to its paper, and look at a photograph: a first minute."""
    import matplotlib.cbook

    from saccade.cli.see import view

    photo = Path(str(matplotlib.cbook.get_sample_data("grace_hopper.jpg", asfileobj=False)))
    console.rule("LinGlo-b0")
    show("linglo_b0")
    console.rule("the paper's claims")
    paper("linglo")
    console.rule("a photograph through it")
    view(photo, out=Path("tour.png"))
    console.print("next: saccade list | saccade show linglo_nano | saccade view YOUR.jpg")


# -- words for what is shown ------------------------------------------------------------------


def _on_meta(name: str) -> Classifier:
    return cast(Classifier, zoo.build(name, device="meta"))


def _exact(measured: object) -> str:
    """A count in full; a list of widths needs no repeating."""
    return f"{measured:,}" if isinstance(measured, int) else ""


def _kind(module: torch.nn.Module) -> str:
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

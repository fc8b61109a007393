"""Commands that look at models: `list`, `show`, `tour`."""

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


def tour() -> None:
    """Build LinGlo-b0, compare it with its paper, and view a photograph with it.

    Examples:
        saccade tour
    """
    try:
        import matplotlib.cbook
    except ImportError as error:
        raise ImportError("tour: draws with matplotlib; pip install 'saccade[viz]'") from error

    from saccade.cli.paper import paper
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


def _kind(module: Any) -> str:
    """A part of a stage by its class, and by the layer that mixes its pixels."""
    mix = getattr(module, "mix", None)
    own = type(module).__name__
    if own == "Sequential":
        return " + ".join(_kind(part) for part in module.children())
    return f"{own}({type(mix).__name__})" if mix is not None else own


def _runs(kinds: list[str]) -> list[tuple[str, int]]:
    """Equal neighbours as one entry with their number."""
    runs: list[tuple[str, int]] = []
    for kind in kinds:
        if runs and runs[-1][0] == kind:
            runs[-1] = (kind, runs[-1][1] + 1)
        else:
            runs.append((kind, 1))
    return runs


def _pixels(field: int, side: int) -> str:
    return "the whole image" if field >= side else f"{field} px"

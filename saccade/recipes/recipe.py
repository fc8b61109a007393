"""The classes that a recipe consists of: model, data, optimiser, schedule, loop.

A `Recipe` says all that decides a training run except where the images lie and where the run is
kept. It is frozen: one is written out in full, or is a `change` away from one that is. Every field
here is read by somebody; a test fails on one that is not.
"""

import dataclasses
import math
import types
from dataclasses import dataclass, field
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from saccade.recipes.bounds import BELOW_ONE, COUNT, POSITIVE, SHARE, SOME, hold
from saccade.recipes.group import AugmentSettings, TaskSettings, TestSettings, path_field
from saccade.spelling import nearest

DEEPEST, MOST = 20, 10_000  # lists inside each other, and values in all, of one setting


@dataclass(frozen=True, kw_only=True)
class Model:
    """Which network, and what is changed about it."""

    name: str
    """A model of saccade or of timm."""
    drop_path: float | None = None
    """Stochastic depth of the last block; the model's own rate if None."""
    start: str = path_field(default="")
    """A saved model or a run to take the backbone's weights from; fresh ones if empty."""
    options: dict[str, Any] = field(default_factory=dict)
    """Further arguments of the model, such as window=5."""
    graft: str = ""
    """Layers of saccade to put into it, such as "sasa where=layer4 window=5; rp-cpe keep=true"."""

    def __post_init__(self) -> None:
        hold(self, drop_path=BELOW_ONE)


@dataclass(frozen=True, kw_only=True)
class Data:
    """What is read, and how much of it may be broken."""

    holdout: float = 0.1
    """Share of the training images kept for validation where the set brings none."""
    tune: bool = False
    """Keep that share of them also where the set brings some: the best model is chosen by these,
    and the set's own validation images are counted once, at the end."""
    share: float = 1.0
    """Share of the training images that is learnt from: the first of each class, whatever the
    seed, and one at least; for studies that must be short."""
    workers: int | None = None
    """Processes that read images; None: one beside a CPU that trains, all cores for a GPU."""
    bad: float = 0.05
    """Share of unreadable images beyond which a run stops."""

    def __post_init__(self) -> None:
        hold(self, bad=SHARE, workers=(0, 512), share=SHARE)


@dataclass(frozen=True, kw_only=True)
class Optim:
    """How parameters move."""

    name: Literal["adamw", "adam", "sgd", "nesterov", "muon"]
    """muon orthogonalises the steps of matrices; what is no matrix moves by adamw (`vectors`)."""
    lr: float
    """Peak rate, for steps of `lr_batch` images; scaled in proportion to the real batch."""
    vectors: float = 0.1
    """Of muon: the rate of what moves by adamw (biases, norms, tables, the classifier, matrices
    less than 8 wide), as a share of the matrices' rate."""
    lr_batch: int | None = None
    """None: the rate is taken as it stands."""
    momentum: float = 0.9
    """Of sgd, nesterov and muon; the first beta of adam and adamw."""
    beta: float = 0.999
    """The second beta of adam and adamw."""
    weight_decay: float = 0.0
    undecayed: tuple[Literal["vectors", "declared"], ...] = ("vectors", "declared")
    """No decay for biases and norms ("vectors"), and for what layers declare (position tables)."""
    layer_decay: float | None = None
    """Factor by which each earlier block learns more slowly."""
    backbone: float = 1.0
    """The backbone's rate, as a share of the rest's."""
    clip: float | None = None
    """Largest norm of all gradients together."""

    def __post_init__(self) -> None:
        hold(self, lr=COUNT, lr_batch=SOME, clip=POSITIVE, weight_decay=COUNT)
        hold(self, momentum=BELOW_ONE, beta=SHARE, layer_decay=COUNT, backbone=COUNT, vectors=COUNT)


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How the rate goes: linear warm-up, then a decay by steps, not epochs."""

    epochs: int
    iterations: int | None = None
    """Steps in all, instead of whole epochs: then these follow from the number of images."""
    warmup: float = 0.0
    """Epochs from `start` to the peak."""
    start: float = 0.0
    """Rate at the first step, as a share of the peak."""
    shape: Literal["cosine", "step", "poly", "constant"] = "cosine"
    end: float = 0.0
    """Rate at the last step, as a share of the peak (cosine, poly)."""
    steps: tuple[float, ...] = ()
    """Epochs after which the rate is multiplied by `factor` (step)."""
    factor: float = 0.1
    power: float = 1.0
    """Exponent of poly."""

    def __post_init__(self) -> None:
        hold(self, epochs=SOME, iterations=SOME, warmup=COUNT, start=SHARE, end=SHARE)
        hold(self, factor=COUNT, power=POSITIVE)
        if any(not 0 <= epoch < math.inf for epoch in self.steps):
            raise ValueError(f"schedule.steps: epochs, 0 or more each, got {list(self.steps)}")


@dataclass(frozen=True, kw_only=True)
class Loop:
    """What the machine does; the result should not depend on most of this."""

    batch: int = 64
    """Images a step, over all processes and accumulated parts."""
    part: int | None = None
    """Images in memory at once and per process; the share of the batch if None."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    ema: float | None = None
    """Decay of the moving average of parameters, which is then what is evaluated."""
    ema_ramp: bool = True
    """Let that decay grow over the first steps, (1 + n) / (10 + n), so that short runs profit."""
    bn_decay: float | None = None
    """Decay of BatchNorm's running statistics; the model's own if None."""
    norms: Literal["batch", "frozen"] = "batch"
    """frozen: BatchNorm of the backbone keeps the statistics and weights that it began with, for
    batches of a few images a process; begin with a trained backbone then (model.start)."""
    compile: bool = False
    checkpointing: bool = False
    """Recompute blocks in backward, for memory."""
    shard: bool = False
    """Split parameters over the processes (FSDP2) instead of copying them (DDP)."""
    seed: int = 0
    baseline: bool = False
    """Fit a linear model on the pixels first, to compare with; for sets that fit into memory."""
    save_every: int | None = None
    """Steps between checkpoints, beside one after each epoch."""
    keep: int = 1
    """How many of the last checkpoints stay, beside the best and one to fall back on."""
    keep_every: int | None = None
    """Epochs after each of which a checkpoint stays for good; none does if None."""
    evaluate_every: int = 1
    """Epochs between evaluations; the last epoch is always evaluated."""

    def __post_init__(self) -> None:
        hold(self, batch=SOME, part=SOME, keep=SOME, keep_every=SOME)
        hold(self, save_every=COUNT, evaluate_every=SOME)
        hold(self, ema=SHARE, bn_decay=SHARE)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """All that decides a run."""

    about: str
    """Section of the paper, command, hours on which machine, result to expect."""
    model: Model
    task: TaskSettings
    data: Data = Data()
    augment: AugmentSettings
    test: TestSettings
    optim: Optim
    schedule: Schedule
    loop: Loop


# -- changing one ---------------------------------------------------------------------------


def change(recipe: Any, **changes: Any) -> Any:
    """The recipe with some fields replaced; `optim__lr=1` reaches inside, as `"optim.lr"` does."""
    for path, value in changes.items():
        head, _, rest = path.replace("__", ".").partition(".")
        _check_field_name(recipe, head, path, recipe)
        inner = change(getattr(recipe, head), **{rest: value}) if rest else value
        recipe = dataclasses.replace(recipe, **{head: inner})
    return recipe


def override(recipe: Any, words: list[str]) -> Any:
    """The recipe with `optim.lr=1e-3` and the like applied: typed, an unknown key refused."""
    for word in words:
        path, equals, text = word.partition("=")
        if not equals:
            raise ValueError(f"--set takes KEY=VALUE, got {word!r}; such as optim.lr=1e-3")
        if not path.isprintable():
            raise ValueError(f"--set takes KEY=VALUE, {path!r} is no key; such as optim.lr=1e-3")
        owner, *parts = recipe, *path.split(".")
        for part in parts:
            _check_field_name(owner, part, path, recipe)
            owner = getattr(owner, part)
            if isinstance(owner, dict):
                break
            if part is not parts[-1] and not dataclasses.is_dataclass(owner):
                raise ValueError(f"--set {path}: {part!r} has nothing inside; drop what follows it")
        recipe = _placed(recipe, parts, path, text)
    return recipe


def _placed(owner: Any, parts: list[str], path: str, text: str) -> Any:
    name, *rest = parts
    if isinstance(owner, dict):
        return {**owner, ".".join(parts): _parsed(Any, path, text)}
    value = getattr(owner, name)
    if rest:
        value = _placed(value, rest, path, text)
    elif dataclasses.is_dataclass(value):
        inside = ", ".join(f"{path}.{f.name}" for f in dataclasses.fields(value))
        raise ValueError(f"--set {path}: this is a group; set one of {inside}")
    else:
        value = _parsed(get_type_hints(type(owner))[name], path, text)
    return dataclasses.replace(owner, **{name: value})


def _parsed(kind: Any, path: str, text: str) -> Any:
    from jsonargparse import ArgumentError, ArgumentParser

    if not _is_finite(_yaml(text)):
        raise ValueError(f"--set {path}: a value that contains itself, got {text!r}; write it out")
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--value", type=kind)
    try:
        return parser.parse_args([f"--value={text}"]).value
    except (ArgumentError, RecursionError, OverflowError) as error:
        raise ValueError(f"--set {path}: wants {words_for(kind)}, got {text!r}") from error


def _yaml(text: str) -> Any:
    """The text as YAML, or None where it is none."""
    import yaml

    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        return None


def _is_finite(value: Any) -> bool:
    """Whether a value has an end: YAML's anchors may put a list into itself, or very many."""
    count, level = 0, [value]
    for _ in range(DEEPEST):
        level = [
            inner
            for one in level
            if isinstance(one, list | tuple | dict)
            for inner in (one.values() if isinstance(one, dict) else one)
        ]
        count += len(level)
        if not level or count > MOST:
            break
    return not level


def _check_field_name(owner: Any, name: str, path: str, recipe: Any) -> None:
    """Refuse an unknown key with the same name in another group, else with the nearest name."""
    names = [f.name for f in dataclasses.fields(owner)]
    if name not in names:
        groups = [f.name for f in dataclasses.fields(recipe)]
        elsewhere = [f"{group}.{name}" for group in groups if _has(getattr(recipe, group), name)]
        where = "a recipe" if owner is recipe else f"a recipe's {type(owner).__name__.lower()}"
        raise ValueError(
            f"{path}: {where} has no {name!r}; "
            f"did you mean {(elsewhere or [nearest(name, names)])[0]!r}?"
        )


def _has(group: Any, name: str) -> bool:
    return dataclasses.is_dataclass(group) and name in {f.name for f in dataclasses.fields(group)}


def words_for(kind: Any) -> str:
    """A type in words, such as "a number or none"."""
    plain = {
        int: "a whole number",
        float: "a number",
        str: "text",
        bool: "true or false",
        type(None): "none",
    }
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(map(str, get_args(kind)))
    if get_origin(kind) in (Union, types.UnionType):
        return " or ".join(words_for(part) for part in get_args(kind))
    if get_origin(kind) is tuple:
        inner = get_args(kind)
        many = "a list" if ... in inner else f"a list of {len(inner)}"
        return f"{many}, such as [0.5, 1], each {words_for(inner[0])}"
    return plain.get(kind, str(kind))

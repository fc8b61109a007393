"""A place in a network where one of our layers may stand, and what is known of the network."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Options = dict[str, Any]


@dataclass
class Site:
    """A place, by the name of the module that stands there."""

    path: str
    before: str
    """The old module in a few words."""
    make: Callable[[Options], nn.Module] | None = None
    """Makes the new layer; None where none is possible."""
    why: str = ""
    """Why no new layer is possible."""
    put: Callable[[nn.Module], None] | None = None
    """Puts the new layer into the network; None: it replaces the module of that name."""
    begin: Callable[[nn.Module, nn.Module], None] | None = None
    """(new, old): let the new layer begin as the old one's function, or near it."""
    reads: tuple[int, ...] = ()
    """Shape of a map that the old one takes, to compare both; () if they cannot be compared."""
    only_named: bool = False
    """Left as it is unless `where` names it."""


def describe(module: nn.Module) -> str:
    """Describe a module in a few words: its class and its sizes."""
    if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
        k, s, g = module.kernel_size, module.stride, module.groups
        more = (f" stride {s[0]}" if s[0] > 1 else "") + (f" groups {g}" if g > 1 else "")
        return (
            f"{type(module).__name__} {k[0]}x{k[1]} {module.in_channels}->{module.out_channels}"
            f"{more}"
        )
    return type(module).__name__


def parent(model: nn.Module, path: str) -> tuple[nn.Module, str]:
    """The module that holds the module at `path`, and the attribute's name in it."""
    above, _, word = path.rpartition(".")
    return model.get_submodule(above), word


def set_module(model: nn.Module, path: str, module: nn.Module) -> None:
    """Replace the module at `path`."""
    holder, word = parent(model, path)
    setattr(holder, word, module)


def alike(new: nn.Module, old: nn.Module) -> nn.Module:
    """The new module in the old one's mode, dtype and place."""
    first = next(iter((*old.parameters(), *old.buffers())), None)
    if first is not None and first.is_floating_point():
        new = new.to(dtype=first.dtype)
        if not first.is_meta and next(new.parameters()).device != first.device:
            new = new.to(first.device)
    return new.train(old.training)


def heads_of(width: int, most: int = 0, side: int = 0, even: bool = False) -> int:
    """How many heads: at most `most`, or of about `side` channels; each of them of even width."""
    most_heads = most or max(width // side, 1)
    for heads in range(min(most_heads, width), 0, -1):
        if width % heads == 0 and not (even and width // heads % 2):
            return heads
    return 1


def prefix_and_grid(model: nn.Module) -> tuple[int, tuple[int, int] | None]:
    """How many class tokens a vision transformer has, and the grid of the others."""
    patches = getattr(model, "patch_embed", None)
    grid = getattr(patches, "grid_size", None)
    if grid is not None:
        return int(getattr(model, "num_prefix_tokens", 0)), (int(grid[0]), int(grid[1]))
    if hasattr(model, "image_size") and hasattr(model, "patch_size"):  # torchvision's
        side = int(model.image_size) // int(model.patch_size)  # ty: ignore[invalid-argument-type]
        return 1, (side, side)
    return 0, None


def image_shape(model: nn.Module) -> tuple[int, int, int]:
    """Channels, height and width of an image that the model takes, as far as it says so."""
    card = getattr(model, "pretrained_cfg", None) or getattr(model, "default_cfg", None) or {}
    size = tuple(card.get("input_size", ()))
    if len(size) == 3:
        return size
    side = int(getattr(model, "image_size", 224))
    first = next((m for m in model.modules() if isinstance(m, nn.Conv2d)), None)
    return (first.in_channels if first is not None else 3), side, side


@torch.no_grad()
def read(model: nn.Module, paths: list[str], image: tuple[int, int, int]) -> dict[str, Any]:
    """The shape of the first tensor that each of these modules reads, for one image."""
    shapes: dict[str, Any] = {}
    hooks = []
    for path in paths:

        def note(_: Any, inputs: Any, path: str = path) -> None:
            shapes[path] = tuple(inputs[0].shape)

        hooks.append(model.get_submodule(path).register_forward_pre_hook(note))
    training = [(m, m.training) for m in model.modules()]
    like = next(model.parameters())
    try:
        model.eval()(torch.zeros(1, *image, device=like.device, dtype=like.dtype))
    except Exception as error:  # other people's models fail in many ways
        raise ValueError(
            f"graft: the model does not take an image of {image} ({str(error).splitlines()[0]}), "
            f"so its maps are not known; say image=(channels, height, width)"
        ) from error
    finally:
        for hook in hooks:
            hook.remove()
        for module, mode in training:
            module.training = mode
    return shapes


@torch.no_grad()
def apart(new: nn.Module, old: nn.Module, shape: tuple[int, ...]) -> float:
    """How far two layers differ on a random map, as a share of what the old one gives."""
    like = next(old.parameters(), torch.empty(0))
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(1, *shape, generator=draw).to(like.device, like.dtype)
    modes = new.training, old.training
    try:
        want, have = old.eval()(x), new.eval()(x)
    finally:
        new.train(modes[0]), old.train(modes[1])
    return float((have - want).norm() / want.norm().clamp(min=1e-12))


def foreign_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """All modules of a network with their names, except those inside saccade's own layers."""
    ours: list[str] = []
    for path, module in model.named_modules():
        if any(path.startswith(f"{own}.") for own in ours):
            continue
        if type(module).__module__.startswith("saccade.layers."):
            ours.append(path)
        yield path, module


class GroupedLinear(nn.Module):
    """A linear layer over the last axis in groups, as a convolution with groups has it."""

    def __init__(self, dim: int, out: int, groups: int, bias: bool = False):
        super().__init__()
        self.in_features, self.out_features, self.groups = dim, out, groups
        self.weight = nn.Parameter(torch.empty(out, dim // groups))
        self.bias = nn.Parameter(torch.empty(out)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.weight.shape[1] ** -0.5)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        parts = x.unflatten(-1, (self.groups, -1)).unsqueeze(-2)  # .. g 1 c
        weight = self.weight.unflatten(0, (self.groups, -1))  # g d c
        y = (parts @ weight.mT).flatten(-3)
        return y if self.bias is None else y + self.bias


def lcm_width(width: int, groups: int) -> int:
    """The width, made a multiple of the groups."""
    return math.lcm(width, groups)

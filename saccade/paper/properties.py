"""LinGlo's Table 1, measured: what the layers that mix positions can do, stage by stage.

    linear complexity     MACs grow as the pixels do: with 4 and 16 times the pixels, the second
                          growth is 4 times the first
    content-based         what one place adds to the output depends on what stands at another:
                          y(x + a + b) - y(x + a) - y(x + b) + y(x) is not zero, as it is for a
                          convolution
    global                the output at the centre has a gradient at every place of the map

The last two are measured for one layer on a map that is larger than any window, in float64. (A deep
stack of convolutions sees the whole image too; the table is about single layers.)

`python -m saccade.paper.properties [NAME ...]` prints them of any model; all take minutes.
"""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import timm
import torch
from torch import Tensor, nn

from saccade.models import zoo
from saccade.models.backbone import Stage
from saccade.models.zoo import Classifier
from saccade.paper.count import flops
from saccade.spelling import nearest

SIDE = 28  # of the map
SIZES = (224, 448, 896)
LINEAR = 4.05  # the most that the second growth may be of the first
Mixer = tuple[Callable[[Tensor], Tensor], tuple[int, ...]]  # a layer on B C H W, and C H W


# -- which layers mix positions -----------------------------------------------------------------


def _rows_last(layer: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """A layer of B H W C on B C H W."""
    return layer(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def _tokens(layer: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """A layer of B N C on B C H W."""
    return layer(x.flatten(2).mT).mT.unflatten(2, x.shape[2:])


def own_mixers(model: Classifier) -> dict[int, Mixer]:
    """Of a model of saccade: the last block's, by the number of its stage."""
    mixers: dict[int, Mixer] = {}
    for i, part in enumerate(model.backbone.stages):
        block = cast(Any, cast(Stage, part).blocks[-1])
        if not hasattr(block, "mix"):
            continue
        if hasattr(block, "narrow"):  # SASA's bottleneck, whose layers take B C H W
            mixers[i + 1] = block.mix, (block.narrow.weight.shape[0], SIDE, SIDE)
        else:
            width = block.mix_norm.weight.shape[0]
            mixers[i + 1] = partial(_rows_last, block.mix), (width, SIDE, SIDE)
    return mixers


def _resnet(model: Any) -> dict[int, Mixer]:
    convs = [stage[-1].conv2 for stage in (model.layer1, model.layer2, model.layer3, model.layer4)]
    return {i + 1: (conv, (conv.in_channels, SIDE, SIDE)) for i, conv in enumerate(convs)}


def _swin(model: Any) -> dict[int, Mixer]:
    blocks = [stage.blocks[-1] for stage in model.layers]
    return {
        i + 1: (partial(_rows_last, block._attn), (block.dim, *block.input_resolution))
        for i, block in enumerate(blocks)
    }


def _vit(model: Any) -> dict[int, Mixer]:
    return {1: (partial(_tokens, model.blocks[-1].attn), (model.embed_dim, SIDE, SIDE))}


def _coatnet(model: Any) -> dict[int, Mixer]:
    mixers: dict[int, Mixer] = {}
    for i, stage in enumerate(model.stages):
        block = stage.blocks[-1]
        if hasattr(block, "attn"):
            side = SIDE if i == 2 else SIDE // 2  # of the images that the table is made for
            mixers[i + 1] = block.attn, (block.attn.qkv.in_channels, side, side)
        else:
            conv = block.conv2_kxk
            mixers[i + 1] = conv, (conv.in_channels, SIDE, SIDE)
    return mixers


# timm's name, the argument that says the size of images, and its mixers.
BASELINES: dict[str, tuple[str, str, Callable[[Any], dict[int, Mixer]]]] = {
    "resnet50": ("resnet50", "", _resnet),
    "swin_tiny": ("swin_tiny_patch4_window7_224", "img_size", _swin),
    "vit_small": ("vit_small_patch16_224", "img_size", _vit),
    "coatnet_0": ("coatnet_0_224", "img_size", _coatnet),
}
NAMES = (*BASELINES, *zoo.VARIANTS)


def _baseline(name: str, side: int) -> Any:
    title, word, _ = BASELINES[name]
    options: dict[str, Any] = {word: side} if word else {}
    return timm.create_model(title, **options).eval()


# -- the measures --------------------------------------------------------------------------------


def growth(name: str) -> float:
    """The second growth of MACs over the first, as pixels become 4 and 16 times as many."""
    if name in BASELINES:
        first, second, third = (flops(_baseline(name, side), (side, side)) for side in SIZES)
    else:
        factor = zoo.default_cfgs[name].default.input_size[1] / SIZES[0]
        model = cast(Classifier, zoo.build(name, device="meta"))
        sides = [round(side * factor) for side in SIZES]
        first, second, third = (flops(model, (side, side)) for side in sides)
    return (third - second) / (second - first)


@torch.no_grad()
def is_content_based(layer: Callable[[Tensor], Tensor], shape: tuple[int, ...]) -> bool:
    """Whether what one place does to the output depends on what stands beside it."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, *shape, dtype=torch.float64, generator=generator)
    a, b = torch.zeros_like(x), torch.zeros_like(x)
    row, column = shape[1] // 2, shape[2] // 2
    for change, at in ((a, column), (b, column + 1)):
        change[0, :, row, at] = torch.randn(shape[0], dtype=torch.float64, generator=generator)
    plain, one = layer(x), layer(x + a)
    interaction = layer(x + a + b) - one - layer(x + b) + plain
    return bool(interaction.abs().max() > 1e-9 * (one - plain).abs().max())


def is_global(layer: Callable[[Tensor], Tensor], shape: tuple[int, ...]) -> bool:
    """Whether the centre's output has a gradient at every place."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, *shape, dtype=torch.float64, generator=generator).requires_grad_()
    y = layer(x)
    centre = y[0, :, y.shape[2] // 2, y.shape[3] // 2]
    weight = torch.randn(centre.shape, dtype=torch.float64, generator=generator)
    (gradient,) = torch.autograd.grad(centre @ weight, x)
    return bool((gradient[0].abs().amax(0) > 0).all())


def measured(name: str) -> dict[str, Any]:
    """How the cost grows, and the stages whose layers have the other two properties."""
    if name in BASELINES:
        model = _baseline(name, 16 * SIDE).double()
        mixers = BASELINES[name][2](model)
    else:
        whole: nn.Module = zoo.build(name, dtype=torch.float64)
        mixers = own_mixers(cast(Classifier, whole.eval()))
    return {
        "growth": round(growth(name), 4),
        "content": [i for i, mixer in mixers.items() if is_content_based(*mixer)],
        "global": [i for i, mixer in mixers.items() if is_global(*mixer)],
    }


# What a claim says, of what was measured.
CLAIMED: dict[str, Callable[[dict[str, Any]], str]] = {
    "linear complexity": lambda row: "yes" if row["growth"] <= LINEAR else "no",
    "content-based interaction": lambda row: "yes" if row["content"] else "no",
    "global receptive field": lambda row: "yes" if row["global"] else "no",
    "stages with all three properties": lambda row: ", ".join(
        str(i) for i in row["content"] if i in row["global"] and row["growth"] <= LINEAR
    ),
}


def main(names: Sequence[str]) -> None:
    """Print the table of these models, or of all."""
    for name in names:
        if name not in NAMES:
            raise SystemExit(f"no model named {name!r}; did you mean {nearest(name, NAMES)!r}?")
    print("  ".join(("model", *CLAIMED)))
    for name in names or NAMES:
        row = measured(name)
        print("  ".join((name, *(say(row) for say in CLAIMED.values()))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])

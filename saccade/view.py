"""Where attention looks, as arrays: each function takes a model and an image and draws nothing.

    maps = linglo_saliency(model, image)       {"stage 1": array h x H x W, ...}
    maps = qna_summed_attention(model, image)  {"stage 1, query 1": array h x H x W, ...}
    maps = qna_kernels(model, image)           the same, each pixel as its k x k kernel

`picture` turns such maps into one sheet; it needs matplotlib (the viz extra).
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from saccade.layers.linglo import KeyOnlyAttention
from saccade.layers.qna import LearnedQueryAttention


@torch.no_grad()
def linglo_saliency(model: nn.Module, image: Float[Tensor, "1 C H W"]) -> dict[str, np.ndarray]:
    """The saliency of the last block of each stage, a map per head, each summing to one."""
    layers: dict[str, KeyOnlyAttention] = {}
    for path, module in model.named_modules():
        if isinstance(module, KeyOnlyAttention):
            layers[path.split("stages.")[-1].split(".")[0]] = module  # the last one of its stage
    if not layers:
        raise ValueError("view: this model has no key-only attention; try a linglo_* model")
    seen: dict[str, Tensor] = {}
    hooks = [
        layer.register_forward_pre_hook(
            lambda layer, inputs, stage=stage: seen.__setitem__(stage, layer.weights(*inputs))
        )
        for stage, layer in layers.items()
    ]
    training = model.training
    try:
        model.eval()(image)
    finally:
        model.train(training)
        for hook in hooks:
            hook.remove()
    return {
        f"stage {int(stage) + 1}": a[0].permute(2, 0, 1).float().cpu().numpy()
        for stage, a in seen.items()
    }


def qna_summed_attention(
    model: nn.Module, image: Float[Tensor, "1 C H W"]
) -> dict[str, np.ndarray]:
    """What each pixel is given by all windows together (QnA, supplement Fig. 1), a map per head.

    Of the last QnA layer of each stage, and each of its queries.
    """

    def see(layer: LearnedQueryAttention, x: Tensor) -> Tensor:
        return _summed(layer.weights(x), (x.shape[1], x.shape[2]), layer.stride, layer.padding)

    return _of_each_query(model, image, see)


def qna_kernels(model: nn.Module, image: Float[Tensor, "1 C H W"]) -> dict[str, np.ndarray]:
    """The kernel by which each window is aggregated, side by side (QnA, supplement Fig. 2)."""
    return _of_each_query(model, image, lambda layer, x: _side_by_side(layer.weights(x)))


def _summed(
    p: Float[Tensor, "B Ho Wo L h k k"], size: tuple[int, int], stride: int, padding: int
) -> Float[Tensor, "B L h H W"]:
    """Each window's weights, added up where windows overlap."""
    B, _, _, L, h, k, _ = p.shape
    columns = p.permute(0, 3, 4, 5, 6, 1, 2).flatten(0, 2).flatten(1, 2).flatten(2)
    return F.fold(columns, size, k, stride=stride, padding=padding).view(B, L, h, *size)


def _side_by_side(p: Float[Tensor, "B Ho Wo L h k k"]) -> Float[Tensor, "B L h Hk Wk"]:
    return p.permute(0, 3, 4, 1, 5, 2, 6).flatten(5, 6).flatten(3, 4)


@torch.no_grad()
def _of_each_query(
    model: nn.Module,
    image: Float[Tensor, "1 C H W"],
    see: Callable[[LearnedQueryAttention, Tensor], Float[Tensor, "1 L h H W"]],
) -> dict[str, np.ndarray]:
    layers: dict[str, LearnedQueryAttention] = {}
    for path, module in model.named_modules():
        if isinstance(module, LearnedQueryAttention):
            layers[path.split("stages.")[-1].split(".")[0]] = module  # the last one of its stage
    if not layers:
        raise ValueError("view: this model has no learned-query attention; try a qna_* model")
    seen: dict[str, Tensor] = {}
    hooks = [
        layer.register_forward_pre_hook(
            lambda layer, inputs, stage=stage: seen.__setitem__(stage, see(layer, *inputs))
        )
        for stage, layer in layers.items()
    ]
    training = model.training
    try:
        model.eval()(image)
    finally:
        model.train(training)
        for hook in hooks:
            hook.remove()
    return {
        f"stage {int(stage) + 1}, query {i + 1}": heads.float().cpu().numpy()
        for stage, maps in seen.items()
        for i, heads in enumerate(maps[0])
    }


def picture(
    image: Float[np.ndarray, "H W 3"],
    maps: Mapping[str, Float[np.ndarray, "..."]],
    path: str | Path,
    title: str = "",
) -> Path:
    """Lay each map over the image, a row per entry and a column per head, and save the sheet."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    columns = 1 + max(len(heads) for heads in maps.values())
    H, W = image.shape[:2]
    figure, axes = plt.subplots(
        len(maps), columns, squeeze=False, layout="constrained",
        figsize=(1.7 * columns, 1.9 * len(maps) * H / W + 0.4),
    )  # fmt: skip
    for axis in axes.flat:
        axis.axis("off")
    for row, (name, heads) in zip(axes, maps.items(), strict=True):
        row[0].imshow(image)
        row[0].set_title(name, fontsize=9, loc="left")
        for i, (axis, head) in enumerate(zip(row[1:], heads, strict=False)):
            axis.imshow(image.mean(2), cmap="gray", extent=(0, W, H, 0))
            axis.imshow(head, cmap="viridis", alpha=0.6, extent=(0, W, H, 0))
            axis.set_title(f"head {i + 1}", fontsize=8)
    if title:
        figure.suptitle(title, fontsize=10)
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return Path(path)

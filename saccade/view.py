"""Where attention looks, as arrays: each function takes a model and an image and draws nothing.

    maps = linglo_saliency(model, image)      {"stage 1, block 2": array h x H x W, ...}

`picture` turns such maps into one sheet; it needs matplotlib (the viz extra).
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from saccade.layers.linglo import KeyOnlyAttention


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

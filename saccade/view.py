"""Attention as pictures: tensors in, arrays out. Drawing them is up to the caller."""

from functools import partial

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from saccade.layers.sasa import StandAloneAttention


def sasa_heat(
    weights: Float[Tensor, "*heads k k"], at: tuple[int, int], size: tuple[int, int]
) -> Float[np.ndarray, "*heads H W"]:
    """The weights of one query pixel laid over its map, zero wherever the window does not reach.

    What a window gives to pixels outside the map (border="zero") is cut off: such a heat map sums
    to less than one.
    """
    (i, j), (H, W), p = at, size, weights.shape[-1] // 2
    heat = weights.new_zeros(*weights.shape[:-2], H, W)
    top, left = max(i - p, 0), max(j - p, 0)
    bottom, right = min(i + p + 1, H), min(j + p + 1, W)
    seen = weights[..., top - i + p : bottom - i + p, left - j + p : right - j + p]
    heat[..., top:bottom, left:right] = seen
    return heat.float().cpu().numpy()


@torch.no_grad()
def sasa_attention(
    model: nn.Module, image: Float[Tensor, "1 C H W"], at: tuple[int, int]
) -> dict[str, np.ndarray]:
    """Where each attention layer looks from one pixel (row, column) of the image.

    For every StandAloneAttention, by name and in order: a heat map per head (h, H, W) over the map
    that the layer reads, seen from that map's pixel under `at`.
    """
    H, W = image.shape[2:]
    if not (0 <= at[0] < H and 0 <= at[1] < W):
        raise ValueError(f"sasa_attention: the image has {H}x{W} pixels, got {at=}")
    pictures: dict[str, np.ndarray] = {}

    def look(name: str, layer: StandAloneAttention, inputs: tuple[Tensor, ...]) -> None:
        x = inputs[0]
        h, w = x.shape[2:]
        pixel = (at[0] * h // H, at[1] * w // W)
        pictures[name] = sasa_heat(layer.weights(x, [pixel])[0, :, 0], pixel, (h, w))

    layers = [(n, m) for n, m in model.named_modules() if isinstance(m, StandAloneAttention)]
    if not layers:
        raise ValueError("sasa_attention: the model has no StandAloneAttention; try a sasa_* model")
    hooks = [layer.register_forward_pre_hook(partial(look, name)) for name, layer in layers]
    training = [(module, module.training) for module in model.modules()]
    try:
        model.eval()(image)
    finally:
        for hook in hooks:
            hook.remove()
        for module, mode in training:
            module.training = mode
    return pictures

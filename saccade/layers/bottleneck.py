"""SASA's bottleneck for inference in one kernel call: norms are folded into the matrices.

BN(y) = s y + t     of a 1 x 1 convolution: (s W) x + t
                    of attention: s goes into the values' matrix; so does t, as a bias, where
                    all weights of a window sum to one, and else t is added
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from saccade.layers.norm import is_scale_and_shift, scale_and_shift
from saccade.layers.sasa import StandAloneAttention
from saccade.layers.untouched import passes, plain, untouched
from saccade.ops.native import sasa as native
from saccade.ops.native.pixels import PixelProduct, ProjectedAttention, ReadyConvolution
from saccade.ops.native.residual import FromWeights, Memory, serves
from saccade.ops.sasa import LOCAL_ATTENTION


class ReadyBottleneck:
    """The whole of `saccade.models.sasa.Bottleneck`, of maps that lie B H W C."""

    def __init__(self, block: Any):
        self.narrow = _product(block.narrow, block.narrow_norm, relu=True)
        self.attend = _attention(block.mix, block.mix_norm)
        widen = _product(block.widen, block.widen_norm, relu=True)
        self.widen = ReadyConvolution(widen, 1, block.mix.stride, mean=True)
        self.shortcut = None
        if isinstance(block.shortcut, nn.Sequential):
            conv = block.shortcut[0]
            self.shortcut = ReadyConvolution(_product(*block.shortcut), 1, conv.stride[0])
        mask, norm = block.mix.border == "mask", block.mix_norm
        self.shift = None
        if not mask and not isinstance(norm, nn.Identity):
            shift = lambda _: (scale_and_shift(norm)[1].contiguous(),)  # noqa: E731
            self.shift = FromWeights(_numbers(norm), shift, Memory())

    def __call__(self, x: Float[Tensor, "B H W C"]) -> Float[Tensor, "B h w D"]:
        y = self.attend(self.narrow(x))
        shift = None if self.shift is None else self.shift(None)[0]
        return self.widen(y, x if self.shortcut is None else self.shortcut(x), shift)


def ready_bottleneck(x: Float[Tensor, "B H W C"], block: Any) -> ReadyBottleneck | None:
    """The call for this block; None where modules must be called."""
    shortcut = block.shortcut
    pairs = [(block.narrow, block.narrow_norm), (block.widen, block.widen_norm)]
    if plain(shortcut, nn.Sequential) and len(shortcut) == 2:
        pairs.append((shortcut[0], shortcut[1]))
    elif not passes(shortcut):
        return None
    norms = [norm for _, norm in pairs] + [block.mix_norm]
    if not all(_is_product(conv) for conv, _ in pairs):
        return None
    if not plain(block.act, nn.ReLU) or not passes(block.drop) or not _attends(block.mix):
        return None
    parts = [m for m in (*(conv for conv, _ in pairs), block.mix, *norms) if not passes(m)]
    if not untouched(x, *parts):
        return None
    tensors = [t for part in parts for t in (*part.parameters(), *part.buffers())]
    if not serves(*(t for t in tensors if t.is_floating_point())):
        return None
    if any(conv.stride != (1, 1) for conv in (block.narrow, block.widen)):
        return None
    if any(conv.stride != (block.mix.stride,) * 2 for conv, _ in pairs[2:]):
        return None
    return ReadyBottleneck(block) if _fit_together(x, block, pairs) else None


def _fit_together(x: Tensor, block: Any, pairs: list[tuple[Any, Any]]) -> bool:
    """Whether each part reads as many channels as it gets, and the sum adds equal maps."""
    narrow, widen, mix, value = block.narrow, block.widen, block.mix, block.mix.value
    width, inside, out, C = len(narrow.weight), len(value.weight), len(widen.weight), x.shape[3]
    inputs = [(narrow, C), (value, width), (widen, inside), *((conv, C) for conv, _ in pairs[2:])]
    if any(conv.weight.shape[1] != count for conv, count in inputs):
        return False
    if any(not _is_affine(norm, len(conv.weight)) for conv, norm in pairs):
        return False
    if not _is_affine(block.mix_norm, inside):
        return False
    q = x.new_empty(1, inside, 1, 1)
    k = None if mix.key is None else q
    LOCAL_ATTENTION.check(q, k, q, mix.row, mix.col, mix.heads, mix.window, mix.border)
    if len(pairs) > 2:
        return len(pairs[2][0].weight) == out
    return mix.stride == 1 and out == C


def _is_product(conv: nn.Module) -> bool:
    return (
        isinstance(conv, nn.Conv2d)
        and conv.kernel_size == (1, 1)
        and conv.padding == (0, 0)
        and conv.groups == 1
        and conv.stride[0] == conv.stride[1]
    )


def _is_affine(norm: nn.Module, width: int) -> bool:
    return passes(norm) or (isinstance(norm, nn.BatchNorm2d) and is_scale_and_shift(norm, width))


def _attends(mix: nn.Module) -> bool:
    """Whether it is attention that the kernel computes."""
    if type(mix) is not StandAloneAttention or mix.backend != "auto" or not mix.of_paper:
        return False
    if mix.position == "absolute" or (mix.position == "none" and mix.key is None):
        return False
    convs = [conv for conv in (mix.query, mix.key, mix.value) if conv is not None]
    if not all(_is_product(conv) and conv.stride == (1, 1) for conv in convs):
        return False
    width = mix.value.out_channels
    fits = native.LEAST <= mix.window <= native.MOST and width // mix.heads <= native.WIDEST
    return fits and all(conv.weight.shape == mix.value.weight.shape for conv in convs)


def _product(conv: nn.Conv2d, norm: Any, relu: bool = False) -> PixelProduct:
    def matrix() -> tuple[Tensor, Tensor | None]:
        w, b = conv.weight.flatten(1), conv.bias
        if isinstance(norm, nn.Identity):
            return w, b
        scale, shift = scale_and_shift(norm)
        return w * scale[:, None], shift if b is None else shift + scale * b

    weights = [conv.weight, *([] if conv.bias is None else [conv.bias]), *_numbers(norm)]
    D, C = conv.weight.shape[:2]
    return PixelProduct(D, C, weights, matrix, relu)


def _attention(mix: StandAloneAttention, norm: Any) -> ProjectedAttention:
    """Attention with its norm folded in, except the shift where weights do not sum to one."""
    convs = [conv for conv in (mix.query, mix.key, mix.value) if conv is not None]

    def matrix() -> tuple[Tensor, Tensor]:
        parts = [conv.weight.flatten(1) for conv in convs]
        bias = parts[0].new_zeros(len(parts), len(parts[0]))
        for i, conv in enumerate(convs):
            if conv.bias is not None:
                bias[i] = conv.bias
        parts[0], bias[0] = parts[0] * mix.scale, bias[0] * mix.scale
        if not isinstance(norm, nn.Identity):
            scale, shift = scale_and_shift(norm)
            parts[-1], bias[-1] = parts[-1] * scale[:, None], bias[-1] * scale
            if mix.border == "mask":
                bias[-1] += shift
        return torch.cat(parts), bias.flatten()

    weights = [t for conv in convs for t in conv.parameters()] + _numbers(norm)
    width, dim = mix.value.weight.shape[:2]
    project = PixelProduct(len(convs) * width, dim, weights, matrix)
    return ProjectedAttention(
        project, mix.row, mix.col, width=width, heads=mix.heads, window=mix.window,
        mask=mix.border == "mask", content=mix.key is not None,
    )  # fmt: skip


def _numbers(norm: nn.Module) -> list[Tensor]:
    """The tensors that a norm's scale and shift are computed from."""
    return [t for t in (*norm.parameters(), *norm.buffers()) if t.is_floating_point()]

"""Prepare a trained model for export: eval mode, branches re-parameterised, BatchNorm folded."""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

from saccade.export.check import CLOSE, apart
from saccade.export.raw import Raw
from saccade.export.runners import runner_of


def prepared(model: nn.Module) -> Raw:
    """A copy for export: in eval mode, branches re-parameterised, BatchNorm folded.

    It computes the same function: a fold that would change it is not made, and the file is compared
    with the original model, so that a wrong `fuse` is noticed.
    """
    model = copy.deepcopy(model).cpu().float().eval()
    with torch.no_grad():
        for module in list(model.modules()):
            fuse = getattr(module, "fuse", None)
            if callable(fuse):
                fuse()
        folded = copy.deepcopy(model)
        fold_norms(folded)
        plain, other = Raw(model), Raw(folded)
        return other if apart(plain, runner_of(other), count=2) < CLOSE else plain


@torch.no_grad()
def fold_norms(model: nn.Module) -> int:
    """Fold every BatchNorm that directly follows a convolution into it; gives their number.

    norm(W x + b) = (g / s) W x + (g / s) (b - m) + c        s = sqrt(variance + epsilon)
    """
    outputs: dict[int, tuple[nn.Conv2d, Tensor]] = {}  # outputs, kept alive for their addresses
    pairs: dict[nn.BatchNorm2d, nn.Conv2d] = {}

    def after(conv: nn.Module, _: Any, output: Tensor) -> None:
        assert isinstance(conv, nn.Conv2d)
        outputs[id(output)] = conv, output

    def before(norm: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if id(inputs[0]) in outputs and isinstance(norm, nn.BatchNorm2d):
            pairs[norm] = outputs[id(inputs[0])][0]

    hooks = [m.register_forward_hook(after) for m in model.modules() if isinstance(m, nn.Conv2d)]
    hooks += [
        m.register_forward_pre_hook(before)
        for m in model.modules()
        if isinstance(m, nn.BatchNorm2d)
    ]
    try:
        model(torch.zeros(1, 3, 64, 64))
    finally:
        for hook in hooks:
            hook.remove()
    often = list(pairs.values())  # heads share a convolution and norm each level by itself
    pairs = {norm: conv for norm, conv in pairs.items() if often.count(conv) == 1}
    names = {module: name for name, module in model.named_modules()}
    for norm, conv in pairs.items():
        assert norm.running_mean is not None
        assert norm.running_var is not None
        conv.weight, conv.bias = fuse_conv_bn_weights(
            conv.weight, conv.bias, norm.running_mean, norm.running_var, norm.eps,
            norm.weight, norm.bias,
        )  # fmt: skip
        model.set_submodule(names[norm], nn.Identity())
    return len(pairs)

"""LinGlo's key-only attention beside its peers.

    tokenwise  the equation as printed: four products with the tokens
    folded     three, without K
    collapsed  one, without K and V
    product    a single N x C x C product: what no form can undercut
    global     dot-product attention among all tokens, with its projections

The operator has its projections inside, so layer and operator differ by next to nothing. Each form
is measured by the products that it does itself.
"""

from collections.abc import Callable
from functools import partial
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from saccade.bench.peer import Inputs, Peer, Shape, count, on_meta
from saccade.bench.plain import random_tensor
from saccade.layers.dot import DotProductAttention
from saccade.layers.linglo import KeyOnlyAttention
from saccade.ops import linglo as ops

FORMS = {"tokenwise": ops.tokenwise, "folded": ops.folded, "collapsed": ops.collapsed}


def peers(
    shape: Shape,
    *,
    layer: bool = False,
    train: bool = False,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> dict[str, Peer]:
    """The operator (of tokens and weights), or the layer (of a map)."""
    B, H, W, C, heads = shape
    x = random_tensor(B, H * W, C, train=train, dtype=dtype, device=device)
    by_name = {}
    for name, backend in {"linglo": "auto", **{form: form for form in FORMS}}.items():
        attention = KeyOnlyAttention(C, heads, backend).to(device, dtype)
        inputs: Inputs = (x, *cast(ops.Weights, attention.letters(x)))
        form = ops.KEY_ONLY.choose(inputs, backend)
        work = count(partial(_by_form, FORMS.get(form, ops.collapsed)), on_meta(inputs), train)
        f = partial(_by_letters, backend=backend)
        by_name[name] = Peer(attention, (x,), work) if layer else Peer(f, inputs, work)
    by_name["product"] = Peer(nn.Linear(C, C, bias=False).to(device, dtype), (x,))
    by_name["global"] = Peer(DotProductAttention(C, heads).to(device, dtype), (x,))
    return by_name


def _by_letters(
    x: Float[Tensor, "B N C"], *letters: Tensor, backend: str
) -> Float[Tensor, "B N C"]:
    return ops.key_only(x, ops.Weights(*letters), backend)


def _by_form(
    form: Callable[..., Tensor], x: Float[Tensor, "B N C"], *letters: Tensor
) -> Float[Tensor, "B N C"]:
    """Past the operator, whose formula counts what the paper prints."""
    return form(x, ops.Weights(*letters))

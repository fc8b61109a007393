"""LinGlo's key-only attention beside its peers.

    tokenwise  the equation as printed: four products with the tokens
    folded     three, without K
    collapsed  one, without K and V
    product    a single N x C x C product: what no form can undercut
    global     dot-product attention among all tokens, with its projections

The operator has its projections inside, so layer and operator differ by next to nothing. Each form
is measured by the products that it does itself.
"""

from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn

from saccade.bench.peer import Inputs, Peer, Shape
from saccade.bench.plain import drawn
from saccade.layers.dot import DotProductAttention
from saccade.layers.linglo import KeyOnlyAttention
from saccade.ops import linglo as ops


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
    x = drawn(B, H * W, C, train=train, dtype=dtype, device=device)
    forms = {"linglo": "auto"} | {form: form for form in ops.FORMS if form != "auto"}
    by_name = {}
    for name, form in forms.items():
        attention = KeyOnlyAttention(C, heads, form).to(device, dtype)
        inputs: Inputs = (x, *attention.letters())
        f = partial(_by_letters, form=form)
        by_name[name] = Peer(attention, (x,)) if layer else Peer(f, inputs)
    by_name["product"] = Peer(nn.Linear(C, C, bias=False).to(device, dtype), (x,))
    by_name["global"] = Peer(DotProductAttention(C, heads).to(device, dtype), (x,))
    return by_name


def _by_letters(x: Float[Tensor, "B N C"], *letters: Tensor, form: str) -> Float[Tensor, "B N C"]:
    return ops.key_only(x, ops.Weights(*letters), form)

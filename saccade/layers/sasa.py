"""Stand-alone self-attention (SASA, eq. 3) as a layer that stands where a convolution stood.

    q = Wq x,  k = Wk x,  v = Wv x                    d_in x d_out each, no bias
    y_ij = sum over the k x k window of  softmax(q_ij . k_ab + q_ij . r_{a-i,b-j})  v_ab

Heads are slices of the channels; nothing mixes them afterwards (the block's 1x1 convolution does).
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from saccade.layers.untouched import pointwise, readable, untouched
from saccade.ops import sasa as ops
from saccade.ops.linear import fuses, linear

POSITIONS = ("relative", "absolute", "none")


@readable
class StandAloneAttention(nn.Module):
    """Let every pixel of a map attend to the `window` x `window` pixels around it.

    stride    2: attention at full resolution, then the mean of each 2 x 2 pixels
    border    "zero": pixels outside stay in the softmax, with key and value zero; "mask": left out
    content   False drops q . k, and with it the keys (Table 6)
    position  "relative", "absolute" (sinusoids added to the input) or "none" (Table 5)
    shared    one table of relative positions for all heads, or one for each
    scale     divide the logits by sqrt(d), which the paper does not
    backend   how it is computed, never what: a form of `saccade.ops.sasa.local_attention`, or the
              best at hand ("auto")
    """

    def __init__(
        self,
        dim: int,
        out: int | None = None,
        *,
        heads: int = 8,
        window: int = 7,
        stride: int = 1,
        border: str = "zero",
        content: bool = True,
        position: str = "relative",
        shared: bool = True,
        scale: bool = False,
        backend: str = "auto",
    ):
        super().__init__()
        out = dim if out is None else out
        if heads < 1 or out % heads:
            raise ValueError(f"StandAloneAttention: heads must divide out, got {out=} {heads=}")
        if window < 1 or window % 2 == 0:
            raise ValueError(
                f"StandAloneAttention: window must be odd to have a centre, got {window=}; "
                f"try {window + 1}"
            )
        if stride not in (1, 2):
            raise ValueError(f"StandAloneAttention: stride must be 1 or 2, got {stride=}")
        if border not in ops.BORDERS:
            raise ValueError(
                f"StandAloneAttention: border must be one of {ops.BORDERS}, got {border=}"
            )
        if position not in POSITIONS:
            raise ValueError(
                f"StandAloneAttention: position must be one of {POSITIONS}, got {position=}"
            )
        forms = ("auto", *ops.LOCAL_ATTENTION.forms)
        if backend not in forms:
            raise ValueError(f"StandAloneAttention: backend must be one of {forms}, got {backend=}")
        if position == "relative" and out // heads % 2:
            raise ValueError(
                f"StandAloneAttention: relative positions need an even head width (half for rows, "
                f"half for columns), got {out=} {heads=}; try other heads or position='none'"
            )
        if position == "absolute" and dim % 4:
            raise ValueError(
                f"StandAloneAttention: sinusoids need a multiple of 4 channels (sine and cosine of "
                f"row and column), got {dim=}"
            )
        self.heads, self.window, self.stride, self.border = heads, window, stride, border
        self.position, self.backend = position, backend
        self.scale = (out // heads) ** -0.5 if scale else 1.0
        self.query = nn.Conv2d(dim, out, 1, bias=False)
        self.key = nn.Conv2d(dim, out, 1, bias=False) if content else None
        self.value = nn.Conv2d(dim, out, 1, bias=False)
        self.row = self.col = None
        if position == "relative":
            shape = (1 if shared else heads, window, out // heads // 2)
            self.row, self.col = nn.Parameter(torch.empty(shape)), nn.Parameter(torch.empty(shape))
            self.undecayed = ("row", "col")
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Projections keep the variance of their input; an entry q . r has that of q."""
        for conv in (self.query, self.key, self.value):
            if conv is not None:
                nn.init.normal_(conv.weight, std=conv.in_channels**-0.5)
        for table in (self.row, self.col):
            if table is not None:
                nn.init.normal_(table, std=(2 * table.shape[2]) ** -0.5)

    def project(self, x: Float[Tensor, "B C H W"]) -> tuple[Tensor, Tensor | None, Tensor]:
        if self.position == "absolute":
            x = x + sinusoids(x)
        projected = self._joined(x)
        if projected is None:
            k = None if self.key is None else self.key(x)
            projected = self.query(x), k, self.value(x)
        q, k, v = projected
        return q if self.scale == 1 else q * self.scale, k, v

    def _joined(self, x: Float[Tensor, "B C H W"]) -> tuple[Tensor, Tensor | None, Tensor] | None:
        """All three by one product, which reads the map once; None where it cannot be."""
        query, key, value = self.query, self.key, self.value
        if not (pointwise(query) and pointwise(key) and pointwise(value)):
            return None
        if not untouched(x, query, key, value):
            return None
        if not query.weight.shape == key.weight.shape == value.weight.shape:
            return None
        pixels = x.permute(0, 2, 3, 1)
        if not fuses(pixels, query.weight.flatten(1)):
            return None
        matrix = torch.cat((query.weight, key.weight, value.weight)).flatten(1)
        q, k, v = linear(pixels, matrix).permute(0, 3, 1, 2).chunk(3, 1)
        return q, k, v

    def weights(
        self, x: Float[Tensor, "B C H W"], at: Sequence[tuple[int, int]] | None = None
    ) -> Float[Tensor, "B h n k k"]:
        """What pixels (row, column) take from their windows; all pixels in reading order if None.

        Before any stride, so (row, column) are those of `x`.
        """
        q, k, _ = self.project(x)
        return ops.local_weights(
            q, k, self.row, self.col, self.heads, self.window, self.border, at
        )  # fmt: skip

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D h w"]:
        q, k, v = self.project(x)
        y = ops.local_attention(
            q, k, v, self.row, self.col, self.heads, self.window, self.border, self.backend
        )
        return halve(y) if self.stride == 2 else y


def halve(x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C h w"]:
    """The mean of each 2 x 2 pixels; of those that exist, at an odd end."""
    if torch.compiler.is_exporting():  # a mode of ceilings would ask for the size's parity
        return F.avg_pool2d(F.pad(x, (0, 1, 0, 1), mode="replicate"), 2)
    return F.avg_pool2d(x, 2, 2, ceil_mode=True, count_include_pad=False)


def sinusoids(x: Float[Tensor, "B C H W"]) -> Float[Tensor, "C H W"]:
    """Sine and cosine of row (first half of the channels) and column, at C/4 wavelengths each."""
    C, H, W = x.shape[1:]
    steps = torch.arange(C // 4, device=x.device, dtype=torch.float32)
    rate = 10000 ** (-steps / (C // 4))

    def axis(size: int) -> Tensor:
        angle = rate[:, None] * torch.arange(size, device=x.device)
        return torch.cat((angle.sin(), angle.cos()))  # C/2 size

    rows = axis(H)[:, :, None].expand(-1, -1, W)
    cols = axis(W)[:, None].expand(-1, H, -1)
    return torch.cat((rows, cols)).to(x.dtype)

"""Stand-alone self-attention (SASA, eq. 3) as a layer that can replace a convolution.

    q = Wq x,  k = Wk x,  v = Wv x                    d_in x d_out each, no bias
    y_ij = sum over the k x k window of  softmax(q_ij . k_ab + q_ij . r_{a-i,b-j})  v_ab

Heads are slices of the channels; nothing mixes them afterwards (the block's 1x1 convolution does).
"""

from collections.abc import Sequence
from typing import Any, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from saccade.layers.layout import MapLayer
from saccade.layers.untouched import pointwise, readable, untouched
from saccade.ops import sasa as ops
from saccade.ops.linear import fuses, linear
from saccade.ops.neighbourhood import neighbourhood_attention, neighbourhood_weights

POSITIONS = ("relative", "absolute", "none")

# Where heads look first, if at one place: row and column, from the pixel itself.
PLACES = ((-1, 0), (1, 0), (0, -1), (0, 1), (-1, -1), (1, 1), (-1, 1), (1, -1), (0, 0))


@readable
class StandAloneAttention(MapLayer):
    """Let every pixel of a map attend to the `window` x `window` pixels around it.

    stride    2: attention at full resolution, then the mean of each 2 x 2 pixels
    border    "zero": pixels outside stay in the softmax, with key and value zero; "mask": left out
    content   False drops q . k, and with it the keys (Table 6)
    position  "relative", "absolute" (sinusoids added to the input) or "none" (Table 5)
    shared    one table of relative positions for all heads, or one for each
    scale     divide the logits by sqrt(d), which the paper does not
    backend   the form of the computation: one of `saccade.ops.sasa.local_attention`, or the best
              available ("auto")
    layout    "NCHW", "NHWC" or "tokens"; None: as here, B C H W (`size`: `MapLayer`)

    Beyond the paper, by `saccade.ops.neighbourhood`:

    window    also (height, width), such as (1, 7): each row of the map by itself
    dilation  pixels between the places of a window
    causal    only places up to the pixel itself, in reading order
    table     a trainable bias for every head and place of the window, 0 at the start
    groups    of the projections, as a convolution has them
    bias      on queries, keys and values
    locality  above 0: how narrowly each head looks at first, at a place of its own (`_look`)
    """

    own = "NCHW"

    def __init__(
        self,
        dim: int,
        out: int | None = None,
        *,
        heads: int = 8,
        window: int | Sequence[int] = 7,
        stride: int = 1,
        border: str = "zero",
        content: bool = True,
        position: str = "relative",
        shared: bool = True,
        scale: bool = False,
        backend: str = "auto",
        layout: str | None = None,
        size: Sequence[int] | None = None,
        dilation: int = 1,
        causal: bool = False,
        table: bool = False,
        groups: int = 1,
        bias: bool = False,
        locality: float = 0.0,
    ):
        super().__init__()
        self.place(dim, layout, size)
        out = dim if out is None else out
        sides = (window, window) if isinstance(window, int) else tuple(window)
        if len(sides) != 2 or not all(isinstance(side, int) for side in sides):
            raise ValueError(
                f"StandAloneAttention: window is a side or (height, width), got {window=}; try 7"
            )
        height, width = sides
        if heads < 1 or out % heads:
            raise ValueError(f"StandAloneAttention: heads must divide out, got {out=} {heads=}")
        if min(height, width) < 1 or height % 2 == 0 or width % 2 == 0:
            odd = tuple(side // 2 * 2 + 1 for side in (max(height, 1), max(width, 1)))
            raise ValueError(
                f"StandAloneAttention: window must be odd to have a centre, got {window=}; "
                f"try {odd[0] if isinstance(window, int) else odd}"
            )
        if dilation < 1:
            raise ValueError(f"StandAloneAttention: dilation must be 1 or more, got {dilation=}")
        if groups < 1 or dim % groups or out % groups:
            raise ValueError(
                f"StandAloneAttention: groups must divide dim and out, got {dim=} {out=} {groups=}"
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
        if locality < 0 or (locality and (position != "relative" or out // heads < 4)):
            raise ValueError(
                f"StandAloneAttention: locality, 0 or more, is written into relative positions of "
                f"heads at least 4 wide, got {locality=} {position=} {out=} {heads=}; try "
                f"locality=0"
            )
        if position == "absolute" and dim % 4:
            raise ValueError(
                f"StandAloneAttention: sinusoids need a multiple of 4 channels (sine and cosine of "
                f"row and column), got {dim=}"
            )
        self.window: Any = height if height == width else (height, width)
        self.heads, self.stride, self.border = heads, stride, border
        self.dilation, self.causal = dilation, causal
        self.position, self.backend = position, backend
        self.scale = (out // heads) ** -0.5 if scale else 1.0
        self.locality = float(locality)
        self.query = nn.Conv2d(dim, out, 1, bias=bias or locality > 0, groups=groups)
        self.key = nn.Conv2d(dim, out, 1, bias=bias, groups=groups) if content else None
        self.value = nn.Conv2d(dim, out, 1, bias=bias, groups=groups)
        self.row = self.col = self.table = None
        self.undecayed: tuple[str, ...] = ()
        if position == "relative":
            tables, half = 1 if shared else heads, out // heads // 2
            self.row = nn.Parameter(torch.empty(tables, height, half))
            self.col = nn.Parameter(torch.empty(tables, width, half))
            self.undecayed = ("row", "col")
        if table:
            self.table = nn.Parameter(torch.empty(heads, height, width))
            self.undecayed += ("table",)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Projections keep the variance of their input; an entry q . r has that of q."""
        for conv in (self.query, self.key, self.value):
            if conv is not None:
                nn.init.normal_(conv.weight, std=conv.weight.shape[1] ** -0.5)
                if conv.bias is not None:
                    nn.init.zeros_(conv.bias)
        for table in (self.row, self.col):
            if table is not None:
                nn.init.normal_(table, std=(2 * table.shape[2]) ** -0.5)
        if self.table is not None:
            nn.init.zeros_(self.table)
        if self.locality:
            self._look()

    @torch.no_grad()
    def _look(self) -> None:
        """Let head i look at its place (y, x) of `PLACES` first, whatever the input is.

            logits = - locality ((a - y)^2 + (b - x)^2) + what all places share

        Without a bias they are of degree one and two in the input: for small inputs a blur, for
        large ones a choice by chance. Here Wq = Wk = 0, and the bias of a head's queries is
        (1, y) and (1, x) where the tables hold (- locality a^2, 2 locality a) and likewise b.
        Neither is a saddle: keys learn through the bias, queries through the tables.
        """
        row, col, bias = (cast(Tensor, t) for t in (self.row, self.col, self.query.bias))
        for conv in (self.query, self.key):
            if conv is not None:
                nn.init.zeros_(conv.weight)
        for table in (row, col):
            steps = torch.arange(table.shape[1], device=table.device) - table.shape[1] // 2
            table[..., 0] = -self.locality * steps**2 / self.scale
            table[..., 1] = 2 * self.locality * steps / self.scale
        down, along = nn.init.zeros_(bias).unflatten(0, (self.heads, 2, -1)).unbind(1)  # h d/2
        places = [PLACES[i % len(PLACES)] for i in range(self.heads)]
        y, x = torch.tensor(places, device=bias.device, dtype=bias.dtype).unbind(1)
        for half, place in ((down, y), (along, x)):
            half[:, 0], half[:, 1] = 1, place

    @property
    def of_paper(self) -> bool:
        """Whether the window is as in the paper; the paper's kernels compute only such windows."""
        plain = self.table is None and self.dilation == 1 and not self.causal
        return plain and isinstance(self.window, int)

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
        if key is None or not untouched(x, query, key, value):  # also while torch.fx traces
            return None
        if not (pointwise(query, bias=True) and pointwise(key, True) and pointwise(value, True)):
            return None
        if not query.weight.shape == key.weight.shape == value.weight.shape:
            return None
        pixels = x.permute(0, 2, 3, 1)
        if not fuses(pixels, query.weight.flatten(1)):
            return None
        convs = query, key, value
        matrix, bias = torch.cat([conv.weight for conv in convs]).flatten(1), None
        if any(conv.bias is not None for conv in convs):
            none = matrix.new_zeros(len(query.weight))
            bias = torch.cat([none if conv.bias is None else conv.bias for conv in convs])
        q, k, v = linear(pixels, matrix, bias).permute(0, 3, 1, 2).chunk(3, 1)
        return q, k, v

    def _rest(self, padding: Bool[Tensor, "B H W"] | None, like: Tensor) -> tuple[Any, ...]:
        """The arguments of `saccade.ops.neighbourhood` beside q, k and v."""
        inside = None if padding is None else (~padding).to(like.dtype)
        height, width = (self.window,) * 2 if isinstance(self.window, int) else self.window
        tables = self.row, self.col, self.table, inside
        return *tables, self.heads, height, width, self.dilation, self.causal, self.border

    def weights(
        self,
        x: Float[Tensor, "B C H W"],
        at: Sequence[tuple[int, int]] | None = None,
        padding: Bool[Tensor, "B H W"] | None = None,
    ) -> Float[Tensor, "B h n kh kw"]:
        """The attention weights of one pixel (row, column) over its window, or of all pixels if
        None.

        Before any stride, so (row, column) are those of `x`.
        """
        q, k, _ = self.project(x)
        if padding is not None or not self.of_paper:
            weights = neighbourhood_weights(q, k, *self._rest(padding, q))
            return weights if at is None else weights[:, :, [i * x.shape[3] + j for i, j in at]]
        return ops.local_weights(
            q, k, self.row, self.col, self.heads, self.window, self.border, at
        )  # fmt: skip

    def on_map(
        self, x: Float[Tensor, "B C H W"], padding: Bool[Tensor, "B H W"] | None = None
    ) -> Float[Tensor, "B D h w"]:
        q, k, v = self.project(x)
        if padding is not None or not self.of_paper:
            y = neighbourhood_attention(q, k, v, *self._rest(padding, q))
        else:
            y = ops.local_attention(
                q, k, v, self.row, self.col, self.heads, self.window, self.border, self.backend
            )
        return halve(y) if self.stride == 2 else y


def halve(x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C h w"]:
    """The mean of each 2 x 2 pixels; at an odd end, of those that exist."""
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

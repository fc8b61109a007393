"""The common interface of all layers: maps B C H W or B H W C, tokens B N C, and timm's calls.

A layer computes in one layout of its own (`on_map`). `MapLayer.forward` converts the input to that
layout and the result back. It also takes the arguments that timm, torchvision and torch pass to
attention modules: each is used, or refused with a sentence where the layer cannot use it.
"""

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, fx, nn

LAYOUTS = ("NCHW", "NHWC", "tokens")


class MapLayer(nn.Module):
    """Base class of layers from map to map; `on_map` gets maps in the layout `own`.

    layout   of inputs and results: "NCHW", "NHWC" or "tokens" (B N C); None: as the layer computes
    size     (H, W) of tokens; for one call, `size=` of forward
    prefix   how many tokens come before those of the map (class and register tokens)
    """

    own: ClassVar[str] = "NHWC"
    gridless: ClassVar[bool] = False  # tokens need no grid
    pairs: ClassVar[bool] = False  # pixels are compared in pairs, which a mask may forbid
    takes_prefix: ClassVar[bool] = False
    causal = False
    dim: int
    layout: str | None = None
    size: tuple[int, int] | None = None
    prefix: int = 0

    def place(
        self, dim: int, layout: str | None, size: Sequence[int] | None, prefix: int = 0
    ) -> None:
        """Set the layout of inputs and results; layers call it at construction."""
        name = type(self).__name__
        if layout is not None and layout not in LAYOUTS:
            raise ValueError(f"{name}: layout must be one of {LAYOUTS} or None, got {layout=}")
        if prefix and (layout != "tokens" or prefix < 0):
            raise ValueError(
                f"{name}: prefix counts tokens before the map's, 0 or more, got {prefix=} "
                f"{layout=}; try layout='tokens'"
            )
        if prefix and not self.takes_prefix:
            raise ValueError(f"{name}: a class token has no window, got {prefix=}; try 0")
        self.dim, self.layout, self.prefix = dim, layout, prefix
        self.size = None if size is None else _pair(name, size)

    def on_map(self, x: Tensor, *_: Any, **__: Any) -> Tensor:
        """The layer on a map of its own layout; `padding` (B H W) is True beside the image."""
        raise NotImplementedError

    def weights(self, x: Tensor, *_: Any, **__: Any) -> Tensor:
        """The attention weights for a map of the layer's own layout."""
        raise ValueError(f"{type(self).__name__}: has no attention weights; leave return_weights")

    def on_prefix(self, head: Tensor, x: Tensor, padding: Tensor | None) -> Tensor:
        """The result for the tokens before the map's (B p C)."""
        raise NotImplementedError

    def forward(
        self,
        x: Float[Tensor, "B *map"],
        size: Any = None,
        value: Any = None,
        *,
        key_padding_mask: Any = None,
        attn_mask: Any = None,
        mask: Any = None,
        rope: Any = None,
        feat_size: Any = None,
        is_causal: Any = False,
        shared_rel_pos_bias: Any = None,
        need_weights: Any = None,
        average_attn_weights: Any = True,
        return_weights: bool = False,
    ) -> Any:
        """Apply the layer to x; the result has the layout of x.

        Args:
            x: a map, or tokens
            size: (H, W) of tokens; or the key, where a slot calls with query, key and value, which
                must be one tensor: then the result is a pair (result, weights or None)
            value: see `size`
            key_padding_mask: bool, B N or B H W: True where there is no image, which nobody sees
            attn_mask: which pairs may see each other, for layers that compare pairs
            mask: the same, by another name
            rope: refused: these layers bring positions of their own
            feat_size: `size` by another name
            is_causal: refused, but by a layer that is causal
            shared_rel_pos_bias: refused, as `rope` is
            need_weights: of a call with query, key and value: whether to give weights as well
            average_attn_weights: taken, without effect
            return_weights: give (result, weights) as `weights` has them
        """
        if isinstance(x, fx.Proxy):
            return self.on_map(x)
        if feat_size is not None:
            size = feat_size
        slot = isinstance(size, Tensor) and size.ndim > 1
        if slot:
            self._check_one(x, size, value)
            size = None
        self._refuse(
            rope=rope, shared_rel_pos_bias=shared_rel_pos_bias,
            is_causal=is_causal and not self.causal,
        )  # fmt: skip
        pairs = self._pairs(attn_mask, mask)
        if slot and pairs is not None and pairs.dtype == torch.bool:
            pairs = ~pairs  # torch.nn.MultiheadAttention means those that may not see each other
        pixels, grid = self.mapped(x, size)
        padding = None
        if key_padding_mask is not None:
            padding = self._padding(key_padding_mask, x, pixels, grid)
        extra = {} if pairs is None else {"pairs": pairs}
        y = self.on_map(pixels, padding, **extra) if extra or padding is not None else (
            self.on_map(pixels)
        )  # fmt: skip
        y = self._back(y, x, pixels, grid, padding)
        if not (return_weights or (slot and need_weights)):
            return (y, None) if slot else y
        extra |= {} if padding is None else {"padding": padding}
        return y, self.weights(pixels, **extra)

    # -- in and out --------------------------------------------------------------------------

    def mapped(self, x: Tensor, size: Any = None) -> tuple[Tensor, tuple[int, int] | None]:
        """x in the layer's own layout, and the grid if it came as tokens."""
        layout = self.layout
        if layout is None:
            layout = "tokens" if x.ndim == 3 else self.own
        if not torch.compiler.is_compiling():
            self._check(x, layout)
        if layout == "tokens":
            if self.gridless:
                return x, None
            grid = self._grid(x, size)
            x = (x[:, self.prefix :] if self.prefix else x).unflatten(1, grid)
            return (x.permute(0, 3, 1, 2) if self.own == "NCHW" else x), grid
        if layout != self.own:
            order = (0, 2, 3, 1) if self.own == "NHWC" else (0, 3, 1, 2)
            return x.permute(order), None
        return x, None

    def _back(
        self, y: Tensor, x: Tensor, pixels: Tensor, grid: Any, padding: Tensor | None
    ) -> Tensor:
        if grid is not None:
            y = (y.permute(0, 2, 3, 1) if self.own == "NCHW" else y).flatten(1, 2)
            if self.prefix:
                y = torch.cat((self.on_prefix(x[:, : self.prefix], pixels, padding), y), 1)
            return y
        if self.layout in (None, self.own) or x.ndim == 3:
            return y
        return y.permute((0, 3, 1, 2) if self.own == "NHWC" else (0, 2, 3, 1))

    def _check(self, x: Tensor, layout: str) -> None:
        """Refuse a map that is not of this layout, or that could be of another."""
        name, C = type(self).__name__, self.dim
        if self.gridless and self.layout is None and x.ndim > 4 and x.shape[-1] == C:
            return  # pixels in any order
        axes = {"NCHW": "B C H W", "NHWC": "B H W C", "tokens": "B N C"}[layout]
        axis = 1 if layout == "NCHW" else -1
        fits = x.ndim == (3 if layout == "tokens" else 4) and x.shape[axis] == C
        other = x.ndim == 4 and x.shape[1 if axis == -1 else -1] == C
        if not fits:
            hint = f"give C={C} channels"
            if x.ndim == 3:
                hint = "say layout='tokens' and size=(H, W)"
            elif other:
                hint = f"say layout={'NCHW' if axis == -1 else 'NHWC'!r} where the layer is built"
            raise ValueError(
                f"{name}: a map is {axes} with {C=} here (layout={self.layout!r}), "
                f"got {tuple(x.shape)}; {hint}"
            )
        if other and self.layout is None and self.own == "NHWC":
            raise ValueError(
                f"{name}: {tuple(x.shape)} is a map B H W C and a map B C H W alike, with {C=}; "
                f"say layout='NHWC' or layout='NCHW' where the layer is built"
            )

    def _grid(self, x: Tensor, size: Any) -> tuple[int, int]:
        """(H, W) of the tokens: of this call, or of the layer, also at its multiples."""
        name, N = type(self).__name__, x.shape[1] - self.prefix
        if size is not None:
            size = _pair(name, size)
        elif self.size is not None:
            size = self.size
            if not torch.compiler.is_compiling() and size[0] * size[1] != N:
                side = math.isqrt(max(N * size[0] // size[1], 0))
                size = (side, side * size[1] // size[0])
        else:
            raise ValueError(
                f"{name}: tokens lie on a grid, got {tuple(x.shape)}; say size=(H, W), "
                f"in the call or where the layer is built"
            )
        if not torch.compiler.is_compiling() and size[0] * size[1] != N:
            raise ValueError(
                f"{name}: {N} tokens are no grid of {size}, got {tuple(x.shape)} with prefix="
                f"{self.prefix}; say size=(H, W) with H * W = {N}"
            )
        return size

    # -- what slots pass ---------------------------------------------------------------------

    def _check_one(self, x: Tensor, key: Tensor, value: Any) -> None:
        if key is not x or (value is not None and value is not x):
            raise ValueError(
                f"{type(self).__name__}: query, key and value must be one tensor: this layer looks "
                f"at itself; for cross-attention keep the layer that was there"
            )

    def _refuse(self, **arguments: Any) -> None:
        for name, argument in arguments.items():
            if argument is not None and argument is not False:
                raise ValueError(
                    f"{type(self).__name__}: has no use for {name}=, got "
                    f"{_words(argument)}; pass {name}=None, or keep the old layer"
                )

    def _pairs(self, attn_mask: Any, mask: Any) -> Tensor | None:
        if attn_mask is not None and mask is not None:
            raise ValueError(f"{type(self).__name__}: attn_mask and mask are one; give one of them")
        pairs = mask if attn_mask is None else attn_mask
        if pairs is None or self.pairs or _says_nothing(pairs):
            return pairs if self.pairs else None
        raise ValueError(
            f"{type(self).__name__}: compares no pairs of pixels, so attn_mask= or mask= cannot be "
            f"used, got {_words(pairs)}; for images of several sizes give key_padding_mask="
        )

    def _padding(
        self, padding: Tensor, x: Tensor, pixels: Tensor, grid: Any
    ) -> Bool[Tensor, "B *map"]:
        """The mask as B H W (B N where there is no grid)."""
        expected_shape = pixels.shape[:1] + (
            pixels.shape[2:] if self.own == "NCHW" else pixels.shape[1:-1]
        )  # fmt: skip
        if isinstance(padding, Tensor) and padding.dtype == torch.bool:
            if self.prefix and grid and padding.ndim == 2 and padding.shape == x.shape[:2]:
                padding = padding[:, self.prefix :]
            if padding.shape == expected_shape or padding.flatten(1).shape == (
                expected_shape[0], math.prod(expected_shape[1:]),
            ):  # fmt: skip
                return padding.reshape(expected_shape)
        raise ValueError(
            f"{type(self).__name__}: key_padding_mask is bool, {tuple(expected_shape)} or flat, "
            f"True where there is no image, got {_words(padding)}"
        )


def _pair(name: str, size: Any) -> tuple[int, int]:
    try:
        H, W = size
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: size is (H, W), got {size!r}") from error
    if isinstance(H, Tensor) or isinstance(W, Tensor):
        H, W = int(H), int(W)
    return H, W


def _words(value: Any) -> str:
    return f"{value.dtype} {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)


def _says_nothing(mask: Any) -> bool:
    """Whether a mask has no effect."""
    if not isinstance(mask, Tensor) or torch.compiler.is_compiling():
        return False
    return bool(mask.all()) if mask.dtype == torch.bool else not bool(mask.any())

"""Attention layers as modules, to build into networks of your own.

    from saccade.layers import KeyOnlyAttention, LearnedQueryAttention, StandAloneAttention

Each takes maps B C H W, maps B H W C or tokens B N C, as `layout=` says (`layers/layout.py`), and
can replace an attention module in timm's and torchvision's models.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from saccade.layers.block import Block, FeedForward
    from saccade.layers.dot import DotProductAttention
    from saccade.layers.layout import MapLayer
    from saccade.layers.linglo import KeyOnlyAttention
    from saccade.layers.position import RPCPE, AbsolutePosition
    from saccade.layers.qna import LearnedQueryAttention, LearnedQueryUpsampling
    from saccade.layers.sasa import StandAloneAttention
    from saccade.layers.sasa_stem import AttentionStem
    from saccade.layers.window import WindowAttention

__all__ = [
    "RPCPE",
    "AbsolutePosition",
    "AttentionStem",
    "Block",
    "DotProductAttention",
    "FeedForward",
    "KeyOnlyAttention",
    "LearnedQueryAttention",
    "LearnedQueryUpsampling",
    "MapLayer",
    "StandAloneAttention",
    "WindowAttention",
]
PLACES = {
    "AbsolutePosition": "position",
    "AttentionStem": "sasa_stem",
    "Block": "block",
    "DotProductAttention": "dot",
    "FeedForward": "block",
    "KeyOnlyAttention": "linglo",
    "LearnedQueryAttention": "qna",
    "LearnedQueryUpsampling": "qna",
    "MapLayer": "layout",
    "RPCPE": "position",
    "StandAloneAttention": "sasa",
    "WindowAttention": "window",
}


def __getattr__(name: str) -> Any:
    if name not in PLACES:
        raise AttributeError(f"module 'saccade.layers' has no attribute {name!r}")
    return getattr(import_module(f"saccade.layers.{PLACES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *PLACES})

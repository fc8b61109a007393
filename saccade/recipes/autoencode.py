"""Settings of auto-encoding; its recipes are QnA's (`qna.py`)."""

from dataclasses import dataclass
from typing import Literal

from saccade.recipes.bounds import SOME, hold
from saccade.recipes.group import TaskSettings


@dataclass(frozen=True, kw_only=True)
class AutoEncode(TaskSettings):
    """Task: reconstruct the image from a small code, with L1 loss."""

    encoder: Literal["conv", "max", "qna"] = "qna"
    """Five down-sampling layers: strided convolution, convolution and maximum, or QnA."""
    decoder: Literal["bilinear", "transpose", "qna"] = "qna"
    """Five up-sampling layers: bilinear and convolution, transposed convolution, or QnA."""
    start: Literal["even", "bilinear"] = "even"
    """What QnA's up-sampling layers begin as: the mean of a window, or bilinear interpolation."""
    dim: int = 32
    """Channels at full size; twice as many after each down-sampling layer, up to eight times."""

    def __post_init__(self) -> None:
        hold(self, dim=SOME)

"""Test-time augmentation: several views of an image, smaller, larger, and each mirrored.

The answers about the views are put together by each task in its own way (`tasks.detect.views`,
`tasks.segment.views`). It takes about seven times as long as one view.
"""

from collections.abc import Iterator

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

SCALES = (1.0, 0.8, 1.25)
LEAST = 32  # pixels a side


def views(image: Float[Tensor, "B C H W"], step: int = 1) -> Iterator[tuple[Tensor, bool]]:
    """Each view of a batch without padding, and whether it is mirrored.

    Args:
        image: the batch
        step: what sides are rounded to, so that the grid of a mirrored view is the mirrored grid
    """
    H, W = image.shape[2:]
    for scale in SCALES:
        side = [max(LEAST, step * round(scale * length / step)) for length in (H, W)]
        view = image
        if side != [H, W]:
            view = F.interpolate(image, side, mode="bilinear", antialias=True)
        yield view, False
        yield view.flip(-1), True


def refuse_training(name: str) -> ValueError:
    """The error of a loss that nobody should ask for."""
    return ValueError(f"{name}: several views are for evaluation; train the task itself")

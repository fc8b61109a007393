"""Pictures with more pixels: NAME_x2.png for each.

A picture of any size goes through the network whole, or, if it would not fit into memory, window by
window; windows overlap, and of each only what is far from its edges is taken.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor
from torchvision.transforms.v2 import functional as F

from saccade.data.picture import Unreadable, rgb
from saccade.engine import session
from saccade.engine.distributed import choose_device
from saccade.files import writing
from saccade.infer.files import free, paths_of

MARGIN = 16  # pixels of a window that only its neighbours' pixels need
LEAST = 4 * MARGIN  # pixels a side of a window


@dataclass(frozen=True)
class Upscaled:
    """One picture, done."""

    picture: Path
    before: tuple[int, int]
    """Width and height,"""
    after: tuple[int, int]
    """and what has become of them."""


def upscaled(
    files: Iterable[str],
    model: str | Path,
    out: Path,
    device: str | None = None,
    window: int | None = None,
) -> Iterator[tuple[str, Upscaled | str]]:
    """Give pictures more pixels.

    Args:
        files: pictures, folders of pictures, patterns, or - for a list on stdin
        model: a run's folder or a saved model
        out: the folder for NAME_x2.png
        device: cpu or cuda; the best there is if None
        window: look through windows of this many pixels a side, not at the whole picture

    Yields:
        of each picture its path and what was written of it, or why it could not be read
    """
    if window is not None and window < LEAST:
        raise ValueError(f"upscale: a window is {LEAST} pixels wide or more, got {window}")
    paths = paths_of(files, "upscale", out)
    where = torch.device(choose_device(device))
    net: Any = session.opened(model, where, "upscale").task.net
    out.mkdir(parents=True, exist_ok=True)
    taken: set[str] = set()
    for path in paths:
        try:
            photo = rgb(path, str(path))
        except Unreadable as error:
            yield str(path), str(error)
            continue
        image = F.to_dtype(F.pil_to_tensor(photo), torch.float32, scale=True)
        large = enlarged(net, image[None].to(where), window)[0]
        target = out / f"{free(f'{path.stem}_x{net.factor}', taken)}.png"
        result = F.to_pil_image(large.clamp(0, 1).mul(255).round().to(torch.uint8).cpu())
        _save(result, target)
        yield str(path), Upscaled(target, photo.size, result.size)


@torch.no_grad()
def enlarged(
    net: Any, image: Float[Tensor, "B C H W"], window: int | None = None
) -> Float[Tensor, "B C Hs Ws"]:
    """The image through the network, whole or window by window."""
    H, W = image.shape[2:]
    if window is None or max(H, W) <= window:
        return net(image.to(memory_format=torch.channels_last))
    s, step = net.factor, window - 2 * MARGIN
    out = image.new_empty(len(image), image.shape[1], s * H, s * W)
    for top in range(0, H, step):
        for left in range(0, W, step):
            y, x = max(top - MARGIN, 0), max(left - MARGIN, 0)
            part = net(image[:, :, y : top + step + MARGIN, x : left + step + MARGIN])
            part = part[:, :, s * (top - y) :, s * (left - x) :][:, :, : s * step, : s * step]
            h, w = part.shape[2:]
            out[:, :, s * top : s * top + h, s * left : s * left + w] = part
    return out


def _save(picture: Image.Image, target: Path) -> None:
    """A whole file or none."""
    part = target.with_name(f".{target.name}.part")
    try:
        with writing(target):
            picture.save(part, "PNG")
            part.replace(target)
    finally:
        part.unlink(missing_ok=True)

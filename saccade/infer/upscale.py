"""Enlarge pictures by a trained network: NAME_x2.png for each.

A picture goes through the network as a whole; a large one, which might not fit into memory, in
overlapping windows, of which the edges are cut off.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, UInt8
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
LARGE, WINDOW = 2**22, 1024  # pixels beyond which a picture is seen by windows, and their side
MOST = 400_000_000  # pixels of a result: 1.2 GB


@dataclass(frozen=True)
class Upscaled:
    """The file and the sizes of one enlarged picture."""

    picture: Path
    before: tuple[int, int]
    """Width and height of the picture."""
    after: tuple[int, int]
    """Width and height of the enlarged picture."""


def upscaled(
    files: Iterable[str],
    model: str | Path,
    out: Path,
    device: str | None = None,
    window: int | None = None,
) -> Iterator[tuple[str, Upscaled | str]]:
    """Enlarge pictures, and write each to a file.

    Args:
        files: pictures, folders of pictures, patterns, or - for a list on stdin
        model: a run's folder or a saved model
        out: the folder for NAME_x2.png
        device: cpu or cuda; the best there is if None
        window: cut pictures into windows of this many pixels a side; if None, only those of more
            than four million pixels, into windows of 1024

    Yields:
        of each picture its path and what was written of it, or why it could not be read
    """
    if window is not None and window < LEAST:
        raise ValueError(f"upscale: a window is {LEAST} pixels wide or more, got {window}")
    paths = paths_of(files, "upscale", out)
    where = torch.device(choose_device(device))
    net: Any = session.open_model(model, where, "upscale").task.net
    out.mkdir(parents=True, exist_ok=True)
    in_use: set[str] = set()
    for path in paths:
        try:
            photo = rgb(path, str(path))
        except Unreadable as error:
            yield str(path), str(error)
            continue
        W, H = (net.factor * side for side in photo.size)
        if W * H > MOST:
            yield str(path), f"{str(path)!r} would have {W} x {H} pixels, at most {MOST:,} are made"
            continue
        side = WINDOW if window is None and photo.width * photo.height > LARGE else window
        target = out / f"{free(f'{path.stem}_x{net.factor}', in_use)}.png"
        result = _picture(net, photo, side, where)
        _save(result, target)
        yield str(path), Upscaled(target, photo.size, result.size)


def _picture(net: Any, photo: Image.Image, window: int | None, where: torch.device) -> Image.Image:
    """The enlarged picture as bytes; no more than one window of it is a float tensor at a time."""
    W, H = (net.factor * side for side in photo.size)
    pixels = torch.empty(3, H, W, dtype=torch.uint8)
    for top, left, part in _windows(net, F.pil_to_tensor(photo)[None], window, where):
        h, w = part.shape[2:]
        part = part[0].clamp_(0, 1).mul_(255).round_()
        pixels[:, top : top + h, left : left + w] = part.to(torch.uint8)
    return F.to_pil_image(pixels)


@torch.no_grad()
def _windows(
    net: Any, image: UInt8[Tensor, "1 C H W"], window: int | None, where: torch.device
) -> Iterator[tuple[int, int, Float[Tensor, "1 C h w"]]]:
    """Of the larger image, part by part: its first row and column, and its pixels."""
    H, W = image.shape[2:]
    s, step = net.factor, max(H, W)
    if window is not None and step > window:
        step = window - 2 * MARGIN
    for top in range(0, H, step):
        for left in range(0, W, step):
            y, x = max(top - MARGIN, 0), max(left - MARGIN, 0)
            part = image[:, :, y : top + step + MARGIN, x : left + step + MARGIN].to(where)
            part = F.to_dtype(part, torch.float32, scale=True)
            part = net(part.contiguous(memory_format=torch.channels_last))
            part = part[:, :, s * (top - y) :, s * (left - x) :][:, :, : s * step, : s * step]
            yield s * top, s * left, part


def _save(picture: Image.Image, target: Path) -> None:
    """A whole file or none."""
    part = target.with_name(f".{target.name}.part")
    try:
        with writing(target):
            picture.save(part, "PNG")
            part.replace(target)
    finally:
        part.unlink(missing_ok=True)

"""One picture from disk, upright and in RGB, and as a model wants it."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

MOST = 100_000_000  # pixels; beyond this a file is a bomb or a mistake


def read(path: str | Path, side: int | None = None) -> Float[np.ndarray, "H W 3"]:
    """The picture in 0..1, its short side brought to `side`; an unreadable file is refused."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no picture {str(path)!r}; check the path")
    try:
        with Image.open(path) as file:
            W, H = file.size
            if W * H > MOST:
                raise ValueError(f"{str(path)!r} has {W} x {H} pixels, at most {MOST:,} are read")
            photo = ImageOps.exif_transpose(file).convert("RGB")
    except (UnidentifiedImageError, OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"{str(path)!r} is no readable picture ({error})") from error
    if side is not None:
        scale = side / min(photo.size)
        W, H = (max(side, round(n * scale)) for n in photo.size)
        photo = photo.resize((W, H), Image.Resampling.BICUBIC)
    return np.asarray(photo, np.float32) / 255


def to_input(photo: Float[np.ndarray, "H W 3"], card: dict[str, Any]) -> Float[Tensor, "1 3 H W"]:
    """Normalised as the model's card says."""
    x = torch.from_numpy(photo).permute(2, 0, 1)
    mean, std = (torch.tensor(card[k])[:, None, None] for k in ("mean", "std"))
    return ((x - mean) / std)[None]

"""An image and its objects turned, shifted, sized, sheared and seen from the side, in one step.

    place in the new image = T S R P C (place in the old one)

C brings the centre to zero, P is the perspective, R turns and sizes, S shears, and T shifts and
brings the centre back. Pixels are blended once, by torchvision. A box becomes the one around its
four moved corners, or around its moved mask where there is one, which is tighter.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as F

from saccade.data.boxes.target import LEFT, Target, select, sides

LEAST_SHARE = 0.1  # of a box that must be left inside the image


class Warp:
    """Random affine changes and perspective.

    Args:
        rotate: up to so many degrees, both ways
        shift: up to this share of the image's sides
        zoom: from the smaller to the larger factor
        shear: up to so many degrees, along both axes
        perspective: up to this share by which a side's end is nearer than its middle
        fill: the colour of what lies beyond the image
    """

    def __init__(
        self,
        rotate: float,
        shift: float,
        zoom: tuple[float, float],
        shear: float,
        perspective: float,
        fill: Sequence[int],
    ):
        self.rotate, self.shift, self.zoom = rotate, shift, zoom
        self.shear, self.perspective = shear, perspective
        self.fill = [float(part) for part in fill]

    def matrix(self, H: int, W: int) -> Float[Tensor, "3 3"]:
        """A random one, for images of this height and width."""
        turn, dx, dy, along, across, near_x, near_y = (2 * torch.rand(7).double() - 1).tolist()
        low, high = self.zoom
        size = low + (high - low) * float(torch.rand(()))
        angle = math.radians(self.rotate * turn)
        cos, sin = size * math.cos(angle), size * math.sin(angle)
        kx, ky = (math.tan(math.radians(self.shear * part)) for part in (along, across))
        far = self.perspective
        centre = _matrix([1, 0, -W / 2], [0, 1, -H / 2], [0, 0, 1])
        aslant = _matrix([1, 0, 0], [0, 1, 0], [far * near_x / W, far * near_y / H, 1])
        rotation = _matrix([cos, -sin, 0], [sin, cos, 0], [0, 0, 1])
        sheared = _matrix([1, kx, 0], [ky, 1, 0], [0, 0, 1])
        back = _matrix([1, 0, W * (0.5 + self.shift * dx)], [0, 1, H * (0.5 + self.shift * dy)],
                       [0, 0, 1])  # fmt: skip
        return back @ sheared @ rotation @ aslant @ centre

    def __call__(self, image: Tensor, target: Target) -> tuple[Tensor, Target]:
        H, W = image.shape[-2:]
        matrix = self.matrix(H, W)
        inverse = torch.linalg.inv(matrix)
        numbers = (inverse / inverse[2, 2]).flatten()[:8].tolist()
        image = F.perspective(
            image, None, None, InterpolationMode.BILINEAR, fill=self.fill, coefficients=numbers
        )
        if "masks" in target:
            masks = F.perspective(
                target["masks"], None, None, InterpolationMode.NEAREST, coefficients=numbers
            )
            target = {**target, "masks": masks}
        return image, _warped_target(target, matrix, (H, W))

    def __repr__(self) -> str:
        return (
            f"Warp(rotate={self.rotate}, shift={self.shift}, zoom={self.zoom}, "
            f"shear={self.shear}, perspective={self.perspective})"
        )


def _matrix(*rows: list[float]) -> Float[Tensor, "3 3"]:
    return torch.tensor(rows, dtype=torch.float64)


def _warped_target(target: Target, matrix: Float[Tensor, "3 3"], canvas: tuple[int, int]) -> Target:
    """Boxes where they are after the step, without those of which hardly anything is left."""
    before = target["boxes"]
    whole = around(before.as_subclass(Tensor), matrix)
    limits = torch.tensor([canvas[1], canvas[0]] * 2)
    inside = whole.clamp(min=0).minimum(limits).to(before.dtype)
    left = sides(inside)
    if "masks" in target:
        inside, full = boxes_of(target["masks"].as_subclass(Tensor), inside)
        left = sides(inside) * full[:, None]
    old = sides(before).clamp(min=1e-9)
    least = sides(whole).to(before.dtype).minimum(old).mul(0.999).clamp(max=LEFT)
    visible = left.prod(1) >= LEAST_SHARE * sides(whole).prod(1)
    moved = {**target, "boxes": tv_tensors.wrap(inside, like=before)}
    return select(moved, (left >= least).all(1) & visible)


def around(boxes: Float[Tensor, "n 4"], matrix: Float[Tensor, "3 3"]) -> Float[Tensor, "n 4"]:
    """The boxes around their moved corners, in float64; they may lie beyond the image."""
    x0, y0, x1, y1 = boxes.double().unbind(1)
    corners = torch.stack([torch.stack((x, y, torch.ones_like(x)), 1)
                           for x, y in ((x0, y0), (x1, y0), (x1, y1), (x0, y1))], 1)  # fmt: skip
    moved = corners @ matrix.T
    places = moved[..., :2] / moved[..., 2:]
    return torch.cat((places.amin(1), places.amax(1)), 1)


def boxes_of(masks: Tensor, otherwise: Float[Tensor, "n 4"]) -> tuple[Float[Tensor, "n 4"], Tensor]:
    """The boxes around masks, and which masks are not empty; of an empty one another box."""
    rows, columns = masks.bool().any(2), masks.bool().any(1)
    full = rows.any(1)
    lines = [line.to(torch.uint8) for line in (columns, rows)]
    first = torch.stack([line.argmax(1) for line in lines], 1)
    last = torch.stack([line.flip(1).argmax(1) for line in lines], 1)
    ends = torch.tensor([masks.shape[2], masks.shape[1]]) - last
    around_them = torch.cat((first, ends), 1).to(otherwise.dtype)
    return torch.where(full[:, None], around_them, otherwise), full

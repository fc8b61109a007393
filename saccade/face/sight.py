"""The input that a network gets of a picture: a classifier's crop, else the whole picture."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from PIL import Image

from saccade.data import picture
from saccade.data.augment import Trim
from saccade.engine import session
from saccade.models.describe import timm_config
from saccade.recipes.augment import Test

LEAST_SIDE = 384  # pixels of the short side under the maps, where a model sees less


@dataclass
class Sight:
    """A network's input made from a picture, and where it lies in the picture."""

    net: Any
    photo: Any
    """Drawn under the maps: the part that the model sees, perhaps in finer grain."""
    x: Any
    whole: tuple[int, int]
    """Height and width of the picture, upright."""
    part: tuple[float, float, float, float]
    """Top, left, height and width of what the model sees, in pixels of the picture."""

    def within(self, pixel: tuple[int, int], word: str = "--at") -> tuple[int, int]:
        """The place of a pixel of the picture in the model's input."""
        H, W = self.whole
        if not (0 <= pixel[0] < H and 0 <= pixel[1] < W):
            raise ValueError(f"view: the picture has {H} rows and {W} columns, got {word} {pixel}")
        top, left, height, width = self.part
        places = []
        for place, start, length, side, lines in (
            (pixel[0], top, height, self.x.shape[2], "rows"),
            (pixel[1], left, width, self.x.shape[3], "columns"),
        ):
            pixel_there = math.floor((place + 0.5 - start) * side / length)
            if not 0 <= pixel_there < side:
                raise ValueError(
                    f"view: the model sees {lines} {math.ceil(start)} to "
                    f"{math.floor(start + length) - 1} of this picture, got {word} {pixel}"
                )
            places.append(pixel_there)
        return places[0], places[1]


def sight_of(net: Any, file: Image.Image, name: str, size: int | None = None) -> Sight:
    """What a network sees of a picture.

    Args:
        net: a network, trained or not
        file: the picture, upright and in RGB
        name: the picture's, for errors
        size: the side at which it is seen; as in the network's evaluations if None
    """
    if size is not None and size < 32:
        raise ValueError(f"view: a picture is seen at 32 pixels or more, got size={size}")
    weight = next(net.parameters())
    whole = file.height, file.width
    if "classes" in getattr(net, "notes", {}):
        ready = session.ready(net, weight.device)
        if isinstance(ready.test, Test):
            test = ready.test
            test = test if size is None else dataclasses.replace(test, size=size)
            x = ready.transform(test)(file)[None].to(weight.device, weight.dtype)
            fine = dataclasses.replace(test, size=max(LEAST_SIDE, test.size))
            pixels = ready.definition.test_transform(fine, (0.0,) * 3, (1.0,) * 3)(file)
            photo = pixels.permute(1, 2, 0).clamp(0, 1).numpy()
            side = test.crop * min(Trim()(file).size)
            part = (file.height - side) / 2, (file.width - side) / 2, side, side
            return Sight(net, photo, x, whole, part)
    side = size or timm_config(net)["input_size"][1]
    photo = picture.sized(file, side, name)
    x = picture.to_input(photo, timm_config(net)).to(weight.device, weight.dtype)
    return Sight(net, photo, x, whole, (0.0, 0.0, float(whole[0]), float(whole[1])))

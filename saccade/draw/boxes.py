"""Boxes and their names drawn onto a picture, in colours that stay apart for most eyes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image, ImageColor, ImageDraw, ImageFont

COLOURS = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#f0e442", "#000000",
)  # fmt: skip
FAULT = "#ff00ff"
SHADE = 0.5  # of a mask's colour over the picture
DARK = ("#f0e442", "#e69f00", "#56b4e9")  # colours on which letters are black


def draw_boxes(
    photo: Image.Image,
    boxes: Any,
    classes: Sequence[str],
    faults: Sequence[str] = (),
    numbers: Sequence[int] = (),
) -> Image.Image:
    """The picture with a frame and a label for each box; the surest lies on top.

    Args:
        photo: the picture; it is not changed
        boxes: tensors `boxes` (x0 y0 x1 y1 in the picture's pixels), `labels` and `scores`; boxes
            without scores (None), such as those of an annotation, get their name alone
        classes: the names that labels stand for
        faults: for each box a word about what is wrong with it, empty if nothing is; none at all
            if nobody knows. Faulty boxes have a colour of their own
        numbers: for each box that of its track, 0 while it has none, which then gives the colour;
            none at all without tracks
    """
    sheet = _shaded(photo, boxes, faults)
    pen = ImageDraw.Draw(sheet)
    short = min(sheet.size)
    width = max(2, round(short / 200))
    font = ImageFont.load_default(size=max(11, round(short / 28)))
    scores = [None] * len(boxes.boxes) if boxes.scores is None else boxes.scores.tolist()
    words = list(faults) or [""] * len(scores)
    tracks = list(numbers) or [0] * len(scores)
    rows = zip(boxes.boxes.tolist(), boxes.labels.tolist(), scores, words, tracks, strict=True)
    for (x0, y0, x1, y1), label, score, word, track in reversed(list(rows)):
        colour = FAULT if word else COLOURS[(track or label) % len(COLOURS)]
        frame = x0, y0, max(x1, x0 + 1), max(y1, y0 + 1)
        pen.rectangle(frame, outline=colour, width=width)
        text = classes[label] if score is None else f"{classes[label]} {100 * score:.0f}%"
        text = f"{word}: {text}" if word else f"#{track} {text}" if track else text
        _label(pen, text, x0, y0, colour, font, sheet.size)
    return sheet


def _shaded(photo: Image.Image, boxes: Any, faults: Sequence[str]) -> Image.Image:
    """A copy of the picture with the objects' masks in their colours, where there are masks."""
    masks = getattr(boxes, "masks", None)
    if masks is None or not len(masks):
        return photo.copy()
    pixels = np.asarray(photo, np.float32).copy()
    words = list(faults) or [""] * len(masks)
    for mask, label, word in reversed(list(zip(masks, boxes.labels.tolist(), words, strict=True))):
        colour = ImageColor.getrgb(FAULT if word else COLOURS[label % len(COLOURS)])
        inside = np.asarray(mask, bool)
        pixels[inside] += SHADE * (np.array(colour[:3], np.float32) - pixels[inside])
    return Image.fromarray(pixels.round().astype(np.uint8))


def _label(
    pen: ImageDraw.ImageDraw,
    text: str,
    x: float,
    y: float,
    colour: str,
    font: "ImageFont.FreeTypeFont | ImageFont.ImageFont",
    size: tuple[int, int],
) -> None:
    """A plate above the box, or inside it where there is no room; never beyond the picture."""
    left, top, right, bottom = pen.textbbox((0, 0), text, font=font)
    w, h = right - left + 6, bottom - top + 4
    x = min(max(x, 0), max(size[0] - w, 0))
    y = y - h if y >= h else min(max(y, 0), max(size[1] - h, 0))
    pen.rectangle((x, y, x + w, y + h), fill=colour)
    letters = "black" if colour in DARK else "white"
    pen.text((x + 3 - left, y + 2 - top), text, fill=letters, font=font)

"""A picture under the colours of its regions, with a legend of the classes that it holds."""

import numpy as np
from jaxtyping import Integer
from PIL import Image, ImageDraw, ImageFont

from saccade.draw.palette import palette

BLEND = 0.6  # of a region's colour over the picture
INK, PAPER = (30, 30, 30), (255, 255, 255)


def overlay(
    photo: Image.Image, labels: Integer[np.ndarray, "H W"], classes: list[str]
) -> Image.Image:
    """The picture under its regions' colours, lines between them, and a legend at its right."""
    colours = palette(len(classes))
    counts = np.bincount(labels.ravel(), minlength=len(classes))
    order = [int(i) for i in np.argsort(-counts, kind="stable") if counts[i]]
    lines = [(classes[i], counts[i] / labels.size, tuple(map(int, colours[i]))) for i in order]
    legend = _legend(lines, photo.height)
    sheet = Image.new("RGB", (photo.width + legend.width, max(photo.height, legend.height)), PAPER)
    sheet.paste(tinted(photo, labels, classes), (0, 0))
    sheet.paste(legend, (photo.width, 0))
    return sheet


def tinted(
    photo: Image.Image, labels: Integer[np.ndarray, "H W"], classes: list[str]
) -> Image.Image:
    """The picture under its regions' colours and lines between them, of the same size."""
    colours = palette(len(classes))
    blended = (1 - BLEND) * np.asarray(photo, np.float32) + BLEND * colours[labels]
    blended[_borders(labels)] = PAPER
    return Image.fromarray(blended.round().astype(np.uint8))


def _borders(labels: Integer[np.ndarray, "H W"]) -> np.ndarray:
    """Pixels whose right or lower neighbour is of another class."""
    edge = np.zeros(labels.shape, bool)
    edge[:, :-1] |= labels[:, 1:] != labels[:, :-1]
    edge[:-1] |= labels[1:] != labels[:-1]
    return edge


def _legend(lines: list[tuple[str, float, tuple[int, ...]]], height: int) -> Image.Image:
    """A swatch, a name and a share of the pixels for each class, the largest first.

    Letters grow with the picture; more classes than fit beside it go on below it.
    """
    size = min(max(height // 28, 13), 28)
    font = ImageFont.load_default(size)
    row, pad = round(1.6 * size), size
    texts = [f"{_short(name)}  {100 * share:.1f}%" for name, share, _ in lines]
    width = max(round(font.getlength(text)) for text in texts)
    legend = Image.new("RGB", (2 * row + width + pad, row * len(lines) + pad), PAPER)
    draw = ImageDraw.Draw(legend)
    for i, (text, (_, _, colour)) in enumerate(zip(texts, lines, strict=True)):
        y = pad // 2 + i * row
        box = (pad, y + row // 6, pad + row * 2 // 3, y + row // 6 + row * 2 // 3)
        draw.rectangle(box, fill=colour, outline=INK)
        draw.text((pad + row, y + row / 2), text, fill=INK, font=font, anchor="lm")
    return legend


def _short(name: str, most: int = 32) -> str:
    name = " ".join(name.split())
    return name if len(name) <= most else name[: most - 1] + "…"


def beside(left: Image.Image, right: Image.Image, gap: int = 6) -> Image.Image:
    """Two pictures in a row."""
    sheet = Image.new(
        "RGB", (left.width + gap + right.width, max(left.height, right.height)), "white"
    )
    sheet.paste(left, (0, 0))
    sheet.paste(right, (left.width + gap, 0))
    return sheet

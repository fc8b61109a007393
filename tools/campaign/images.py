"""Damaged pictures, and files that are none: RGB pixels, or `Unreadable`; no program is started."""

import io
import random
from pathlib import Path

import numpy as np
from PIL import Image

from saccade.data import picture
from saccade.data.picture import Unreadable
from saccade.serve import application
from tests.attack import evil_contents
from tools.campaign.guard import guarded
from tools.campaign.odd import changed_bytes
from tools.campaign.verdict import Finding, Outcome

KINDS = (
    ("JPEG", {}), ("JPEG", {"progressive": True}), ("PNG", {}), ("WEBP", {}),
    ("WEBP", {"lossless": True}), ("BMP", {}), ("TIFF", {}), ("TIFF", {"compression": "tiff_lzw"}),
    ("TIFF", {"compression": "jpeg"}), ("TIFF", {"compression": "tiff_adobe_deflate"}), ("GIF", {}),
    ("AVIF", {}), ("PPM", {}),
)  # fmt: skip
OTHERS = (
    b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(x) (w) file\n", b"%PDF-1.4\n",
    b"<svg xmlns='http://www.w3.org/2000/svg'><image href='http://127.0.0.1/'/></svg>",
    b"\x00\x00\x01\x00\x01\x00", b"8BPS\x00\x01", b"SIMPLE  =                    T", b"",
    b"\xd7\xcd\xc6\x9a\x00\x00", b"GIF89a", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"II*\x00",
)  # fmt: skip


class Pictures:
    """Small pictures of every format that is read, and then something else."""

    def __init__(self, place: Path):
        chance = np.random.default_rng(0)
        self.whole = []
        Image.init()
        for mode in ("RGB", "L", "P", "RGBA", "I;16", "CMYK", "1", "LA"):
            channels = {"L": 0, "P": 0, "I;16": 0, "1": 0, "RGBA": 4, "CMYK": 4, "LA": 2}.get(
                mode, 3
            )
            shape = (17, 23) + ((channels,) if channels else ())
            depth = np.uint16 if mode == "I;16" else np.uint8
            pixels = chance.integers(0, 255, shape).astype(depth)
            image = Image.fromarray(pixels)
            image = image if image.mode == mode else image.convert(mode)
            for name, options in KINDS:
                file = io.BytesIO()
                exif = Image.Exif()
                exif[0x0112] = 6
                extra = {"exif": exif} if name in ("JPEG", "PNG", "WEBP", "TIFF") else {}
                try:
                    image.save(file, name, **options, **extra)
                except (OSError, KeyError, ValueError):
                    continue  # this format has no such pixels
                self.whole.append(file.getvalue())
        self.others = [*OTHERS, *evil_contents(place / "marker").values()]
        self.marker = place / "marker"

    def close(self) -> None:
        return

    def trial(self, chance: random.Random, folder: Path) -> Outcome:
        draw = chance.random()
        content = chance.choice(self.others if draw < 0.05 else self.whole)
        if draw > 0.02:
            content = changed_bytes(content, chance)
        path = folder / chance.choice(("x.jpg", "x.png", "x.eps", "x.tif", "x"))
        path.write_bytes(content)
        with guarded():
            size = picture.size(path)
            try:
                image = picture.rgb(str(path), str(path))
                sentence = None
            except Unreadable as error:
                sentence = str(error)
            try:
                application.open_upload(content)
            except Unreadable as error:
                check_sentence(str(error))
        if self.marker.exists():
            raise Finding("the picture ran code")
        if sentence is not None:
            check_sentence(sentence)
            return Outcome(True, sentence)
        pixels = np.asarray(image)
        if image.mode != "RGB" or pixels.ndim != 3 or 0 in pixels.shape:
            raise Finding(f"a picture of {image.mode} {pixels.shape}")
        if size is not None and size.upright != image.size:
            raise Finding(f"{size.upright} pixels by its head, {image.size} when it is read")
        return Outcome(False, f"{image.size}")


def check_sentence(text: str) -> None:
    """Raise `Finding` unless a finding about a picture is one line."""
    if "\n" in text or "Traceback" in text:
        raise Finding(f"no sentence: {text!r}")

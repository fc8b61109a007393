"""Tell what is where in pictures with an exported segmenter: numpy, Pillow, onnxruntime, no torch.

    saccade export runs/segment
    python segment_onnx.py runs/segment/model.onnx street.jpg ...

writes street_mask.png, the id of every pixel. The file carries its classes and their ids, how it
wants to be shown pictures, and how its outputs are read.
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime
from PIL import Image, ImageOps

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF", "PPM")  # others may start programs


def opened(path):
    """The picture as one sees it: upright, 8 bits a colour, transparent parts on white."""
    try:
        photo = ImageOps.exif_transpose(Image.open(path, formats=FORMATS))
    except Exception as error:  # a decoder of a broken file raises whatever it stumbles over
        sys.exit(f"{path!r} is no readable picture ({error})")
    if photo.mode.startswith("I"):  # 16 bits
        photo = Image.fromarray((np.asarray(photo).clip(0, 0xFFFF) >> 8).astype(np.uint8))
    white = Image.new("RGBA", photo.size, "white")
    return Image.alpha_composite(white, photo.convert("RGBA")).convert("RGB")


def shown(photo, about):
    """The picture as the model was tested: a short side, a bounded long one, normalised."""
    test = about["test"]
    scale = min(test["short"] / min(photo.size), test["long"] / max(photo.size))
    size = [max(32, round(side * scale)) for side in photo.size]
    pixels = np.asarray(photo.resize(size, Image.Resampling.BILINEAR), np.float32) / 255
    pixels = (pixels - np.float32(about["mean"])) / np.float32(about["std"])
    return pixels.transpose(2, 0, 1)[None]


def logits(session, image, how):
    """Of every fourth pixel each way; of a large picture, the mean over windows that see it."""
    side, stride = how["window"] or max(image.shape), how["stride"]
    tops, lefts = (starts(length, side, how) for length in image.shape[2:])
    h, w = (-(-length // stride) for length in image.shape[2:])
    total, seen = 0, np.zeros((h, w), np.float32)
    for top in tops:
        for left in lefts:
            part = image[:, :, top : top + side, left : left + side]
            (out,) = session.run(["logits"], {"image": np.ascontiguousarray(part)})
            at = top // stride, left // stride
            beyond = [(a, n - a - m) for a, n, m in zip(at, (h, w), out.shape[2:], strict=True)]
            total = total + np.pad(out[0], ((0, 0), *beyond))
            seen += np.pad(np.ones(out.shape[2:], np.float32), beyond)
    return total / seen


def starts(length, side, how):
    """Where windows begin: evenly spaced in whole strides, overlapping, the last at the border."""
    last = -(-max(length - side, 0) // how["stride"])
    count = -(-last // max(int(side * (1 - how["overlap"])) // how["stride"], 1))
    return [last * i // max(count, 1) * how["stride"] for i in range(count + 1)]


def stretched(x, length, scale, axis):
    """Bilinear along an axis, to `length` pixels that are `scale` of the old ones each."""
    at = ((np.arange(length, dtype=np.float32) + 0.5) * np.float32(scale) - 0.5).clip(0)
    low = at.astype(int).clip(max=x.shape[axis] - 1)
    high, share = (low + 1).clip(max=x.shape[axis] - 1), at - low
    share = share[:, None] if axis == 0 else share
    return x.take(low, axis) * (1 - share) + x.take(high, axis) * share


def mask(session, about, photo):
    """The likeliest class of each pixel, class by class: memory is that of a few pictures."""
    image, how = shown(photo, about), about["decode"]
    best, label = np.full(photo.size[::-1], -np.inf, np.float32), np.zeros(photo.size[::-1], int)
    for number, value in enumerate(logits(session, image, how)):
        for axis, (seen, own) in enumerate(zip(image.shape[2:], best.shape, strict=True)):
            value = stretched(value, seen, 1 / how["stride"], axis)
            value = stretched(value, own, seen / own, axis) if own != seen else value
        surer = value > best
        best[surer], label[surer] = value[surer], number
    return label


def main(model, *pictures):
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    about = json.loads(session.get_modelmeta().custom_metadata_map["saccade"])
    ids = np.array(about["decode"]["ids"], np.uint8 if max(about["decode"]["ids"]) < 256 else "u2")
    for path in pictures:
        label = mask(session, about, opened(path))
        target = Path(path).with_name(Path(path).stem + "_mask.png")
        Image.fromarray(ids[label]).save(target)
        counts = np.bincount(label.ravel())
        print(target, *(f"{about['classes'][i]} {100 * counts[i] / label.size:.1f}%"
                        for i in np.argsort(-counts) if counts[i]), sep="  ")  # fmt: skip


if __name__ == "__main__":
    if len(sys.argv) < 3:
        print("usage: python segment_onnx.py MODEL.onnx PICTURE ...", file=sys.stderr)
        sys.exit(2)
    try:
        main(*sys.argv[1:])
    except Exception as error:  # onnxruntime has kinds of its own
        sys.exit(f"{sys.argv[1]!r} is no segmenter that saccade exported ({error})")

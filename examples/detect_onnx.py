"""Find things in pictures with an exported detector: numpy, Pillow and onnxruntime, no torch.

    saccade export runs/detect
    python detect_onnx.py runs/detect/model.onnx street.jpg ...

The file carries its classes, how it wants to be shown pictures, and how its outputs are read.
"""

import json
import sys

import numpy as np
import onnxruntime
from PIL import Image, ImageOps

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF", "PPM")  # others may start programs
SURE = 0.3  # of what is printed


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


def by_anchors(out, size, how):
    """RetinaNet: each anchor moved and stretched by its offsets; of those that overlap, one."""
    anchors, offsets, classes = out["anchors"], out["offsets"][0], out["logits"].shape[2]
    scores = 1 / (1 + np.exp(-out["logits"][0].clip(-80, 80)))
    scores[(anchors[:, :2] + anchors[:, 2:] >= 2 * size).any(1)] = 0  # beside the image
    chosen, start = [], 0
    for count in out["counts"]:  # the surest of each level
        level = scores[start : start + count].ravel()
        best = np.argsort(-level, kind="stable")[: how["candidates"]]
        chosen.append(best[level[best] > how["score"]] + start * classes)
        start += count
    which, labels = np.divmod(np.concatenate(chosen), classes)
    scores, corner = scores[which, labels], anchors[which, :2]
    sides = anchors[which, 2:] - corner
    middle = corner + (0.5 + offsets[which, :2]) * sides
    half = np.exp(offsets[which, 2:].clip(max=how["widest"])) * sides / 2
    boxes = np.hstack((middle - half, middle + half)).clip(0, np.tile(size, 2))
    left, kept = np.argsort(-scores, kind="stable"), []
    left = left[(boxes[left, 2:] > boxes[left, :2]).all(1)]
    while len(left) and len(kept) < how["most"]:
        first, left = left[0], left[1:]
        kept.append(first)
        other = labels[left] != labels[first]
        left = left[other | (overlap(boxes[first], boxes[left]) <= how["overlap"])]
    return boxes[kept] / np.tile(size, 2), labels[kept], scores[kept]


def overlap(box, boxes):
    """Intersection over union of one box with others."""
    sides = np.minimum(box[2:], boxes[:, 2:]) - np.maximum(box[:2], boxes[:, :2])
    both = sides.clip(0).prod(1)
    return both / ((box[2:] - box[:2]).prod() + (boxes[:, 2:] - boxes[:, :2]).prod(1) - both)


def by_places(out, size, how):
    """RT-DETR: the surest classes of all queries, on the image filled up to whole strides."""
    scores = 1 / (1 + np.exp(-out["logits"][0].clip(-80, 80)))
    order = np.argsort(-scores.ravel(), kind="stable")[: how["most"]]
    which, labels = np.divmod(order[scores.ravel()[order] >= how["score"]], scores.shape[1])
    middle, half = np.split(out["boxes"][0][which] / (1, 1, 2, 2), 2, 1)
    filled = np.ceil(size / how["stride"]) * how["stride"] / size
    boxes = (np.hstack((middle - half, middle + half)) * np.tile(filled, 2)).clip(0, 1)
    some = (boxes[:, 2:] > boxes[:, :2]).all(1)
    return boxes[some], labels[some], scores[which, labels][some]


def by_queries(out, how):
    """DETR: a box for each query, or nothing."""
    shares = np.exp(out["logits"][0] - out["logits"][0].max(1, keepdims=True))
    shares = (shares / shares.sum(1, keepdims=True))[:, :-1]  # the last class: nothing
    order = [i for i in np.argsort(-shares.max(1)) if shares[i].max() >= how["score"]]
    middle, half = np.split(out["boxes"][0][order] / (1, 1, 2, 2), 2, 1)
    boxes = np.hstack((middle - half, middle + half)).clip(0, 1)
    return boxes, shares[order].argmax(1), shares[order].max(1)


def found(session, about, photo):
    """Boxes x0 y0 x1 y1 in the picture's own pixels, class numbers, and scores; surest first."""
    image, how = shown(photo, about), about["decode"]
    out = dict(zip(about["outputs"], session.run(about["outputs"], {"image": image}), strict=True))
    size = np.float32(image.shape[:1:-1])  # width, height
    if "anchors" in out:
        boxes, labels, scores = by_anchors(out, size, how)
    elif "stride" in how:
        boxes, labels, scores = by_places(out, size, how)
    else:
        boxes, labels, scores = by_queries(out, how)
    return boxes * np.tile(np.float32(photo.size), 2), labels, scores


def main(model, *pictures):
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    about = json.loads(session.get_modelmeta().custom_metadata_map["saccade"])
    for path in pictures:
        photo = opened(path)
        print(path)
        for box, label, score in zip(*found(session, about, photo), strict=True):
            if score >= SURE:
                print(f"  {100 * score:5.1f}%  {about['classes'][label]}", *box.round(1))


if __name__ == "__main__":
    if len(sys.argv) < 3:
        print("usage: python detect_onnx.py MODEL.onnx PICTURE ...", file=sys.stderr)
        sys.exit(2)
    try:
        main(*sys.argv[1:])
    except Exception as error:  # onnxruntime has kinds of its own
        sys.exit(f"{sys.argv[1]!r} is no detector that saccade exported ({error})")

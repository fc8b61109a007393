"""Name what is in pictures with an exported model: numpy, Pillow and onnxruntime, no torch.

    saccade export runs/quick
    python predict_onnx.py runs/quick/model.onnx photo.jpg ...

The file carries its classes and how it wants to be shown pictures.
"""

import json
import math
import sys

import numpy as np
import onnxruntime
from PIL import Image, ImageOps

HOW = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


def shown(path, about):
    """The picture as the model was tested: short side to size / crop, the centre, normalised."""
    test = about["test"]
    photo = ImageOps.exif_transpose(Image.open(path)).convert("RGB")
    side = math.floor(test["size"] / test["crop"])
    scale = side / min(photo.size)
    W, H = (side if n == min(photo.size) else int(n * scale) for n in photo.size)
    photo = photo.resize((W, H), HOW[test["interpolation"]])
    left, top = round((W - test["size"]) / 2), round((H - test["size"]) / 2)
    photo = photo.crop((left, top, left + test["size"], top + test["size"]))
    pixels = np.asarray(photo, np.float32) / 255
    pixels = (pixels - np.float32(about["mean"])) / np.float32(about["std"])
    return pixels.transpose(2, 0, 1)[None]


def guesses(session, about, path, most=5):
    """The likeliest classes, the likeliest first."""
    (logits,) = session.run(["logits"], {"image": shown(path, about)})
    shares = np.exp(logits[0] - logits[0].max())
    shares /= shares.sum()
    return [(about["classes"][i], float(shares[i])) for i in np.argsort(-shares)[:most]]


def main(model, *pictures):
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    about = json.loads(session.get_modelmeta().custom_metadata_map["saccade"])
    for path in pictures:
        print(path)
        for name, share in guesses(session, about, path):
            print(f"  {100 * share:5.1f}%  {name}")


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Name what is in pictures with an exported model: numpy, Pillow and onnxruntime, no torch.

python predict_onnx.py runs/quick/model.onnx photo.jpg ...
"""

import json
import sys

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


def shown(path, about):
    """The picture as the model was tested: short side to size / crop, the centre, normalised."""
    photo, test = opened(path), about["test"]
    W, H = (int(int(test["size"] / test["crop"]) * n / min(photo.size)) for n in photo.size)
    photo = photo.resize((W, H), Image.Resampling[test["interpolation"].upper()])
    left, top = round((W - test["size"]) / 2), round((H - test["size"]) / 2)
    photo = photo.crop((left, top, left + test["size"], top + test["size"]))
    mean, std = (np.float32(about[key]) for key in ("mean", "std"))
    return ((np.asarray(photo, np.float32) / 255 - mean) / std).transpose(2, 0, 1)[None]


def guesses(session, about, path, most=5):
    """The likeliest classes, the likeliest first."""
    (logits,) = session.run(["logits"], {"image": shown(path, about)})
    shares = np.exp(logits[0] - logits[0].max())
    return [(about["classes"][i], shares[i] / shares.sum()) for i in np.argsort(-shares)[:most]]


def main(model, *pictures):
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    about = json.loads(session.get_modelmeta().custom_metadata_map["saccade"])
    for path in pictures:
        print(path, *(f"{s:8.1%}  {name}" for name, s in guesses(session, about, path)), sep="\n")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        print("usage: python predict_onnx.py MODEL.onnx PICTURE ...", file=sys.stderr)
        sys.exit(2)
    try:
        main(*sys.argv[1:])
    except Exception as error:  # onnxruntime has kinds of its own
        sys.exit(f"{sys.argv[1]!r} is no classifier that saccade exported ({error})")

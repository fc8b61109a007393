"""Small images with masks, in the layouts that are read."""

import json

import numpy as np
from PIL import Image

NAMES = ["sky", "sea", "boat"]
COLOURS = np.array([(120, 180, 250), (20, 60, 140), (220, 60, 40)])


def scene(chance, H=40, W=52):
    """Sky above sea, and a boat on it; the mask says which is which."""
    mask = np.zeros((H, W), np.uint8)
    line = int(chance.integers(H // 4, 3 * H // 4))
    mask[line:] = 1
    x = int(chance.integers(0, W - 14))
    mask[max(line - 8, 0) : line + 4, x : x + 14] = 2
    pixels = COLOURS[mask] + chance.normal(0, 12, (H, W, 3))
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8)), mask


def folder(root, train=8, val=4, masks="masks", splits=("train", "val"), ids=(0, 1, 2), **json_):
    """FOLDER/images/{train,val}, FOLDER/masks/{train,val} and classes.json."""
    chance = np.random.default_rng(0)
    for split, count in zip(splits, (train, val), strict=False):
        for kind in ("images", masks):
            (root / kind / split).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            photo, mask = scene(chance, 40 + i % 3, 52 - i % 2)
            photo.save(root / "images" / split / f"{i}.jpg", quality=95)
            Image.fromarray(np.array(ids, np.uint8)[mask]).save(root / masks / split / f"{i}.png")
    legend = {"classes": NAMES, "ignore_index": 255, **json_}
    (root / "classes.json").write_text(json.dumps(legend))
    return root

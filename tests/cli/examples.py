"""Small detectors and segmenters on disk, and the examples that run their exported files."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import saccade

EXAMPLES = Path(__file__).parents[2] / "examples"
IDS = [7, 300, 20]

# Torch made unimportable; then the example's own functions, on a file or on given outputs.
ALONE = """
import json, runpy, sys
sys.modules["torch"] = None
import numpy as np, onnxruntime
from PIL import Image
example = runpy.run_path(sys.argv[1])
model, pictures = sys.argv[2], sys.argv[3:]
session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
about = json.loads(session.get_modelmeta().custom_metadata_map["saccade"])
photos = [Image.open(path).convert("RGB") for path in pictures]
"""


def alone(name, program, *arguments):
    """What a program prints that has an example at hand, and no torch; its last line as JSON."""
    place = str(EXAMPLES / f"{name}_onnx.py")
    result = subprocess.run(
        [sys.executable, "-c", program, place, *map(str, arguments)],
        capture_output=True, text=True,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    *message, last = result.stdout.splitlines()
    return message, json.loads(last)


def saved(net, place, task, **test):
    """A network on disk as a run would leave it, its head made lively."""
    plain = {"kind": type(task).__name__, **dataclasses.asdict(task)}
    notes = {"classes": ["ant", "bee", "cat"], "task": plain, "test": test, "data": {"ids": IDS}}
    return saccade.save(net.eval(), place, **notes)


def pictures(place):
    """Coloured patches on noise: one as large as a model wants it, one that must be resized."""
    chance, paths = np.random.default_rng(0), []
    for name, (H, W) in {"own": (64, 81), "large": (101, 150)}.items():
        pixels = chance.normal(128, 12, (H, W, 3))
        for _ in range(4):
            y, x = int(chance.integers(0, H - 20)), int(chance.integers(0, W - 20))
            pixels[y : y + 20, x : x + 20] = chance.integers(0, 256, 3)
        paths.append(place / f"{name}.png")
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(paths[-1])
    return paths


@torch.no_grad()
def lively(conv, scale, bias):
    conv.weight.mul_(scale)
    conv.bias.fill_(bias)

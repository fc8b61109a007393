"""Write the small files that every later version must read: tests/released/VERSION/.

    python tools/released.py

Once for each release, with the release itself. Models, a run with a checkpoint, an ONNX file and a
torch program, each with what it gave for the picture of `picture()`; tests/test_released.py reads
them.
"""

import json
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import torch
from PIL import Image
from safetensors.torch import save_file

import saccade
from saccade import export
from saccade.engine import session
from saccade.recipes.book import RECIPES

FOLDER = Path(__file__).resolve().parents[1] / "tests" / "released" / saccade.__version__
MODELS = {
    "linglo_nano": {"depths": (1, 1, 1, 1), "widths": (8, 8, 16, 16), "heads": (1, 1, 2, 2)},
    "qna_nano": {
        "dim": 4, "depths": (1, 1, 1, 0), "sa_depths": (0, 0, 0, 1), "heads": (1, 1, 2, 2),
        "sa_heads": (1, 1, 1, 1), "sa_windows": (2, 2, 2, 2),
    },
    "sasa_nano": {
        "widths": (8, 8, 16, 16), "heads": 2, "expand": 2, "depths": (1, 1, 1, 1), "stem_width": 16,
    },
}  # fmt: skip


def picture(side: int = 64) -> torch.Tensor:
    """A picture by a formula: no generator of random numbers is the same for ever."""
    y, x = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    return torch.stack([torch.sin(x * 0.3 + c) * torch.cos(y * 0.2 - c) for c in range(3)])[None]


def photos(folder: Path) -> Path:
    """Eight pictures of two classes, for a run: bright and dark waves."""
    for label, level in (("bright", 170), ("dark", 85)):
        (folder / label).mkdir(parents=True, exist_ok=True)
        for i in range(4):
            waves = picture(32)[0].roll(i, -1).permute(1, 2, 0) * 60 + level
            Image.fromarray(waves.to(torch.uint8).numpy()).save(folder / label / f"{i}.png")
    return folder


def main() -> int:
    FOLDER.mkdir(parents=True, exist_ok=True)
    outputs = {}
    for name, arguments in MODELS.items():
        torch.manual_seed(0)
        model = saccade.build(name, num_classes=2, **arguments).eval()
        saccade.save(model, FOLDER / f"{name}.safetensors", classes=["bright", "dark"])
        with torch.no_grad():
            outputs[name] = model(picture())
    quick = RECIPES["quick"]
    recipe = replace(
        quick,
        model=replace(quick.model, options=dict(MODELS["linglo_nano"])),
        schedule=replace(quick.schedule, epochs=1),
        loop=replace(quick.loop, batch=2, baseline=False),
        data=replace(quick.data, workers=0, holdout=0.25),
    )
    run = FOLDER / "run"
    shutil.rmtree(run, ignore_errors=True)
    with tempfile.TemporaryDirectory() as data:
        session.train(recipe, str(photos(Path(data))), run)
    kept = ("recipe.json", "model.safetensors", "report.jsonl", "checkpoints")
    for path in run.iterdir():
        if path.name not in kept:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    model = saccade.load(run)
    with torch.no_grad():
        outputs["run"] = model(picture())
    about = {"classes": ["bright", "dark"]}
    ready = export.prepared(model)
    export.to_onnx(ready, FOLDER / "run.onnx", about)
    export.to_torch(ready, FOLDER / "run.pt2", about)
    save_file(outputs, FOLDER / "outputs.safetensors", {"torch": torch.__version__})
    sizes = {
        p.relative_to(FOLDER).as_posix(): p.stat().st_size for p in sorted(FOLDER.rglob("*.*"))
    }
    print(json.dumps(sizes, indent=2), f"{sum(sizes.values()) / 1e6:.2f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())

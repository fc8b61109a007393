"""Does SASA learn better with a masked border or with zeros?

    python benchmarks/sasa_border.py FOLDER [--borders mask zero] [--seeds 0 1 2] [--epochs 15]

sasa_nano at 32 px on the first training file of CIFAR-10 (a fifth), in one thread; FOLDER is
cifar-10-batches-bin. A line of JSON for each epoch; the test pictures are looked at after every
fifth. A seed draws the same weights, order, shifts and mirrors for both borders. The table in
docs/training.md is of this script: six runs of about six minutes of one core each.
"""

import argparse
import json
import math
from pathlib import Path

import numpy as np
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import saccade  # noqa: F401  (registers its models with timm)

BATCH, RATE, DECAY, PAD, SIDE = 64, 1e-3, 0.05, 4, 32
MEAN = torch.tensor([0.4914, 0.4822, 0.4465])[:, None, None]
STD = torch.tensor([0.247, 0.2435, 0.2616])[:, None, None]


def read(path: Path) -> tuple[Tensor, Tensor]:
    """Pixels N 3 32 32 and labels."""
    records = np.fromfile(path, np.uint8).reshape(-1, 3073)
    pixels = records[:, 1:].reshape(-1, 3, SIDE, SIDE).copy()
    return torch.from_numpy(pixels), torch.from_numpy(records[:, 0].astype(np.int64))


def normalised(pixels: Tensor) -> Tensor:
    return (pixels.float() / 255 - MEAN) / STD


def shifted(pixels: Tensor, chance: torch.Generator) -> Tensor:
    """Each picture moved by up to 4 pixels, reflected beyond its edge, and perhaps mirrored."""
    spread = F.pad(pixels.float(), (PAD,) * 4, mode="reflect")
    first = torch.randint(0, 2 * PAD + 1, (len(pixels), 2), generator=chance)
    mirror = torch.rand(len(pixels), generator=chance) < 0.5
    rows, columns = (first[:, axis, None] + torch.arange(SIDE) for axis in (0, 1))
    columns = torch.where(mirror[:, None], columns.flip(1), columns)
    each = torch.arange(len(pixels))[:, None, None]
    cut = spread[each, :, rows[:, :, None], columns[:, None, :]]  # B 32 32 3
    return normalised(cut.permute(0, 3, 1, 2).contiguous())


def optimiser(net: nn.Module) -> torch.optim.AdamW:
    """No decay for vectors and position tables."""
    decayed = [
        p for n, p in net.named_parameters() if p.ndim > 1 and not n.endswith((".row", ".col"))
    ]
    known = {id(p) for p in decayed}
    rest = [p for p in net.parameters() if id(p) not in known]
    return torch.optim.AdamW([{"params": decayed, "weight_decay": DECAY},
                              {"params": rest, "weight_decay": 0.0}], lr=RATE)  # fmt: skip


@torch.no_grad()
def accuracy(net: nn.Module, pixels: Tensor, labels: Tensor) -> float:
    net.eval()
    parts = zip(pixels.split(500), labels.split(500), strict=True)
    right = sum(int((net(normalised(x)).argmax(1) == y).sum()) for x, y in parts)
    net.train()
    return 100 * right / len(labels)


def train(folder: Path, border: str, seed: int, epochs: int) -> None:
    pixels, labels = read(folder / "data_batch_1.bin")
    torch.manual_seed(seed)
    chance = torch.Generator().manual_seed(1000 + seed)
    net = timm.create_model("sasa_nano", num_classes=10, border=border).train()
    optim, warmup, step = optimiser(net), len(pixels) // BATCH, 0
    steps = warmup * epochs
    for epoch in range(1, epochs + 1):
        order, losses = torch.randperm(len(pixels), generator=chance), []
        for at in range(0, warmup * BATCH, BATCH):
            wave = math.cos(math.pi * max(0, step - warmup) / (steps - warmup))
            for group in optim.param_groups:
                group["lr"] = RATE * min(step / warmup, 0.01 + 0.99 * 0.5 * (1 + wave))
            step += 1
            chosen = order[at : at + BATCH]
            image = shifted(pixels[chosen], chance)
            loss = F.cross_entropy(net(image), labels[chosen], label_smoothing=0.1)
            optim.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optim.step()
            losses.append(loss.item())
        line = {"border": border, "seed": seed, "epoch": epoch, "loss": sum(losses) / len(losses)}
        if epoch % 5 == 0 or epoch == epochs:
            line["top1"] = accuracy(net, *read(folder / "test_batch.bin"))
        print(json.dumps(line), flush=True)


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parse.add_argument("folder", type=Path)
    parse.add_argument("--borders", nargs="+", default=["mask", "zero"])
    parse.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parse.add_argument("--epochs", type=int, default=15)
    a = parse.parse_args()
    torch.set_num_threads(1)
    for seed in a.seeds:
        for border in a.borders:
            train(a.folder, border, seed, a.epochs)


if __name__ == "__main__":
    main()

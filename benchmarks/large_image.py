"""How much memory does a 2048 x 1024 image take, whole and through windows?

python benchmarks/large_image.py             peak memory beyond the model's own, and seconds
python benchmarks/large_image.py b0 512      one measurement: LinGlo-b0, windows of 512 (0: whole)
"""

import resource
import subprocess
import sys
import time

import torch
from saccade.tasks.segment.task.task import Segment

from saccade.models.semantic_fpn import build

H, W, CLASSES = 1024, 2048, 150


def peak() -> float:
    """MiB of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(size: str, window: int) -> None:
    torch.set_num_threads(1)
    net = build(f"linglo_{size}", CLASSES).eval().fuse()
    task = Segment(net, [str(i) for i in range(CLASSES)], window=window or None).eval()
    with torch.no_grad():
        task.predict(task(torch.rand(1, 3, 64, 64)), [(64, 64)])  # what libraries take once
        image = torch.rand(1, 3, H, W)
        before, began = peak(), time.monotonic()
        (mask,) = task.predict(task(image), [(H, W)])
    assert mask.shape == (H, W)
    how = f"windows of {window}" if window else "whole"
    print(f"{size}  {how:15}  {peak() - before:6.0f} MiB  {time.monotonic() - began:6.1f} s")


if __name__ == "__main__":
    if len(sys.argv) == 3:
        measure(sys.argv[1], int(sys.argv[2]))
    else:
        for size in ("b0", "b1", "b2"):
            for window in ("0", "1024", "512"):
                subprocess.run([sys.executable, __file__, size, window], check=True)

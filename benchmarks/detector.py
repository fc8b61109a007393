"""Is our RetinaNet slower than torchvision's, with a backbone of as many parameters?

    python benchmarks/detector.py [--side 640] [--batch 1] [--names linglo_b2 resnet50] [--rounds 5]

Beside torchvision's retinanet_resnet50_fpn: a training step (forward, loss, backward) and inference
(forward, decoding, suppression), interleaved, as ratios of the best times; torchvision's in both
memory layouts, of which the better counts. And what share of inference is anchors, decoding and
suppression at their worst: scores are raised until every level has all the candidates it may have,
and the anchors are made anew. The same random boxes for all; nothing is trained.
"""

import argparse
import math

import torch
from torchvision.models.detection import retinanet_resnet50_fpn

from saccade.bench.clock import interleave
from saccade.models import retinanet
from saccade.paper.count import params
from saccade.recipes.detect import RetinaNet
from saccade.tasks.detect.retinanet import RetinaNetTask

CLASSES = 80
LAYOUTS = torch.contiguous_format, torch.channels_last


def boxes(batch, side, count=8):
    chance = torch.Generator().manual_seed(0)
    corner = torch.rand(batch, count, 2, generator=chance) * side * 0.7
    extent = 8 + torch.rand(batch, count, 2, generator=chance) * side * 0.25
    labels = torch.randint(CLASSES, (batch, count), generator=chance)
    return torch.cat([corner, corner + extent], -1), labels


def ours(name, image, target):
    settings = RetinaNet()
    net = retinanet.build(name, CLASSES, settings).to(memory_format=torch.channels_last)
    task = RetinaNetTask(net, [str(i) for i in range(CLASSES)], settings)
    image = image.to(memory_format=torch.channels_last)
    size = [tuple(image.shape[2:])] * len(image)

    def train():
        task.train()
        sum(task.loss(task(image), target).values()).backward()
        task.zero_grad()

    @torch.no_grad()
    def raw():
        task.eval()
        return task(image)

    @torch.no_grad()
    def infer():
        task.predict(raw(), size)

    crowd = crowded(raw(), task.score)
    grids = [tuple(-(-side // stride) for side in image.shape[2:]) for stride in net.strides]

    @torch.no_grad()
    def after():
        task.anchors.all_levels(grids)
        task.predict(crowd, size)

    return net, train, infer, after


def crowded(output, score):
    """Raw outputs with so many scores over the least that no level can keep them all."""
    spread = torch.randn(output["logits"].shape, generator=torch.Generator().manual_seed(0))
    return {**output, "logits": spread + math.log(score / (1 - score))}


def torchvisions(image, target, layout):
    net = retinanet_resnet50_fpn(
        weights=None, weights_backbone=None, num_classes=CLASSES, trainable_backbone_layers=5,
        min_size=image.shape[2], max_size=image.shape[3], image_mean=[0] * 3, image_std=[1] * 3,
    ).to(memory_format=layout)  # fmt: skip
    images = list(image)
    targets = [{"boxes": b, "labels": k} for b, k in zip(*target.values(), strict=True)]

    def train():
        net.train()
        sum(net(images, targets).values()).backward()
        net.zero_grad()

    @torch.no_grad()
    def infer():
        net.eval()(images)

    return net, train, infer


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", type=int, default=640)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--names", nargs="+", default=["linglo_b2", "resnet50"])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.manual_seed(0)
    image = torch.randn(options.batch, 3, options.side, options.side)
    target = dict(zip(("boxes", "labels"), boxes(options.batch, options.side), strict=True))
    calls = {}
    for layout in LAYOUTS:
        theirs, train, infer = torchvisions(image, target, layout)
        calls |= {f"train torchvision {layout}": train, f"infer torchvision {layout}": infer}
    body = params(theirs.backbone.body)
    print(f"torchvision: {params(theirs) / 1e6:.1f}M, of them backbone {body / 1e6:.1f}M")
    for name in options.names:
        net, train, infer, after = ours(name, image, target)
        calls |= {f"train {name}": train, f"infer {name}": infer, f"after {name}": after}
        body = params(net.backbone)
        print(f"{name}: {params(net) / 1e6:.1f}M, of them backbone {body / 1e6:.1f}M")
    best = {k: t.best for k, t in interleave(calls, rounds=options.rounds, seconds=600).items()}
    for name in options.names:
        ratios = [
            min(best[f"{what} torchvision {layout}"] for layout in LAYOUTS) / best[f"{what} {name}"]
            for what in ("train", "infer")
        ]
        share = best[f"after {name}"] / best[f"infer {name}"]
        print(
            f"{name}: training step {ratios[0]:.2f}x torchvision's speed, inference "
            f"{ratios[1]:.2f}x; anchors and boxes {share:.1%} of inference at most"
        )


if __name__ == "__main__":
    main()

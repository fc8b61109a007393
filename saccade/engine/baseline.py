"""What a run is to beat: a linear model on the pixels, fitted in seconds.

p = softmax(W x + b),   x: the image as evaluation shows it, 32 pixels a side, standardised
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from saccade.data.datasets import Images, Splits
from saccade.engine import kinds, make
from saccade.engine.distributed import Group
from saccade.engine.run import Run, write_json
from saccade.tasks.metrics import Confusion

SIDE = 32
DECAY = 1e-2


def fit(run: Run, splits: Splits) -> dict[str, float | str]:
    """Fit it, count it on the validation images, and keep its figures beside the run's."""
    x, y = _pixels(run, splits.train)
    mean, std = x.mean(0), x.std(0) + 1e-3
    x = (x - mean) / std
    W, b = linear(x, y, len(run.classes))
    images, labels = _pixels(run, splits.val)
    metric = Confusion(run.classes)
    metric.update({"logits": F.linear((images - mean) / std, W, b)}, {"label": labels})
    said: dict[str, float | str] = {"name": "a linear model on the pixels", **metric.compute()}
    write_json(run.folder / "baseline.json", said)
    return said


def linear(x: Tensor, y: Tensor, classes: int, decay: float = DECAY) -> tuple[Tensor, Tensor]:
    """The weights and biases of least cross-entropy, by L-BFGS from zero: no chance is involved."""
    W = torch.zeros(classes, x.shape[1], device=x.device, requires_grad=True)
    b = torch.zeros(classes, device=x.device, requires_grad=True)
    solver = torch.optim.LBFGS([W, b], max_iter=100, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        solver.zero_grad()
        with torch.enable_grad():
            value = F.cross_entropy(F.linear(x, W, b), y) + decay * W.square().sum() / 2
            value.backward()
        return value

    solver.step(loss)
    return W.detach(), b.detach()


def _pixels(run: Run, images: Images) -> tuple[Tensor, Tensor]:
    net = make.model(make.unstarted(run.recipe), len(run.classes))
    loader = make.unaugmented(kinds.of(run.recipe), run.recipe.test, images, net, Group(), 64)
    found = [part for parts in loader.epoch(0) for part in parts]
    small = [F.adaptive_avg_pool2d(p.image, SIDE).flatten(1) for p in found]
    return torch.cat(small), torch.cat([part.target["label"] for part in found])

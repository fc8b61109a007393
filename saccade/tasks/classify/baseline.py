"""A linear model on the pixels, fitted in seconds: what a classifier should beat.

p = softmax(W x + b),   x: the image as evaluation shows it, 32 pixels a side, standardised
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from saccade.data.images import Images
from saccade.tasks.classify.metric import Confusion
from saccade.tasks.definition import Preparation

SIDE = 32
DECAY = 1e-2


def fit_linear_model(preparation: Preparation) -> dict[str, float | str]:
    """Fit it on the training images; its name, and its figures on the validation images."""
    splits, classes = preparation.splits, preparation.classes
    x, y = _pixels(preparation, splits.train)
    mean, std = x.mean(0), x.std(0) + 1e-3
    W, b = linear((x - mean) / std, y, len(classes))
    x, y = _pixels(preparation, splits.val)
    metric = Confusion(classes)
    metric.update({"logits": F.linear((x - mean) / std, W, b)}, {"label": y})
    return {"name": "a linear model on the pixels", **metric.compute()}


def linear(x: Tensor, y: Tensor, classes: int, decay: float = DECAY) -> tuple[Tensor, Tensor]:
    """Weights and biases of least cross-entropy, by L-BFGS from zero; nothing in it is random."""
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


def _pixels(preparation: Preparation, images: Images) -> tuple[Tensor, Tensor]:
    pixels, labels = [], []
    for batch in preparation.batches(images, preparation.recipe.test):
        pixels.append(F.adaptive_avg_pool2d(batch.image, SIDE).flatten(1))
        labels.append(batch.target["label"])
    return torch.cat(pixels), torch.cat(labels)

"""A network or task in the form for export: an image in, tensors out."""

import torch
from torch import Tensor, nn


class Raw(nn.Module):
    """A network or task as a function of one image; `names` are those of its outputs."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model
        self.names = tuple(self.outputs(torch.zeros(1, 3, 64, 64)))

    def outputs(self, image: Tensor) -> dict[str, Tensor]:
        task = getattr(self.model, "raw", None)
        return task(image) if callable(task) else {"logits": self.model(image)}

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.outputs(image).values())

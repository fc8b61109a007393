"""The image itself: nothing but pictures is needed."""

from collections.abc import Sequence
from typing import Any

from torch import nn

from saccade.data import augment, unlabelled
from saccade.data.datasets import Splits
from saccade.engine.kinds.kind import Colour, Kind
from saccade.models.autoencoder import AutoEncoder
from saccade.models.saved import load
from saccade.recipes import recipe as words
from saccade.tasks.autoencode import AutoEncode

NAME = "autoencoder"


class Reconstruction(Kind):
    """An auto-encoder."""

    augments, tests, verb = words.Augment, words.Test, ""
    wanted = "a folder of pictures"

    def find(self, path: str, data: words.Data, seed: int = 0) -> Splits:
        return unlabelled.find(path, data, seed)

    def every(self, path: str, classes: list[str]) -> unlabelled.Pictures:
        return unlabelled.every(path)

    def aligned(self, images: Any, classes: list[str]) -> unlabelled.Pictures:
        return images

    def check(self, name: str) -> None:
        if name != NAME:
            raise ValueError(
                f"an AutoEncode task trains the model {NAME!r}, got {name!r}; "
                f"choose its layers by task.encoder and task.decoder"
            )

    def train(self, augment_: words.Augment, mean: Colour, std: Colour) -> augment.Transform:
        for name in ("mixup", "cutmix"):
            if getattr(augment_, name):
                raise ValueError(f"augment.{name}: mixes labels, of which there are none; set it 0")
        return augment.train(augment_, mean, std)

    def test(self, test: words.Test, mean: Colour, std: Colour) -> augment.Transform:
        return augment.test(test, mean, std)

    def over_batches(self, augment_: words.Augment, _: Any) -> dict[str, Any]:
        return {"repeats": augment_.repeats}

    def sides(self, recipe: words.Recipe) -> Sequence[int]:
        return recipe.augment.size, recipe.test.size

    def net(self, recipe: words.Recipe, classes: int, settings: dict[str, Any]) -> nn.Module:
        task: Any = recipe.task
        return AutoEncoder(task.encoder, task.decoder, task.dim, start=task.start, **settings)

    def start(self, net: nn.Module, source: str) -> None:
        """All weights, of an auto-encoder of the same layers."""
        other: Any = load(source)
        mine, theirs = (getattr(one, "made", None) for one in (net, other))
        if mine != theirs:
            raise ValueError(f"model.start: {source!r} is another model: {theirs}, not {mine}")
        net.load_state_dict(other.state_dict())

    def task(
        self,
        asked: words.AutoEncode,
        net: nn.Module,
        classes: tuple[str, ...],
        notes: dict[str, Any],
        teacher: nn.Module | None = None,
    ) -> AutoEncode:
        return AutoEncode(net)


KIND = Reconstruction()

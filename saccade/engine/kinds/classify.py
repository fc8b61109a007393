"""One class an image, with or without a teacher."""

from collections.abc import Sequence
from typing import Any

import timm
from torch import nn

from saccade.data import augment, datasets
from saccade.engine.kinds.kind import Colour, Kind
from saccade.models import zoo
from saccade.models.describe import card
from saccade.models.saved import load
from saccade.recipes import recipe as words
from saccade.tasks.classify import Classify, Distill

TAKEN = {
    "num_classes": "comes from the images",
    "features_only": "a classifier is trained",
}


class Classification(Kind):
    """A pooled, linear head over a backbone."""

    augments, tests, verb = words.Augment, words.Test, "predict"
    wanted = "a folder of class folders, or mnist for a first try"

    def find(self, path: str, data: words.Data, seed: int = 0) -> datasets.Splits:
        return datasets.find(path, data, seed)

    def every(self, path: str, classes: list[str]) -> datasets.Images:
        return datasets.every(path, classes)

    def aligned(self, images: Any, classes: list[str]) -> datasets.Images:
        return datasets.aligned(images, classes)

    def train(self, augment_: words.Augment, mean: Colour, std: Colour) -> augment.Transform:
        return augment.train(augment_, mean, std)

    def test(self, test: words.Test, mean: Colour, std: Colour) -> augment.Transform:
        return augment.test(test, mean, std)

    def over_batches(self, augment_: words.Augment, _: Any) -> dict[str, Any]:
        mixes = augment_.mixup > 0 or augment_.cutmix > 0
        return {
            "repeats": augment_.repeats,
            "mix": augment.Mix(augment_) if mixes else None,
        }

    def sides(self, recipe: words.Recipe) -> Sequence[int]:
        return recipe.augment.size, recipe.test.size

    def net(self, recipe: words.Recipe, classes: int, settings: dict[str, Any]) -> nn.Module:
        asked = recipe.model
        for taken, why in TAKEN.items():
            if taken in asked.options:
                raise ValueError(f"model.options.{taken}: {why}; leave it out")
        made: Any = _built(asked.name, {"num_classes": classes, **settings})
        if not isinstance(made, zoo.Classifier):
            made.options = dict(asked.options)  # what `save` needs to build it again
        return made

    def start(self, net: nn.Module, source: str) -> None:
        """All weights but the classifier's."""
        other = load(source)
        mine, theirs = card(net)["architecture"], card(other)["architecture"]
        if mine != theirs:
            raise ValueError(
                f"model.start: {source!r} is a {theirs!r} and the recipe trains a {mine!r}; "
                f"set model.name={theirs}, or model.start= to begin from nothing"
            )
        head = card(net)["classifier"]
        weights = {k: v for k, v in other.state_dict().items() if not k.startswith(head)}
        missing, unknown = net.load_state_dict(weights, strict=False)
        if unknown or any(not name.startswith(head) for name in missing):
            raise ValueError(
                f"model.start: {source!r} was built with other options than the recipe's"
            )

    def task(
        self,
        asked: words.Classify,
        net: nn.Module,
        classes: tuple[str, ...],
        notes: dict[str, Any],
        teacher: nn.Module | None = None,
    ) -> Classify:
        if isinstance(asked, words.Distill) and teacher is not None:
            return Distill(
                net, classes, teacher, smoothing=asked.smoothing, weight=asked.weight,
                temperature=asked.temperature,
            )  # fmt: skip
        return Classify(net, classes, smoothing=asked.smoothing)


def _built(name: str, settings: dict[str, Any]) -> nn.Module:
    """timm's model; one that knows no dropped paths drops none."""
    try:
        return timm.create_model(name, **settings)
    except TypeError as error:
        if settings.get("drop_path_rate") != 0 or "drop_path_rate" not in str(error):
            raise
    return timm.create_model(name, **{k: v for k, v in settings.items() if k != "drop_path_rate"})


KIND = Classification()

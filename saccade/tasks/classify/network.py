"""Build classifiers by a recipe: saccade's and timm's."""

from typing import Any

import timm
from torch import nn

from saccade.layers.branches import fit_norms
from saccade.models import zoo
from saccade.models.describe import timm_config
from saccade.models.saved import load
from saccade.recipes.augment import Test
from saccade.recipes.classify import Classify
from saccade.recipes.recipe import Recipe
from saccade.tasks.definition import Untrained

SET_BY_US = {
    "num_classes": "comes from the images",
    "features_only": "a classifier is trained",
}


def build(recipe: Recipe, classes: int, options: dict[str, Any]) -> nn.Module:
    """The classifier that a recipe names."""
    name, own = recipe.model.name, recipe.model.options
    for option, why in SET_BY_US.items():
        if option in own:
            raise ValueError(f"model.options.{option}: {why}; leave it out")
    net: Any = _create(name, {"num_classes": classes, **options})
    if not isinstance(net, zoo.Classifier):
        net.options = {k: v for k, v in own.items() if k != "pretrained"}  # what builds it again
    return net


def _create(name: str, options: dict[str, Any]) -> nn.Module:
    """timm's model; one without stochastic depth takes a rate of 0 all the same."""
    try:
        return timm.create_model(name, **options)
    except TypeError as error:
        if options.get("drop_path_rate") != 0 or "drop_path_rate" not in str(error):
            raise
    return timm.create_model(name, **{k: v for k, v in options.items() if k != "drop_path_rate"})


def start(net: nn.Module, source: str) -> None:
    """Take all weights but the classifier's from a saved model of the same architecture."""
    other = load(source)
    mine, theirs = timm_config(net)["architecture"], timm_config(other)["architecture"]
    if mine != theirs:
        raise ValueError(
            f"model.start: {source!r} is a {theirs!r} and the recipe trains a {mine!r}; "
            f"set model.name={theirs}, or model.start= to begin from nothing"
        )
    head = timm_config(net)["classifier"]
    weights = {k: v for k, v in other.state_dict().items() if not k.startswith(head)}
    fit_norms(net, weights)
    own = {k: v.shape for k, v in net.state_dict().items() if not k.startswith(head)}
    if own != {k: v.shape for k, v in weights.items()}:
        raise ValueError(f"model.start: {source!r} was built with other options than the recipe's")
    net.load_state_dict(weights, strict=False)


def untrained(name: str) -> Untrained | None:
    """A variant of saccade's by name, with the image size of its paper."""
    if name not in zoo.VARIANTS:
        return None
    net: Any = zoo.build(name)
    return Untrained(net, Classify(), Test(size=timm_config(net)["input_size"][1]))

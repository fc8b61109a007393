"""The detectors by a recipe's settings; each is imported when it is used, with its packages."""

from typing import Any

from torch import nn

from saccade.models import detectors, linglo_retinanet, sasa_retinanet
from saccade.recipes.detect import BoxTest, Detr, RetinaNet, RTDetr
from saccade.recipes.recipe import Recipe
from saccade.tasks.definition import Untrained
from saccade.tasks.task import Task

RETINANETS = (*linglo_retinanet.DETECTORS, *sasa_retinanet.DETECTORS)


def build(recipe: Recipe, classes: int, options: dict[str, Any]) -> nn.Module:
    """A detector over the backbone that a recipe names."""
    options = {"drop_path" if k == "drop_path_rate" else k: v for k, v in options.items()}
    if isinstance(recipe.task, RetinaNet):
        from saccade.models.retinanet import build
    elif isinstance(recipe.task, RTDetr):
        from saccade.models.rtdetr import build
    else:
        from saccade.models.detr import build
    return build(recipe.model.name, classes, recipe.task, **options)


def task(
    settings: RetinaNet | Detr | RTDetr, net: Any, classes: tuple[str, ...], notes: dict[str, Any]
) -> Task:
    """The detector with its loss and its metric."""
    if isinstance(settings, RetinaNet):
        from saccade.tasks.detect.retinanet import RetinaNetTask

        return RetinaNetTask(net, classes, settings, ids=notes.get("ids"))
    if isinstance(settings, RTDetr):
        from saccade.tasks.detect.rtdetr import RTDetrTask

        return RTDetrTask(net, classes, settings, ids=notes.get("ids"))
    from saccade.tasks.detect.detr import DetrTask

    return DetrTask(net, classes, settings, ids=notes.get("ids"))


def untrained(name: str) -> Untrained | None:
    """A RetinaNet of a paper's table."""
    if name not in RETINANETS:
        return None
    net = detectors.DETECTORS[name]()
    return Untrained(net, RetinaNet(**net.arguments["settings"]), BoxTest())

"""The segmenters by a recipe's settings; each is imported when it is used, with its packages."""

from typing import Any

from torch import nn

from saccade.models import detectors, semantic_fpn
from saccade.recipes.recipe import Recipe
from saccade.recipes.segment import Mask2Former, MaskTest, Segment, UperNet
from saccade.tasks.definition import Untrained
from saccade.tasks.segment.task import SegmentTask, balanced


def build(recipe: Recipe, classes: int, options: dict[str, Any]) -> nn.Module:
    """A segmenter over the backbone that a recipe names."""
    name, settings = recipe.model.name, recipe.task
    options = {"drop_path" if k == "drop_path_rate" else k: v for k, v in options.items()}
    if isinstance(settings, UperNet):
        from saccade.models import upernet

        return upernet.build(name, classes, settings, **options)
    if isinstance(settings, Mask2Former):
        from saccade.models import mask2former

        return mask2former.build(name, classes, settings, **options)
    assert isinstance(settings, Segment)
    return semantic_fpn.build(name, classes, settings.dim, settings.inner, **options)


def task(
    settings: Segment | UperNet | Mask2Former,
    net: Any,
    classes: tuple[str, ...],
    notes: dict[str, Any],
) -> SegmentTask:
    """The segmenter with its loss and its metric."""
    windows = settings.window, settings.overlap, notes.get("ids")
    if isinstance(settings, Mask2Former):
        from saccade.tasks.segment.mask2former import Mask2FormerTask

        return Mask2FormerTask(net, classes, *windows, settings=settings)
    pixels = notes.get("pixels")
    known = isinstance(pixels, list) and len(pixels) == len(classes)
    known = known and all(type(n) is int and n >= 0 for n in pixels)
    weights = balanced(pixels if known else None, settings.balance)
    if isinstance(settings, UperNet):
        from saccade.tasks.segment.upernet import UperNetTask

        return UperNetTask(net, classes, *windows, weights=weights, share=settings.share)
    return SegmentTask(net, classes, *windows, weights=weights)


def untrained(name: str) -> Untrained | None:
    """A SemanticFPN of a paper's table."""
    if name not in semantic_fpn.SEGMENTERS:
        return None
    net = detectors.DETECTORS[name]()
    sizes = {key: net.arguments[key] for key in ("dim", "inner")}
    return Untrained(net, Segment(**sizes), MaskTest())

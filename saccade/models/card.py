"""timm's description of a network (its `default_cfg`), brought in line with how it was trained.

`timm.data.resolve_model_data_config(model)` reads image size, interpolation, crop, mean and
deviation from there, and `timm.data.create_transform` then gives the preprocessing of the network's
evaluation.
"""

from collections.abc import Mapping
from typing import Any

INTERPOLATIONS = ("bilinear", "bicubic", "nearest", "lanczos")
LARGEST = 1 << 16  # pixels


def as_trained(card: Mapping[str, Any], notes: Mapping[str, Any]) -> dict[str, Any]:
    """The description with the test settings and the classes that a model's notes name.

    Args:
        card: timm's description of the fresh network
        notes: what a run saved with its model; entries that are missing or impossible change
        nothing
    """
    test, trained = notes.get("test", {}), dict(card)
    side, crop, how = (test.get(key) for key in ("size", "crop", "interpolation"))
    if type(side) is int and 0 < side <= LARGEST:
        channels, height, width = card["input_size"]
        trained["input_size"] = (channels, side, side)
        pool = card.get("pool_size")
        if pool:
            trained["pool_size"] = (-(-side * pool[0] // height), -(-side * pool[1] // width))
    if type(crop) in (int, float) and 0 < crop <= 1:
        trained |= {"crop_pct": float(crop), "crop_mode": "center"}
    if how in INTERPOLATIONS:
        trained["interpolation"] = how
    names = notes.get("classes")
    if names:
        trained |= {"num_classes": len(names), "label_names": list(names)}
    return trained


def untrained_head(card: Mapping[str, Any], classes: int) -> dict[str, Any]:
    """The description of a network whose classifier is new."""
    fields = {key: value for key, value in card.items() if key != "label_names"}
    return {**fields, "num_classes": classes}

"""Boxes in other formats, made into a COCO set."""

from saccade.data.convert.to_coco import Converted, Split, convert

__all__ = ["Converted", "Split", "convert"]

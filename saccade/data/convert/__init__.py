"""Convert boxes in VOC's and YOLO's formats to a COCO data set."""

from saccade.data.convert.to_coco import Converted, Split, convert

__all__ = ["Converted", "Split", "convert"]

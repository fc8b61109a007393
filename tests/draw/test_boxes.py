import numpy as np
import torch
from PIL import Image

from saccade.draw.boxes import draw_boxes
from saccade.tasks.detect.task import Detections


def test_boxes_are_drawn_where_they_are():
    photo = Image.new("RGB", (120, 90), "white")
    boxes = torch.tensor([[20.0, 30, 80, 70], [-5, -5, 10, 8], [118, 88, 119, 89.0]])
    detections = Detections(boxes, torch.tensor([0, 1, 9]), torch.tensor([0.9, 0.8, 0.7]))
    sheet = np.asarray(draw_boxes(photo, detections, [f"class {i}" for i in range(10)]))
    assert sheet.shape == (90, 120, 3)
    assert (sheet[69, 40:60] != 255).any(1).all(), "the lower edge"
    assert (sheet[45:60, 40:60] == 255).all(), "nothing inside"
    assert (np.asarray(photo) == 255).all(), "the picture itself is left alone"

import pytest
import torch

from saccade.models.retinanet import build
from saccade.recipes.detect import RetinaNet
from saccade.tasks.detect.retinanet import RetinaNetTask
from saccade.tasks.detect.task import Detections
from saccade.tasks.detect.views import DetectViews
from saccade.tasks.views import SCALES


class Bright(RetinaNetTask):
    """Finds the bright rectangle of an image, whatever its size and place."""

    def forward(self, image, size=None):
        return {"image": image, "size": torch.tensor([image.shape[2:]] * len(image))}

    def predict(self, output, sizes=None, score=None):
        found_here = []
        for image, (H, W) in zip(output["image"], sizes, strict=True):
            h, w = image.shape[1:]
            rows, columns = (image[0] > 0.5).nonzero().T
            edges = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
            box = torch.tensor(edges) * torch.tensor([W / w, H / h] * 2)
            sure = torch.tensor([1 / w if w != 64 else 0.9])
            found_here.append(Detections(box[None], torch.tensor([1]), sure))
        return found_here


@pytest.fixture
def task():
    settings = RetinaNet(dim=16, depth=0, scales=1)
    net = build("sasa_nano_conv", 2, settings)
    return Bright(net, ("a", "b"), settings).eval()


def test_boxes_of_all_views_lie_on_the_thing(task):
    """Sizes and mirrors are undone: the boxes of six views become one, the surest."""
    image = torch.zeros(1, 3, 48, 64)
    image[:, :, 8:24, 40:60] = 1.0
    looking = DetectViews(task)
    output = looking(image)
    assert sum(name.endswith("/image") for name in output) == 2 * len(SCALES)
    looking.overlap = 1.0  # keep all
    (every,) = looking.predict(output, [(96, 128)])
    assert len(every.boxes) == 6
    assert (every.boxes - torch.tensor([80.0, 16, 120, 48])).abs().max() < 3
    looking.overlap = 0.5
    (one,) = looking.predict(output, [(96, 128)])
    assert one.boxes.tolist() == [[80, 16, 120, 48]]
    assert one.scores.tolist() == [pytest.approx(0.9)]
    assert one.labels.tolist() == [1]


def test_a_real_network_keeps_what_one_view_is_sure_of():
    settings = RetinaNet(dim=16, depth=0, scales=1, most=7)
    task = RetinaNetTask(build("sasa_nano_conv", 2, settings), ("a", "b"), settings).eval()
    image = torch.rand(2, 3, 64, 80)
    (boxes, _) = DetectViews(task).predict(DetectViews(task)(image), [(64, 80)] * 2, 0.0)
    assert len(boxes.boxes) == 7
    assert (boxes.boxes[:, 2:] <= torch.tensor([80.0, 64])).all()


def test_padding_and_training_are_refused(task):
    with pytest.raises(ValueError, match="without padding"):
        DetectViews(task)(torch.zeros(1, 3, 64, 64), torch.tensor([[64, 50]]))
    with pytest.raises(ValueError, match="train the task itself"):
        DetectViews(task).loss({}, {})

import pytest
import torch
from torch import nn

from saccade.tasks.segment.pixels import likeliest
from saccade.tasks.segment.task import SegmentTask
from saccade.tasks.segment.views import SegmentViews


class Grey(nn.Module):
    """Says 1 where it is bright, by a pixel of four each way."""

    def forward(self, image, coarse=True):
        bright = nn.functional.avg_pool2d(image[:, :1], 4, ceil_mode=True, count_include_pad=False)
        return torch.cat((-bright, bright), 1) * 20 - torch.tensor([-10.0, 10])[:, None, None]


@pytest.mark.parametrize("side", [(48, 64), (45, 63)])
def test_views_agree_about_where_things_are(side):
    task = SegmentTask(Grey(), ("dark", "bright")).eval()
    image = torch.zeros(1, 3, *side)
    image[:, :, 12:28, 40:56] = 1.0
    looking = SegmentViews(task).eval()
    output = looking(image)
    shares = output["logits"].exp().sum(1)
    torch.testing.assert_close(shares, torch.ones_like(shares))
    (labels,) = likeliest(output, [side])
    (plain,) = likeliest(task(image), [side])
    assert labels.shape == side
    both = ((labels == 1) & (plain == 1)).sum() / ((labels == 1) | (plain == 1)).sum()
    assert both > 0.85, "a mirror that is not undone would share nothing"


def test_padding_and_training_are_refused():
    task = SegmentViews(SegmentTask(Grey(), ("dark", "bright")))
    with pytest.raises(ValueError, match="without padding"):
        task(torch.zeros(1, 3, 64, 64), torch.tensor([[64, 50]]))
    with pytest.raises(ValueError, match="train the task itself"):
        task.loss({}, {})

"""A class for every pixel: the loss, whole images and windows."""

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from saccade.models.semantic_fpn import build
from saccade.tasks.segment.task import SegmentTask, starts


class Squares(nn.Module):
    """Logits of each 4 x 4 pixels by their mean colour: what a pixel is does not hang on others."""

    def __init__(self, classes=3):
        super().__init__()
        self.mix = nn.Conv2d(3, classes, 1)

    def forward(self, image, coarse=False):
        assert coarse
        return self.mix(F.avg_pool2d(image, 4, ceil_mode=True))


def test_the_loss_is_cross_entropy_over_labelled_pixels():
    task = SegmentTask(Squares(), ("a", "b", "c"))
    image = torch.randn(2, 3, 30, 45)
    mask = torch.randint(0, 3, (2, 30, 45), dtype=torch.uint8)
    mask[0, :10] = 255
    output = task(image)
    (loss,) = task.loss(output, {"mask": mask}).values()
    loss = loss.detach()
    x = F.interpolate(output["logits"], scale_factor=4, mode="bilinear", align_corners=False)
    nats = -F.log_softmax(x[..., :30, :45], 1)
    known = mask != 255
    picked = nats.gather(1, mask.long().clamp(max=2)[:, None])[:, 0]
    assert float(loss) == pytest.approx(
        float(picked.detach()[known].sum() / mask.numel()), rel=1e-5
    )


def test_parts_of_a_batch_add_up_to_the_whole():
    """However many of a part's pixels have a label."""
    task = SegmentTask(Squares(), ("a", "b", "c"))
    image = torch.randn(4, 3, 32, 32)
    mask = torch.randint(0, 3, (4, 32, 32), dtype=torch.uint8)
    mask[:2, :25] = 255
    mask[3] = 255
    whole = task.loss(task(image), {"mask": mask})["cross_entropy"]
    parts = [
        task.loss(task(image[i : i + 2]), {"mask": mask[i : i + 2]})["cross_entropy"] / 2
        for i in (0, 2)
    ]
    torch.testing.assert_close(sum(parts), whole)


@pytest.mark.parametrize(("H", "W"), [(96, 130), (101, 99), (64, 200)])
@pytest.mark.parametrize("overlap", [0.0, 0.5])
def test_windows_of_what_is_local_are_the_whole(H, W, overlap):
    task = SegmentTask(Squares(), ("a", "b", "c"), window=64, overlap=overlap).eval()
    image = torch.randn(1, 3, H, W)
    with torch.no_grad():
        windowed = task(image)["logits"]
        task.window = None
        torch.testing.assert_close(windowed, task(image)["logits"])


def test_windows_cover_everything_and_overlap_as_asked():
    for length in range(64, 400, 7):
        for overlap in (0.0, 0.3, 0.5):
            at = starts(length, 64, overlap)
            assert at[0] == 0
            assert length - 64 <= at[-1] < length - 64 + 4
            gaps = [b - a for a, b in pairwise(at)]
            assert all(0 < gap <= 64 * (1 - overlap) for gap in gaps)
            assert all(start % 4 == 0 for start in at)


def test_windows_are_only_for_evaluated_images_larger_than_they():
    calls = []

    class Noted(Squares):
        def forward(self, image, coarse=False):
            calls.append(tuple(image.shape[2:]))
            return super().forward(image, coarse)

    task = SegmentTask(Noted(), ("a", "b", "c"), window=64)
    task.train()(torch.randn(1, 3, 100, 100))
    task.eval()(torch.randn(1, 3, 64, 50))
    assert calls == [(100, 100), (64, 50)]
    task(torch.randn(1, 3, 100, 64))
    assert calls[2:] == [(64, 64), (64, 64), (64, 64)]


def test_an_evaluated_image_is_what_it_is_alone():
    """Padding, and who else is in the batch, make no difference; not even at the border."""
    task = SegmentTask(build("linglo_nano", 3, dim=16, inner=32), ("a", "b", "c")).eval()
    images = [torch.randn(3, 50, 64), torch.randn(3, 64, 41), torch.randn(3, 50, 64)]
    batch = torch.stack([F.pad(x, (0, 64 - x.shape[2], 0, 64 - x.shape[1])) for x in images])
    size = torch.tensor([x.shape[1:] for x in images])
    sizes = [tuple(2 * side for side in x.shape[1:]) for x in images]
    with torch.no_grad():
        together = task(batch, size)
        for i, x in enumerate(images):
            alone = task(x[None])
            h, w = alone["logits"].shape[2:]
            torch.testing.assert_close(together["logits"][i, :, :h, :w], alone["logits"][0])
            a, b = (task.predict(o, s)[j] for o, s, j in (
                (together, sizes, i), (alone, sizes[i : i + 1], 0),
            ))  # fmt: skip
            assert (a != b).float().mean() < 1e-3


def test_a_real_net_answers_for_every_pixel():
    task = SegmentTask(build("linglo_nano", 3, dim=16, inner=32), ("a", "b", "c"), window=64).eval()
    with torch.no_grad():
        output = task(torch.randn(2, 3, 75, 90), torch.tensor([[75, 90], [60, 71]]))
        classes = task.predict(output, [(150, 180), (33, 40)])
    assert [tuple(mask.shape) for mask in classes] == [(150, 180), (33, 40)]
    assert task.ids == [0, 1, 2]

import pytest
import torch

from saccade.tasks.views import LEAST, SCALES, views


def test_views_are_sizes_and_mirrors():
    image = torch.rand(2, 3, 50, 70)
    seen = list(views(image))
    assert len(seen) == 2 * len(SCALES)
    assert seen[0][0] is image
    for (plain, first), (mirror, second) in zip(seen[::2], seen[1::2], strict=True):
        assert (first, second) == (False, True)
        assert torch.equal(plain.flip(-1), mirror)
    assert [tuple(view.shape[2:]) for view, _ in seen[::2]] == [(50, 70), (40, 56), (62, 88)]
    assert all(side % 4 == 0 for view, _ in views(image, 4) for side in view.shape[2:])
    assert all(min(view.shape[2:]) >= LEAST for view, _ in views(torch.rand(1, 3, 5, 9)))


def test_a_larger_view_shows_the_same():
    ramp = torch.linspace(0, 1, 64).expand(1, 3, 64, 64)
    for view, mirrored in views(ramp):
        row = view.flip(-1)[0, 0, 0] if mirrored else view[0, 0, 0]
        assert row[len(row) // 4] == pytest.approx(0.25, abs=0.02)

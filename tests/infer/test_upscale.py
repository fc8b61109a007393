"""Pictures in, larger pictures out."""

import numpy as np
import pytest
import torch
from PIL import Image

from saccade.infer.upscale import enlarged, upscaled
from saccade.models.upscaler import Upscaler
from saccade.recipes.recipe import change
from tests.engine.classify_runs import fit
from tests.tasks.upscale.test_upscale import SMALL, stripes


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    data = stripes(tmp_path_factory.mktemp("stripes") / "all")
    recipe = change(SMALL, schedule__epochs=1, loop__evaluate_every=1)
    return fit(recipe, data, tmp_path_factory.mktemp("runs") / "run").folder, data


def test_each_picture_gets_more_pixels(run, tmp_path):
    folder, data = run
    Image.new("L", (13, 7), 99).save(tmp_path / "grey.png")
    (tmp_path / "bad.jpg").write_bytes(b"no picture")
    words = [str(data / "00.png"), *(str(tmp_path / name) for name in ("grey.png", "bad.jpg"))]
    results = dict(upscaled(words, folder, tmp_path / "out"))
    assert "is no readable picture" in results.pop(str(tmp_path / "bad.jpg"))
    for file, result in results.items():
        with Image.open(file) as before, Image.open(result.picture) as after:
            assert after.size == (2 * before.width, 2 * before.height) == result.after
            small = np.asarray(after.resize(before.size, Image.Resampling.BOX), float)
            assert abs(small - np.asarray(before.convert("RGB"), float)).mean() < 12
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["00_x2.png", "grey_x2.png"]


@pytest.mark.parametrize("factor", [2, 3])
def test_windows_give_the_whole_picture(factor):
    """Convolutions see no further than a window's margin, so nothing differs."""
    net = Upscaler(factor, "conv", "shuffle", dim=8, depth=2).eval()
    torch.nn.init.normal_(net.colour.weight)
    image = torch.rand(1, 3, 100, 171)
    with torch.no_grad():
        torch.testing.assert_close(enlarged(net, image, 64), net(image), rtol=0, atol=1e-4)


def test_a_window_too_small_is_refused(run, tmp_path):
    with pytest.raises(ValueError, match="64 pixels wide or more, got 32"):
        next(upscaled([str(run[1])], run[0], tmp_path, window=32))

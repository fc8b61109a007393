"""Pictures in, larger pictures out."""

import numpy as np
import pytest
import torch
from PIL import Image

from saccade.infer import upscale
from saccade.infer.upscale import upscaled
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
    photo = Image.effect_noise((171, 100), 80).convert("RGB")
    cpu = torch.device("cpu")
    whole, parts = (np.asarray(upscale._picture(net, photo, w, cpu), int) for w in (None, 64))
    assert whole.shape == (100 * factor, 171 * factor, 3)
    assert abs(whole - parts).max() <= 1  # the last bit may round otherwise


def test_a_large_picture_is_seen_by_windows_and_one_too_large_is_passed_over(
    run, tmp_path, monkeypatch
):
    sides = []
    monkeypatch.setattr(upscale, "LARGE", 90 * 90)
    monkeypatch.setattr(upscale, "WINDOW", 64)
    monkeypatch.setattr(upscale, "MOST", 300 * 300)
    real = Upscaler.forward

    def forward(net, image):
        sides.append(max(image.shape[2:]))
        return real(net, image)

    monkeypatch.setattr(Upscaler, "forward", forward)
    for name, side in (("small", 90), ("large", 120), ("vast", 151)):
        Image.new("RGB", (side, side), "red").save(tmp_path / f"{name}.png")
    paths = [str(tmp_path / f"{name}.png") for name in ("small", "large", "vast")]
    small, large, vast = (answer for _, answer in upscaled(paths, run[0], tmp_path / "out"))
    assert (small.after, large.after) == ((180, 180), (240, 240))
    assert sides[0] == 90
    assert max(sides[1:]) <= 64
    assert "would have 302 x 302 pixels, at most 90,000 are made" in vast


def test_a_window_too_small_is_refused(run, tmp_path):
    with pytest.raises(ValueError, match="64 pixels wide or more, got 32"):
        next(upscaled([str(run[1])], run[0], tmp_path, window=32))

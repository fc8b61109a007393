import numpy as np
import pytest
import torch

import saccade
from saccade import view
from saccade.layers.qna import LearnedQueryAttention
from saccade.layers.sasa import StandAloneAttention


def test_saliency_of_every_stage_and_head():
    model = saccade.build("linglo_nano").train()
    maps = view.linglo_saliency(model, torch.randn(1, 3, 64, 96))
    shapes = [m.shape for m in view.last_of_each_stage(maps).values()]
    assert shapes == [(1, 32, 48), (2, 16, 24), (4, 8, 12), (4, 4, 6)]
    assert len(maps) == 5
    for heads in maps.values():
        np.testing.assert_allclose(heads.sum((1, 2)), 1, rtol=1e-5)
    assert model.training
    assert not any(m._forward_pre_hooks for m in model.modules())


def test_a_model_without_key_only_attention_is_refused():
    with pytest.raises(ValueError, match="no KeyOnlyAttention"):
        view.linglo_saliency(saccade.build("linglo_nano", mixer="dot"), torch.randn(1, 3, 64, 64))


def test_the_sheet_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    maps = {"stage 1": np.random.rand(2, 4, 6), "stage 2": np.random.rand(3, 2, 3)}
    path = view.picture(np.random.rand(40, 60, 3), maps, tmp_path / "a.png", "title")
    from PIL import Image

    with Image.open(path) as sheet:
        assert sheet.size[0] > 400
        assert np.asarray(sheet.convert("L")).std() > 10


def test_the_maps_that_are_drawn_do_not_repeat_each_other():
    y, x = np.mgrid[0:8, 0:8] / 8.0
    maps = np.stack(
        [1 + 0.01 * x, 1 + x, 1.0 + x, 1 + 2 * y, np.ones((8, 8)), 1 + 2 * y + 0.05 * x]
    )
    chosen = view.most_different(maps, 2)
    assert len(set(chosen) & {1, 2}) == 1
    assert len(set(chosen) & {3, 5}) == 1
    assert view.most_different(maps, 9) == [0, 1, 2, 3, 4, 5]
    assert len(view.most_different(np.zeros((3, 4, 4)), 2)) == 2


def test_windows_side_by_side_are_parted_by_lines_and_hide_the_photo(tmp_path):
    pytest.importorskip("matplotlib")
    from PIL import Image

    tiles, photo = {"stage 1": np.zeros((1, 12, 12))}, np.random.rand(32, 32, 3)
    how = {"side": view.FULL, "tile": {"stage 1": 3}}
    path = view.picture(photo, tiles, tmp_path / "a.png", **how)
    with Image.open(path) as sheet:
        pixels = np.asarray(sheet.convert("L"))
    right = pixels[:, pixels.shape[1] // 2 :]
    inside = right[right.shape[0] // 2 - 300 : right.shape[0] // 2 + 300, 40:600]
    row = inside[np.argsort(inside.mean(1))[len(inside) // 4]]  # between two lines
    crossed = np.flatnonzero(np.diff((row > 120).astype(int)) == 1)
    assert 2 <= len(crossed) <= 4
    assert np.unique(row[row < 60]).size <= 2


# -- QnA ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("stride", "padding"), [(1, 1), (2, 1), (1, 0)])
def test_qna_sum_adds_what_each_pixel_receives(stride, padding):
    H, W, k = 5, 6, 3
    Ho, Wo = ((n + 2 * padding - k) // stride + 1 for n in (H, W))
    weights = torch.rand(Ho, Wo, 2, 3, k, k, dtype=torch.float64)
    expected = np.zeros((2, 3, H, W))
    for i, j, a, b in np.ndindex(Ho, Wo, k, k):
        y, x = i * stride + a - padding, j * stride + b - padding
        if 0 <= y < H and 0 <= x < W:
            expected[:, :, y, x] += weights[i, j, :, :, a, b].numpy()
    got = view.qna_sum(weights, stride, padding, (H, W))
    np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_qna_tiles_lie_side_by_side():
    weights = torch.rand(4, 5, 2, 3, 3, 3)
    tiles = view.qna_tiles(weights)
    assert tiles.shape == (2, 3, 12, 15)
    np.testing.assert_array_equal(tiles[1, 2, 3:6, 12:15], weights[1, 4, 1, 2].numpy())


def test_qna_shows_every_layer_query_and_head():
    model = saccade.build("qna_nano")
    x = torch.randn(1, 3, 64, 80)
    sums, tiles = view.qna_summed_attention(model, x), view.qna_kernels(model, x)
    assert list(sums) == list(tiles)
    assert len(sums) == 6  # a block in stages 1 to 3, and three down-sampling layers
    first = next(iter(sums))
    assert sums[first].shape == (2, 2, 32, 40)
    assert tiles[first].shape == (2, 2, 96, 120)
    # every window gives away one unit, all of it inside the map
    np.testing.assert_allclose(sums[first].sum((2, 3)), 32 * 40, rtol=1e-4)


# -- SASA ---------------------------------------------------------------------------------------


def test_sasa_heat_lies_around_its_pixel():
    weights = torch.arange(1.0, 19).reshape(2, 3, 3)
    heat = view.sasa_heat(weights, (2, 1), (5, 4))
    assert heat.shape == (2, 5, 4)
    np.testing.assert_array_equal(heat[:, 1:4, 0:3], weights.numpy())
    assert heat.sum() == weights.sum()


@pytest.mark.parametrize("at", [(0, 0), (0, 3), (4, 0), (4, 3)])
def test_sasa_heat_is_cut_at_the_border(at):
    weights = torch.rand(5, 5)
    heat = view.sasa_heat(weights, at, (5, 4))
    for i, j in np.ndindex(5, 4):
        a, b = i - at[0] + 2, j - at[1] + 2
        inside = 0 <= a < 5 and 0 <= b < 5
        assert heat[i, j] == (weights[a, b] if inside else 0)


def test_sasa_attention_shows_every_layer_and_head():
    model = saccade.build("sasa_nano", border="mask").train()
    model.backbone.stem.eval()
    x = torch.randn(1, 3, 64, 80)
    pictures = view.sasa_attention(model, x, (40, 70))
    layers = [n for n, m in model.named_modules() if isinstance(m, StandAloneAttention)]
    assert list(pictures) == layers
    first = pictures[layers[0]]
    assert first.shape == (4, 32, 40)
    np.testing.assert_allclose(first.sum((1, 2)), 1, rtol=1e-5)
    rows, cols = np.nonzero(first[0])
    assert (rows.min(), rows.max()) == (20 - 3, 20 + 3)
    assert (cols.min(), cols.max()) == (35 - 3, 35 + 3)
    assert pictures[layers[-1]].shape == (4, 8, 10)  # before its stride
    assert model.training
    assert not model.backbone.stem.training
    assert not any(m._forward_pre_hooks for m in model.modules())


def test_sasa_attention_refuses_in_a_sentence():
    model = saccade.build("sasa_nano")
    with pytest.raises(ValueError, match="64x64 pixels, got at=\\(64, 0\\)"):
        view.sasa_attention(model, torch.randn(1, 3, 64, 64), (64, 0))
    with pytest.raises(ValueError, match="no StandAloneAttention"):
        view.sasa_attention(saccade.build("linglo_nano"), torch.randn(1, 3, 64, 64), (0, 0))


def test_qna_attention_of_one_pixel():
    torch.manual_seed(0)
    model = saccade.build("qna_nano").eval()
    image = torch.randn(1, 3, 64, 96)
    layers = view.watch(model, image, LearnedQueryAttention)
    for at in ((20, 50), (0, 0), (63, 95)):
        maps = view.qna_attention(model, image, at)
        assert maps.keys() == layers.keys()
        for name, heads in maps.items():
            layer, x = layers[name]
            weights = layer.weights(x)[0]
            i, j = at[0] * weights.shape[0] // 64, at[1] * weights.shape[1] // 96
            whole = weights[i, j].sum((-1, -2)).flatten().detach().numpy()
            assert heads.shape == (len(whole), *x.shape[1:3])
            assert (heads.sum((1, 2)) <= whole + 1e-5).all()
            if at == (20, 50):  # no border near
                np.testing.assert_allclose(heads.sum((1, 2)), whole, rtol=1e-5)
                rows, columns = np.nonzero(heads.sum(0))
                assert abs(rows.mean() / x.shape[1] - 20 / 64) < 0.2
                assert abs(columns.mean() / x.shape[2] - 50 / 96) < 0.2
    with pytest.raises(ValueError, match="64x96 pixels"):
        view.qna_attention(model, image, (64, 0))


# -- classes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["linglo_nano", "qna_nano", "sasa_nano"])
def test_evidence_adds_up_to_the_logits(name):
    model = saccade.build(name, num_classes=5).eval()
    torch.nn.init.normal_(model.head.fc.bias)
    image = torch.randn(1, 3, 64, 80)
    maps = view.class_evidence(model, image, [3, 1])
    assert maps.shape == (2, 4, 5)
    with torch.no_grad():
        expected = (model(image)[0] - model.head.fc.bias)[[3, 1]].numpy()
    np.testing.assert_allclose(maps.mean((1, 2)), expected, rtol=1e-4, atol=1e-5)


def test_evidence_needs_a_head_that_averages():
    model = saccade.build("linglo_nano", num_classes=5, global_pool="max")
    with pytest.raises(ValueError, match="must average"):
        view.class_evidence(model, torch.randn(1, 3, 64, 64), [0])
    with pytest.raises(ValueError, match="a classifier of saccade"):
        view.class_evidence(torch.nn.Identity(), torch.randn(1, 3, 64, 64), [0])


def test_stages_one_after_the_other(tmp_path):
    pytest.importorskip("matplotlib")
    from PIL import Image

    maps = {"stage 1": np.random.rand(2, 4, 6), "stage 2": np.random.rand(3, 2, 3)}
    path = view.picture(np.random.rand(40, 60, 3), maps, tmp_path / "a.gif")
    with Image.open(path) as film:
        assert film.n_frames == 2

import numpy as np
import pytest
import torch

import saccade
from saccade import view


def test_saliency_of_every_stage_and_head():
    model = saccade.build("linglo_nano").train()
    maps = view.linglo_saliency(model, torch.randn(1, 3, 64, 96))
    assert [m.shape for m in maps.values()] == [(1, 32, 48), (2, 16, 24), (4, 8, 12), (4, 4, 6)]
    for heads in maps.values():
        np.testing.assert_allclose(heads.sum((1, 2)), 1, rtol=1e-5)
    assert model.training
    assert not any(m._forward_pre_hooks for m in model.modules())


def test_a_model_without_key_only_attention_is_refused():
    with pytest.raises(ValueError, match="no key-only attention"):
        view.linglo_saliency(saccade.build("linglo_nano", mixer="dot"), torch.randn(1, 3, 64, 64))


def test_the_sheet_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    maps = {"stage 1": np.random.rand(2, 4, 6), "stage 2": np.random.rand(3, 2, 3)}
    path = view.picture(np.random.rand(40, 60, 3), maps, tmp_path / "a.png", "title")
    from PIL import Image

    with Image.open(path) as sheet:
        assert sheet.size[0] > 400
        assert np.asarray(sheet.convert("L")).std() > 10


def test_summed_attention_of_every_stage_query_and_head():
    model = saccade.build("qna_nano").train()
    maps = view.qna_summed_attention(model, torch.randn(1, 3, 64, 96))
    assert {name: m.shape for name, m in maps.items()} == {
        "stage 1, query 1": (2, 32, 48),
        "stage 1, query 2": (2, 32, 48),
        "stage 2, query 1": (4, 16, 24),
        "stage 2, query 2": (4, 16, 24),
        "stage 3, query 1": (8, 8, 12),
        "stage 3, query 2": (8, 8, 12),
        "stage 4, query 1": (16, 8, 12),  # its one QnA layer is the way down: it reads stage 3
        "stage 4, query 2": (16, 8, 12),
    }
    for name, heads in maps.items():  # each window gives one in all
        windows = heads[0].size if "stage 4" not in name else 4 * 6
        np.testing.assert_allclose(heads.sum((1, 2)), windows, rtol=1e-4)
    assert model.training
    assert not any(m._forward_pre_hooks for m in model.modules())


def test_windows_that_overlap_add_up():
    p = torch.rand(2, 3, 2, 2, 3, 3, 3)  # B Ho Wo L h k k
    total = torch.zeros(2, 2, 3, 5, 4)
    for i in range(3):
        for j in range(2):
            for y in range(3):
                for x in range(3):
                    row, column = 2 * i + y - 1, 2 * j + x - 1
                    if 0 <= row < 5 and 0 <= column < 4:
                        total[:, :, :, row, column] += p[:, i, j, :, :, y, x]
    torch.testing.assert_close(view._summed(p, (5, 4), 2, 1), total)


def test_kernels_lie_side_by_side():
    model = saccade.build("qna_nano").eval()
    maps = view.qna_kernels(model, torch.randn(1, 3, 64, 96))
    assert maps["stage 1, query 1"].shape == (2, 3 * 32, 3 * 48)
    inside = maps["stage 2, query 2"].reshape(4, 16, 3, 24, 3)
    np.testing.assert_allclose(inside.sum((2, 4)), 1, rtol=1e-5)  # one softmax a window
    p = torch.rand(1, 2, 2, 1, 1, 3, 3)
    sheet = view._side_by_side(p)[0, 0, 0]
    assert torch.equal(sheet[:3, 3:], p[0, 0, 1, 0, 0])
    assert torch.equal(sheet[3:, :3], p[0, 1, 0, 0, 0])


def test_a_model_without_learned_queries_is_refused():
    with pytest.raises(ValueError, match="no learned-query attention"):
        view.qna_kernels(saccade.build("linglo_nano"), torch.randn(1, 3, 64, 64))

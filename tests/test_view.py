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

import numpy as np
import pytest

from saccade.face.attention import Attention


def test_maps_by_layer_and_a_sheet_of_the_last_of_each_stage(tmp_path):
    pytest.importorskip("matplotlib")
    chance = np.random.default_rng(0)
    layers = ["stages.0.blocks.0.mix", "stages.0.blocks.1.mix", "stages.1.blocks.0.mix"]
    maps = {layer: chance.random((6, 4, 4)) for layer in layers}
    labels = {layer: [f"head {i}" for i in range(6)] for layer in layers}
    one = Attention(maps, labels, "weights", chance.random((16, 16, 3)))
    assert list(one) == layers
    assert one[layers[1]] is maps[layers[1]]
    few, every = one.draw(), one.draw(heads=None)
    assert few.height > 0
    assert few.size != every.size
    assert one.draw(tmp_path / "a.png").is_file()

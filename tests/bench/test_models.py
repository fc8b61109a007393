import pytest
import timm

from saccade.bench.models import PEERS, peers, with_peers
from saccade.bench.run import compare
from saccade.models import zoo


def test_models_of_ours_and_of_timm():
    cases = peers(["linglo_nano", "resnet18"], size=32)
    assert [row.name for row in compare(cases, rounds=1).rows] == ["linglo_nano", "resnet18"]
    assert cases["linglo_nano"].f.fused
    gradients = peers(["linglo_nano"], size=32, batch=2, train=True)["linglo_nano"].call(True)()
    assert len(gradients) > 50


def test_unknown_names_are_refused_with_the_nearest():
    for name, meant in (("linglo_b7", "linglo_b0"), ("reznet18", "resnet18")):
        with pytest.raises(ValueError, match=f"no model named '{name}'; did you mean '{meant}'"):
            peers([name])


def test_sizes_that_a_model_does_not_take_are_reasons():
    cases = peers(["halonet26t", "linglo_nano"], size=20)
    assert cases["halonet26t"].absent == "takes no 20 x 20 pixels: its own size is 256 x 256"
    assert "at least 32x32 pixels" in cases["linglo_nano"].absent


def test_a_model_of_fixed_size_is_made_for_the_size():
    cases = peers(["swin_tiny_patch4_window7_224"], size=64)
    assert not cases["swin_tiny_patch4_window7_224"].absent


def test_every_family_has_peers_that_exist():
    assert with_peers(["linglo_b0", "resnet18"]) == ["linglo_b0", "resnet18", "pvt_v2_b0"]
    assert with_peers(["linglo_b2"])[1] == "pvt_v2_b2"
    assert with_peers(["sasa_resnet50", "resnet50"]) == [
        "sasa_resnet50", "resnet50", "halonet50ts",
    ]  # fmt: skip
    for name in zoo.names():
        assert len(with_peers([name])) > 1
    for names in PEERS.values():
        assert all(timm.is_model(name) for name in names)

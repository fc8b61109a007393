"""RT-DETR through transformers: any backbone and size, weights drawn well, what is refused."""

import pytest
import torch

import saccade
from saccade.models import rtdetr
from saccade.models.describe import describe
from saccade.recipes import detect

transformers = pytest.importorskip("transformers")
SMALL = {"dim": 32, "decoder": 2, "heads": 2, "hidden": 32, "queries": 7, "expand": 0.5}


def small(name="linglo_nano", **changes):
    torch.manual_seed(0)
    return rtdetr.build(name, 3, **{**SMALL, **changes})


@pytest.mark.parametrize(
    ("name", "levels"), [("linglo_nano", 2), ("qna_nano", 3), ("sasa_nano", 1), ("resnet18", 2)]
)
def test_any_backbone_and_any_size(name, levels):
    net = small(name, levels=levels)
    assert isinstance(net.detr, transformers.RTDetrForObjectDetection)
    assert net.stride == net.backbone.strides[-1]
    labels = [{"class_labels": torch.tensor([1]), "boxes": torch.tensor([[0.5, 0.5, 0.2, 0.3]])}]
    output = net(torch.randn(2, 3, 70, 100), labels * 2)
    assert output["logits"].shape == (2, 7, 3)
    assert output["aux_boxes"].shape == (2, 2, 7, 4)  # the encoder's and the first layer's
    assert output["shaken_boxes"].shape[:2] == (2, 2)
    sum(x.square().sum() for x in output.values() if isinstance(x, torch.Tensor)).backward()
    silent = [n for n, p in net.named_parameters() if p.grad is None]
    # earlier maps' norms rest, and of timm's backbones what follows the last map
    assert not [n for n in silent if not n.startswith("detr.model.backbone.model.norms")], silent


def test_the_image_reaches_the_decoder_from_the_first_step():
    """transformers draws BatchNorm's weights from N(0, 0.01): then maps hardly reach it."""
    net, x = small().eval(), torch.randn(2, 3, 64, 96)
    spread = net.detr.model(net.filled(x)).encoder_last_hidden_state[0].std().item()
    fresh = transformers.RTDetrForObjectDetection(net.detr.config).eval()
    with torch.no_grad():
        theirs = fresh.model(net.filled(x)).encoder_last_hidden_state[0].std().item()
    assert spread > 0.02
    assert theirs < 0.01 * spread
    for norm in net.detr.model.encoder.modules():
        if isinstance(norm, torch.nn.BatchNorm2d):
            assert (norm.weight == 1).all()
    scores = net(x)["aux_logits"].sigmoid()
    assert scores.mean().item() < 0.05  # each of them begins near rtdetr.PRIOR


def test_an_image_with_fewer_places_than_queries():
    net = small(levels=1, queries=50)
    labels = [{"class_labels": torch.tensor([1]), "boxes": torch.tensor([[0.5, 0.5, 0.2, 0.3]])}]
    output = net(torch.randn(1, 3, 40, 33), labels)
    assert output["logits"].shape == (1, 3 * 3, 3)
    assert output["shaken"]["dn_num_split"][1] == 9


def test_positions_are_transformers_own():
    (layer,) = small().detr.model.encoder.aifi
    from transformers.models.rt_detr.modeling_rt_detr import RTDetrSinePositionEmbedding

    sizes = {"width": 7, "height": 5, "device": torch.device("cpu"), "dtype": torch.float32}
    theirs = RTDetrSinePositionEmbedding(embed_dim=32, temperature=10000)(**sizes)
    torch.testing.assert_close(layer.position_embedding(**sizes), theirs, atol=1e-5, rtol=1e-5)


def test_an_image_is_filled_up_and_boxes_are_shares_of_that():
    net = small().eval()
    assert net.whole(70, 100) == (80, 112)
    x = torch.randn(1, 3, 70, 100)
    filled = torch.zeros(1, 3, 80, 112)
    filled[..., :70, :100] = x
    with torch.no_grad():
        assert torch.equal(net(x)["boxes"], net(filled)["boxes"])


def test_saved_and_loaded_it_is_the_same(tmp_path):
    net = small(levels=2, points=2, frozen=True).eval()
    again = saccade.load(saccade.save(net, tmp_path / "net.safetensors", classes=["a", "b", "c"]))
    x = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(again(x)["boxes"], net(x)["boxes"])
    assert describe(again) == describe(net)


def test_it_starts_from_a_classifier():
    classifier = saccade.build("linglo_nano", num_classes=4)
    net = small()
    net.backbone_from(classifier)
    theirs = classifier.backbone.state_dict()
    mine = net.backbone.body.state_dict()
    assert all(torch.equal(mine[key], theirs[key]) for key in mine)
    depths = net.group_matcher()
    assert "stem" in depths


def test_batch_norm_of_the_backbone_learns_unless_it_is_frozen():
    for frozen in (False, True):
        net = small("sasa_nano", levels=2, frozen=frozen).train()
        before = {k: v.clone() for k, v in net.backbone.named_buffers() if "running" in k}
        net(torch.randn(2, 3, 64, 64))
        after = dict(net.backbone.named_buffers())
        moved = [k for k, v in before.items() if not torch.equal(v, after[k])]
        assert bool(moved) != frozen


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"heads": 3}, "heads must divide dim"),
        ({"levels": 0}, "levels are the last maps of the backbone"),
        ({"levels": 9}, "try levels=1"),
    ],
)
def test_bad_input(words, says):
    with pytest.raises(ValueError, match=says):
        small(**words)


def test_a_recipe_needs_some_of_each():
    for name in ("queries", "decoder", "levels", "points"):
        with pytest.raises(ValueError, match=name):
            detect.RTDetr(**{name: 0})

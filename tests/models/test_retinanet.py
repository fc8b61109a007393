"""RetinaNet on any backbone: counts, shapes, weights to start from, and the graph it exports."""

import json

import pytest
import timm
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

import saccade
from saccade.layers.sasa import StandAloneAttention
from saccade.models import detr, retinanet
from saccade.models.describe import timm_config
from saccade.paper.count import params
from saccade.recipes.detect import RetinaNet

EXTRAS = {"linglo_b0": 9_537_268, "linglo_b1": 10_249_972, "linglo_b2": 10_249_972}


@pytest.mark.parametrize("name", EXTRAS)
def test_what_stands_on_the_backbone_counts_exactly(name):
    with torch.device("meta"):
        net = retinanet.build(name, 80)
    assert params(net) - params(net.backbone) == EXTRAS[name]


@pytest.mark.parametrize("coarse", ["C5", "P5"])
@pytest.mark.parametrize("name", ["linglo_nano", "qna_nano", "sasa_nano", "resnet18"])
def test_any_backbone_gives_a_prediction_a_place_and_all_learns(name, coarse):
    net = retinanet.build(name, 3, dim=32, depth=1, coarse=coarse, scales=2)
    fine = net.backbone.strides[-3]
    assert net.strides == tuple(fine * 2**i for i in range(5))
    logits, offsets = net(torch.randn(2, 3, 70, 100))
    sizes = [(-(-70 // s), -(-100 // s)) for s in net.strides]
    assert [tuple(x.shape) for x in logits] == [(2, 6 * 3, *size) for size in sizes]
    assert [tuple(x.shape) for x in offsets] == [(2, 6 * 4, *size) for size in sizes]
    sum(x.square().sum() for x in (*logits, *offsets)).backward()
    silent = [n for n, p in net.named_parameters() if p.grad is None]
    # C3 to C5 are what it stands on; a norm of an earlier map rests
    assert all(n.startswith(("backbone.norms.0", "backbone.body.layer")) for n in silent), silent


@pytest.mark.parametrize("maps", [1, 2])
def test_a_pyramid_on_fewer_maps_has_more_coarser_levels(maps, tmp_path):
    net = retinanet.build("linglo_nano", 2, dim=32, depth=1, maps=maps).eval()
    fine = net.backbone.strides[-maps]
    assert net.strides == tuple(fine * 2**i for i in range(5))
    image = torch.randn(1, 3, 70, 100)
    logits, _ = net(image)
    sizes = [(-(-70 // s), -(-100 // s)) for s in net.strides]
    assert [tuple(x.shape[2:]) for x in logits] == sizes
    saccade.save(net, tmp_path / "net.safetensors")
    assert all(map(torch.equal, saccade.load(tmp_path / "net.safetensors")(image)[0], logits))


def test_maps_too_fine_for_objects_are_left_out_unless_asked_for():
    net = retinanet.build("linglo_cifar", 2, dim=32, depth=1)  # strides 2, 4, 8
    assert net.strides == (4, 8, 16, 32, 64)
    assert retinanet.build("linglo_cifar", 2, dim=32, depth=1, maps=3).strides[0] == 2
    written = {"name": "linglo_cifar", "classes": 2, "settings": {"dim": 32}}  # before `maps`
    assert retinanet.as_written(written)["settings"]["maps"] == 3
    assert RetinaNet.as_written({"dim": 32})["maps"] == 3


def test_p6_comes_from_where_it_is_said():
    for coarse in ("C5", "P5"):
        net = retinanet.build("linglo_nano", 2, dim=32, depth=0, coarse=coarse).eval()
        x = torch.randn(1, 3, 64, 64)
        before = net(x)[0]
        net.pyramid.smooth[2].bias.data += 1.0  # P5 moves; C5 does not
        after = net(x)[0]
        assert not torch.equal(before[2], after[2])
        assert torch.equal(before[3], after[3]) == (coarse == "C5")


def test_new_layers_are_drawn_as_asked():
    x = retinanet.build("linglo_b0", 80, dim=64)
    bound = (6 / (9 * 64 + 9 * 64)) ** 0.5
    for conv in (*x.pyramid.smooth, *x.classify.mix):
        assert conv.weight.abs().max() <= bound
        assert conv.weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.05)
    assert x.classify.last.bias.sigmoid().mean().item() == pytest.approx(0.01)
    y = retinanet.build("linglo_nano", 3, dim=64, init="retinanet", norm=True)
    assert y.classify.mix[0].weight.std().item() == pytest.approx(0.01, rel=0.05)
    assert y.classify.mix[0].bias is None
    assert x.classify.mix[0].bias is not None
    attended = retinanet.build(
        "linglo_nano", 3, dim=64, depth=1, heads="attention", fpn="attention"
    )
    bound = (6 / (64 + 64)) ** 0.5
    assert attended.classify.mix[0].value.weight.abs().max() <= bound


def test_a_nano_detector_is_small():
    net = retinanet.build("linglo_nano", 2, dim=64, depth=2)
    assert params(net) < 1_200_000


def test_starting_from_a_classifier():
    classifier = saccade.build("linglo_nano", num_classes=5)
    net = retinanet.build("linglo_nano", 2, dim=32, depth=1)
    net.backbone_from(classifier)
    for name, tensor in classifier.backbone.state_dict().items():
        assert torch.equal(net.backbone.body.state_dict()[name], tensor)
    with pytest.raises(ValueError, match=r"set model\.name=qna_nano"):
        net.backbone_from(saccade.build("qna_nano"))


def test_starting_from_another_detector():
    for name in ("qna_nano", "resnet18"):
        source = retinanet.build(name, 7, dim=16, depth=0)
        for net in (
            retinanet.build(name, 2, dim=32, depth=1),
            detr.build(name, 2, dim=32, encoder=1, decoder=1, heads=2, hidden=32, queries=4),
        ):
            net.backbone_from(source)
            again = retinanet.build(name, 2, dim=32, depth=1)
            again.backbone_from(net)
            for key, tensor in source.backbone.body.state_dict().items():
                if not key.endswith("num_batches_tracked"):
                    assert torch.equal(again.backbone.body.state_dict()[key], tensor), key


def test_settings_come_by_a_recipe_a_dict_or_by_name():
    settings = RetinaNet(dim=32, depth=1, scales=2, norm=True)
    words = {word: getattr(settings, word) for word in retinanet.WORDS}
    for net in (
        retinanet.build("linglo_nano", 2, settings),
        retinanet.build("linglo_nano", 2, words),
        retinanet.build("linglo_nano", 2, **words),
    ):
        assert net.arguments["settings"] == words
        assert (net.anchors, net.pyramid.dim, len(net.classify.mix)) == (6, 32, 1)
    # the backbone's heads are not the detector's
    net = retinanet.build("linglo_nano", 2, settings, heads=(1, 2, 4, 7), drop_path_rate=0.3)
    assert net.backbone.body.heads == (1, 2, 4, 7)


def test_a_card_and_depths_as_timm_wants_them():
    from timm.optim import param_groups_layer_decay

    for name in ("qna_nano", "resnet18"):
        net = retinanet.build(name, 2, dim=32, depth=1)
        assert timm_config(net)["architecture"] == name
        assert len(timm_config(net)["mean"]) == 3
        groups = param_groups_layer_decay(net, layer_decay=0.5)
        scales = {p: g["lr_scale"] for g in groups for p in g["params"]}
        assert all(scales[p] == 1.0 for p in net.classify.parameters())
        early = next(net.backbone.body.parameters())
        assert scales[early] < 0.2
    net = retinanet.build("qna_nano", 2, dim=32, depth=1)
    assert net.no_weight_decay() <= dict(net.named_parameters()).keys()
    assert net.no_weight_decay()


def test_a_backbone_without_a_pyramid_is_refused():
    class Flat(nn.Module):
        widths, strides = (8, 8, 8), (16, 16, 16)

    with pytest.raises(ValueError, match=r"3 maps, .* got strides=\(16, 16, 16\)"):
        retinanet.RetinaNetDetector(Flat(), 2)
    with pytest.raises(ValueError, match=r"maps lies in 1\.\.3, got maps=4"):
        retinanet.build("qna_nano", 2, maps=4)
    with pytest.raises(TypeError, match="no argument named 'windows'; did you mean 'window'"):
        retinanet.build("qna_nano", 2, windows=3)


def test_fusing_changes_nothing_but_the_count():
    net = retinanet.build("linglo_nano", 2, dim=32, depth=1).eval()
    x = torch.randn(1, 3, 64, 96)
    with torch.no_grad():
        before, count = net(x)[0], params(net)
        after = net.fuse()(x)[0]
    assert params(net) < count
    for a, b in zip(before, after, strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["linglo_nano", pytest.param("sasa_nano", marks=pytest.mark.slow)])
def test_raw_outputs_export_for_any_multiple_of_32(name, untyped):
    heads = "attention" if name == "sasa_nano" else "conv"
    net = retinanet.build(name, 2, dim=32, depth=1, heads=heads).eval()
    h, w = (torch.export.Dim(word, min=3, max=64) for word in "hw")
    sizes = ({2: 32 * h, 3: 32 * w},)
    graph = torch.export.export(net, (torch.randn(1, 3, 96, 128),), dynamic_shapes=sizes).module()
    for size in ((96, 128), (192, 160)):
        x = torch.randn(1, 3, *size)
        for ours, theirs in zip(net(x), graph(x), strict=True):
            for a, b in zip(ours, theirs, strict=True):
                torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


def test_timm_still_gives_whole_models():
    """Building a detector leaves the registry as it was."""
    retinanet.build("linglo_nano", 2, dim=32, depth=1)
    assert timm.create_model("linglo_nano", num_classes=3).head.fc.out_features == 3


# -- what attention sees beyond a map's edge ------------------------------------------------------


def attentions(net):
    above = {name: m for name, m in net.named_modules() if isinstance(m, StandAloneAttention)}
    return {name: m for name, m in above.items() if not name.startswith("backbone.")}


def attentive(**words):
    return retinanet.build(
        "linglo_nano", 3, dim=64, depth=1, fpn="attention", heads="attention", **words
    )


@pytest.mark.parametrize(("words", "whole"), [({}, True), ({"border": "zero"}, False)])
def test_a_corner_of_every_level_attends_to_its_own_pixels(words, whole):
    layers = attentions(attentive(**words))
    assert len(layers) == 9  # five in the pyramid, two in each head
    for layer in layers.values():
        weights = layer.weights(torch.randn(1, layer.query.in_channels, 8, 8), [(0, 0)])
        on_the_map = weights[..., 3:, 3:].sum((3, 4))
        assert torch.allclose(on_the_map, torch.ones(1), atol=1e-5) == whole


def test_a_border_by_name_is_that_of_sasas_backbone_too():
    net = retinanet.build("sasa_nano", 3, dim=64, depth=1, heads="attention", border="zero")
    borders = {m.border for m in net.modules() if isinstance(m, StandAloneAttention)}
    assert borders == {"zero"}


def test_files_state_the_border_and_those_that_do_not_have_zeros(tmp_path):
    """A file of an earlier version gives the boxes that it gave then."""
    now, then = tmp_path / "now.safetensors", tmp_path / "then.safetensors"
    net = attentive(border="zero").eval()
    saccade.save(net, then)
    tensors, header = _read(then)
    assert header["model"]["settings"].pop("border") == "zero"  # as it was written before
    save_file(tensors, then, {"saccade": json.dumps(header)})
    saccade.save(attentive(), now)
    assert _read(now)[1]["model"]["settings"]["border"] == "mask"
    image = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        for ours, theirs in zip(saccade.load(then)(image)[0], net(image)[0], strict=True):
            torch.testing.assert_close(ours, theirs)
    assert {m.border for m in attentions(saccade.load(then)).values()} == {"zero"}
    assert {m.border for m in attentions(saccade.load(now)).values()} == {"mask"}


def _read(path):
    with safe_open(path, "pt") as file:
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        return tensors, json.loads(file.metadata()["saccade"])

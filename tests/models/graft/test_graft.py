"""Our layers in other people's networks: which places, what it costs, where it begins, and back."""

import copy
import json
import struct

import numpy as np
import pytest
import timm
import torch
import torchvision
from torch import nn

import saccade
from saccade.layers import (
    RPCPE,
    KeyOnlyAttention,
    LearnedQueryAttention,
    LearnedQueryUpsampling,
    StandAloneAttention,
)
from saccade.models.graft import several
from saccade.models.graft.convolution import begin_qna, begin_sasa
from saccade.models.graft.site import GroupedLinear, alike, apart

VIT = {"depth": 2, "embed_dim": 48, "num_heads": 3, "img_size": 32, "patch_size": 8}
SWIN = {"embed_dim": 24, "depths": (2, 2), "num_heads": (2, 4), "img_size": 56, "num_classes": 5}


CONVNEXT = {"depths": (1, 1, 1, 1), "dims": (16, 32, 32, 32)}


def stirred(net):
    """With weights that leave no part without effect."""
    torch.manual_seed(0)
    with torch.no_grad():
        for p in net.parameters():
            if p.numel() < 2 or p.std() < 1e-3:
                p.add_(torch.randn_like(p) * 0.1)
    return net


def vit(name="vit_tiny_patch16_224", **more):
    return timm.create_model(name, num_classes=5, **{**VIT, **more})


def swin(**more):
    return timm.create_model("swin_tiny_patch4_window7_224", **{**SWIN, **more})


def pvt():
    return timm.create_model(
        "pvt_v2_b0", depths=(1, 1, 1, 1), embed_dims=(16, 32, 40, 64), num_classes=5
    )


def convnext(**more):
    return timm.create_model("convnext_atto", num_classes=5, **CONVNEXT, **more)


def torchvision_vit():
    return torchvision.models.VisionTransformer(32, 8, 2, 3, 48, 96, num_classes=5)


def torchvision_swin():
    return torchvision.models.SwinTransformer(
        [4, 4], 24, [2, 2], [2, 4], [7, 7], num_classes=5, stochastic_depth_prob=0.0
    )


def torchvision_convnext():
    setting = torchvision.models.convnext.CNBlockConfig
    return torchvision.models.ConvNeXt([setting(16, 32, 1), setting(32, None, 1)], num_classes=5)


FAMILIES = {
    "vit": (vit, 32),
    "deit": (lambda: vit("deit_tiny_distilled_patch16_224"), 32),
    "pvt": (pvt, 64),
    "swin": (swin, 56),
    "convnext": (convnext, 64),
    "convnext_nchw": (lambda: convnext(conv_mlp=True), 64),
    "torchvision_vit": (torchvision_vit, 32),
    "torchvision_swin": (torchvision_swin, 56),
    "torchvision_convnext": (torchvision_convnext, 64),
}


def image(side):
    torch.manual_seed(1)
    return torch.randn(2, 3, side, side)


def learns(net, x):
    """Every trainable parameter that belongs to a layer of ours has a finite gradient."""
    net.train()(x).square().mean().backward()
    ours = [
        p for m in net.modules() if type(m).__module__.startswith("saccade.layers")
        for p in m.parameters()
    ]  # fmt: skip
    assert ours
    assert all(p.grad is None or p.grad.isfinite().all() for p in ours)
    assert sum(p.grad is not None for p in ours) > len(ours) / 2


@pytest.mark.parametrize("family", FAMILIES)
def test_rp_cpe_goes_into_the_feed_forwards(family):
    make, side = FAMILIES[family]
    net, x = stirred(make()).eval(), image(side)
    with torch.no_grad():
        want = net(x)
    names = {*net.state_dict()}
    report = saccade.graft(net, "rp-cpe", keep=True, image=(3, side, side))
    with torch.no_grad():
        torch.testing.assert_close(net(x), want, atol=1e-5, rtol=1e-4)
    blocks = sum(isinstance(m, RPCPE) for m in net.modules())
    assert len(report.changes) == blocks > 1
    assert names <= {*net.state_dict()}, "all weights keep their names"
    assert report.params[1] > report.params[0]
    assert report.macs is not None
    assert report.macs[1] > report.macs[0]
    assert all(c.difference < 1e-5 for c in report.changes)
    with torch.no_grad():
        for m in net.modules():
            if isinstance(m, RPCPE):
                m.branches[0].norm.weight.fill_(1)
        assert not torch.allclose(net(x), want, atol=1e-4), "the positions have an effect"
    learns(net, x)


@pytest.mark.parametrize("family", [f for f in FAMILIES if "convnext" not in f])
@pytest.mark.parametrize(
    ("what", "kind"), [("key-only", KeyOnlyAttention), ("qna", LearnedQueryAttention)]
)
def test_attention_becomes_ours(family, what, kind):
    make, side = FAMILIES[family]
    net, x = stirred(make()).eval(), image(side)
    with torch.no_grad():
        want = net(x)
    report = saccade.graft(net, what, image=(3, side, side))
    with torch.no_grad():
        y = net(x)
    assert y.shape == want.shape
    assert y.isfinite().all()
    assert not torch.allclose(y, want)
    assert sum(isinstance(m, kind) for m in net.modules()) == len(report.changes) > 1
    assert not any("attn_mask" in name for name in net.state_dict())
    learns(net, x)
    with pytest.raises(ValueError, match="no place for"):
        saccade.graft(make(), what, keep=True, where="nowhere")
    with pytest.raises(ValueError, match="compares tokens in pairs; leave keep out"):
        saccade.graft(make(), what, keep=True)


CONVNETS = {
    "resnet": lambda: timm.create_model("resnet10t", num_classes=5),
    "regnet": lambda: timm.create_model("regnetx_002", num_classes=5),
    "mobilenet": lambda: timm.create_model("mobilenetv2_035", num_classes=5),
    "torchvision_resnet": lambda: torchvision.models.resnet18(num_classes=5),
    "torchvision_mobilenet": lambda: torchvision.models.mobilenet_v3_small(num_classes=5),
}


@pytest.mark.parametrize("name", CONVNETS)
@pytest.mark.parametrize(
    ("what", "kind"), [("sasa", StandAloneAttention), ("qna", LearnedQueryAttention)]
)
def test_convolutions_become_attention(name, what, kind):
    net, x = CONVNETS[name]().eval(), image(48)
    shapes = {p: m.weight.shape for p, m in net.named_modules() if isinstance(m, nn.BatchNorm2d)}
    three = {
        p: m for p, m in net.named_modules()
        if isinstance(m, nn.Conv2d) and m.kernel_size == (3, 3) and m.in_channels > 3
    }  # fmt: skip
    options = {"window": 3} if what == "sasa" else {}
    report = saccade.graft(net, what, image=(3, 48, 48), **options)
    with torch.no_grad():
        assert net(x).isfinite().all()
    assert {c.path for c in report.changes} == {*three}
    for path, conv in three.items():
        new = net.get_submodule(path)
        assert isinstance(new, kind)
        assert new.stride == conv.stride[0]
        assert new.value.weight.shape[1] == conv.in_channels // conv.groups
    norms = {p: m.weight.shape for p, m in net.named_modules() if isinstance(m, nn.BatchNorm2d)}
    assert norms == shapes
    learns(net, x)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("groups", [1, 2, 8])
@pytest.mark.parametrize("bias", [False, True])
def test_learned_queries_begin_as_the_convolution_where_they_are_wide_enough(stride, groups, bias):
    torch.manual_seed(0)
    conv = nn.Conv2d(8, 16, 3, stride, 1, groups=groups, bias=bias)
    net = nn.Sequential(nn.Conv2d(3, 8, 1), conv)
    width = 9 * 16
    heads = 9 * groups if groups < 8 else 16 * 9
    saccade.graft(net, "qna", keep=True, width=width, heads=heads, image=(3, 9, 9))
    x = torch.randn(1, 8, 9, 9)
    with torch.no_grad():
        want, y = conv(x), net[1](x)
    inner = slice(1, -1)  # at the border shares are divided by fewer
    torch.testing.assert_close(y[..., inner, inner], want[..., inner, inner], atol=1e-4, rtol=1e-3)


def test_attention_begins_as_a_convolution_of_its_kind():
    """Every head with shares of its own over the places, which a depth-wise blur has."""
    torch.manual_seed(0)
    conv = nn.Conv2d(8, 8, 3, padding=1, groups=8)
    blur = torch.rand(8, 1, 3, 3)
    with torch.no_grad():
        conv.weight.copy_(blur * torch.randn(8, 1, 1, 1))
    how = {"table": True, "position": "none", "groups": 8, "bias": True}
    new = alike(StandAloneAttention(8, heads=8, window=7, **how), conv)
    begin_sasa(new, conv)
    x = torch.randn(1, 8, 12, 12)
    torch.testing.assert_close(
        new(x)[..., 1:-1, 1:-1], conv(x)[..., 1:-1, 1:-1], atol=2e-2, rtol=2e-2
    )


def test_what_is_kept_is_reported():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 16, 1), nn.Conv2d(16, 16, 3, padding=1))
    old = copy.deepcopy(net[1])
    (change,) = saccade.graft(net, "qna", keep=True, image=(3, 8, 8)).changes
    assert change.difference == pytest.approx(apart(net[1], old, (16, 14, 14)))
    assert 0.2 < change.difference < 1
    wide = LearnedQueryAttention(16, 18, width=144, out_dim=16, bias=True, layout="NCHW")
    begin_qna(wide, old)
    assert apart(wide, old, (16, 14, 14)) < change.difference


UPS = {
    "bilinear": nn.Upsample(scale_factor=2, mode="bilinear"),
    "nearest": nn.Upsample(scale_factor=3),
    "transposed": nn.ConvTranspose2d(8, 6, 2, 2),
    "transposed_overlapping": nn.ConvTranspose2d(8, 6, 4, 2, 1, bias=False),
}


@pytest.mark.parametrize("name", UPS)
def test_up_sampling_becomes_learned_queries(name):
    torch.manual_seed(0)
    old, x = UPS[name], torch.randn(2, 3, 5, 7)
    net = nn.Sequential(nn.Conv2d(3, 8, 1), copy.deepcopy(old)).eval()
    want = net(x)
    report = saccade.graft(net, "qna-up", keep=True, image=(3, 8, 8))
    assert isinstance(net[1], LearnedQueryUpsampling)
    y = net(x)
    assert y.shape == want.shape
    if "transposed" not in name:
        torch.testing.assert_close(y, want, atol=1e-3, rtol=1e-3)
    assert report.changes[0].difference < (1.1 if "transposed" in name else 1e-3)


def test_a_bilinear_transposed_convolution_is_met():
    conv = nn.ConvTranspose2d(4, 4, 4, 2, 1, bias=False)
    line = torch.tensor([0.25, 0.75, 0.75, 0.25])
    with torch.no_grad():
        conv.weight.copy_(torch.eye(4)[:, :, None, None] * line[:, None] * line)
    net = nn.Sequential(conv)
    saccade.graft(net, "qna-up", keep=True, image=(4, 6, 6))
    x = torch.randn(1, 4, 6, 6)
    torch.testing.assert_close(
        net(x)[..., 2:-2, 2:-2], conv(x)[..., 2:-2, 2:-2], atol=1e-3, rtol=1e-3
    )


def test_a_unet_of_smp():
    smp = pytest.importorskip("segmentation_models_pytorch")
    net = smp.Unet("resnet18", encoder_weights=None, classes=2, decoder_channels=(32, 16, 8, 8, 8))
    net, x = net.eval(), image(64)
    want = net(x)
    report = saccade.graft(net, "qna-up", keep=True, image=(3, 64, 64))
    assert len(report.changes) == 5
    y = net(x)
    torch.testing.assert_close(y, want, atol=1e-2, rtol=1e-2)
    learns(net, x)
    saccade.graft(net, "sasa", where="encoder.layer4", window=3, image=(3, 64, 64))
    assert net(x).shape == y.shape


# -- where ----------------------------------------------------------------------------------------


def test_where_names_modules_what_they_are_in_or_patterns():
    def paths(where):
        net = timm.create_model("resnet10t", num_classes=5)
        return [c.path for c in saccade.graft(net, "sasa", where, window=3).changes]

    assert paths("layer4") == ["layer4.0.conv1", "layer4.0.conv2"]
    assert paths(["layer4.0.conv2"]) == ["layer4.0.conv2"]
    assert paths("layer[12].*.conv1") == ["layer1.0.conv1", "layer2.0.conv1"]
    assert paths(["layer1", "layer4.0.conv1"])[2:] == ["layer4.0.conv1"]


def test_the_convolution_that_reads_the_image_is_left_unless_named():
    def net():
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1))

    report = saccade.graft(net(), "sasa", window=3, heads=2, image=(3, 8, 8))
    assert report.skipped == [("0", "reads the image")]
    assert "0  left: reads the image" in str(report)
    assert "MACs" in str(report)
    report = saccade.graft(net(), "sasa", "0", window=3, heads=2, image=(3, 8, 8))
    assert [c.path for c in report.changes] == ["0"]


def test_what_cannot_be_is_a_sentence():
    net = vit()
    for what, where, options, words in (
        ("sasa", None, {}, "VisionTransformer has no place for 'sasa'; it takes 3x3 convolutions"),
        ("key-only", "blocks.7", {}, "'key-only' at 'blocks.7'; there are blocks.0.attn, blocks.1"),
        ("keyonly", None, {}, "did you mean 'key-only'"),
        ("key-only", None, {"windows": 3}, "has no option 'windows'; it takes heads"),
        ("key-only", None, {"heads": 5}, "heads must divide dim"),
        ("key-only", None, {"heads": "two"}, "heads is a whole number"),
        ("rp-cpe", None, {"image": (224,)}, "image is \\(channels, height, width\\)"),
    ):  # fmt: skip
        before = {*net.state_dict()}
        with pytest.raises(ValueError, match=words):
            saccade.graft(net, what, where, **options)
        assert {*net.state_dict()} == before, "nothing was changed"
    net = timm.create_model("resnet10t", num_classes=5)
    with pytest.raises(ValueError, match="heads must divide"):
        saccade.graft(net, "sasa", heads=3 * 2**4, window=3)
    assert not any(isinstance(m, StandAloneAttention) for m in net.modules())
    odd = nn.Sequential(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 3), nn.Conv2d(8, 8, 3, 3, 1))
    with pytest.raises(ValueError, match="does not keep the map's size"):
        saccade.graft(odd, "sasa", image=(3, 8, 8))


def test_dtype_device_and_mode_are_the_old_ones():
    net = nn.Sequential(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 3, padding=1)).double().eval()
    saccade.graft(net, "sasa", heads=2, window=3, image=(3, 8, 8))
    assert net[1].value.weight.dtype == torch.float64
    assert not net[1].training
    with torch.device("meta"):
        net = vit()
    saccade.graft(net, "key-only")
    assert all(p.is_meta for p in net.parameters())


def test_grouped_linear_is_a_grouped_convolution():
    torch.manual_seed(0)
    layer, conv = GroupedLinear(6, 9, 3, True), nn.Conv2d(6, 9, 1, groups=3)
    with torch.no_grad():
        conv.weight.copy_(layer.weight[..., None, None]), conv.bias.copy_(layer.bias.normal_())
    x = torch.randn(2, 4, 5, 6)
    torch.testing.assert_close(layer(x), conv(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1))


# -- afterwards -----------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["vit", "pvt", "swin", "convnext"])
def test_saved_and_loaded(family, tmp_path):
    make, side = FAMILIES[family]
    net = make()
    about = {"vit": VIT, "swin": SWIN, "convnext": CONVNEXT}
    about["pvt"] = {"depths": (1, 1, 1, 1), "embed_dims": (16, 32, 40, 64)}
    net.options = {k: v for k, v in about[family].items() if k != "num_classes"}
    saccade.graft(net, "rp-cpe", branches=2)
    if family != "convnext":
        saccade.graft(net, "key-only", where=["*0.attn"])
    file = saccade.save(net.eval(), tmp_path / "grafted.safetensors")
    other, x = saccade.load(file), image(side)
    assert other.grafts == net.grafts
    with torch.no_grad():
        torch.testing.assert_close(other(x), net(x))
    again = saccade.save(other, tmp_path / "again.safetensors")
    assert again.read_bytes() == file.read_bytes()


def test_a_grafted_convnet_is_saved_and_loaded(tmp_path):
    net = CONVNETS["regnet"]().eval()
    saccade.graft(net, "sasa", "s1", keep=True, window=3)
    saccade.graft(net, "qna", "s2", keep=True)
    other = saccade.load(saccade.save(net, tmp_path / "net.safetensors"))
    with torch.no_grad():
        torch.testing.assert_close(other(image(48)), net(image(48)))


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"what": "os.system", "where": ["blocks.0"], "options": {}}, "no layer 'os.system'"),
        ({"what": "key-only", "where": ["blocks.0"], "options": {"layout": "x"}}, "no option"),
        ({"what": "key-only", "where": "blocks", "options": {}}, "a list of names"),
        ({"what": "key-only", "where": ["blocks.0"]}, "what, where and options"),
        ({"what": "qna", "where": ["blocks.0"], "options": {"window": 10**9}}, "whole number"),
        ({"what": "qna", "where": ["__class__"], "options": {}}, "no place"),
        ("key-only", "what, where and options"),
    ],
)
def test_a_strangers_graft_is_refused(record, words, tmp_path):
    net = vit()
    net.options = VIT
    file = saccade.save(net, tmp_path / "net.safetensors")
    content = file.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    about = json.loads(header["__metadata__"]["saccade"])
    about["model"]["grafts"] = [record]
    header["__metadata__"]["saccade"] = json.dumps(about)
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + length :])
    with pytest.raises(ValueError, match=words):
        saccade.load(file)


def test_several_grafts_in_words():
    net = vit()
    first, second = several(net, "key-only where=blocks.0; rp-cpe keep=true branches=2")
    assert [c.path for c in first.changes] == ["blocks.0.attn"]
    assert second.changes[0].difference < 1e-6
    assert [g["what"] for g in net.grafts] == ["key-only", "rp-cpe"]
    for text, words in (
        ("", "no layer ''"), ("rp-cpe; ", "no layer ''"), ("key-only heads", "NAME=VALUE"),
        ("rp-cpe keep=2", "keep is true or false"), ("rp-cpe image=3", "the model's own"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=words):
            several(vit(), text)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vit", "swin", "pvt", "regnet"])
def test_grafted_models_compile_and_export(name, tmp_path):
    from saccade.export import prepared, runner, to_onnx

    make, side = FAMILIES[name] if name in FAMILIES else (CONVNETS[name], 64)
    net = make().eval()
    saccade.graft(net, "qna")
    if name in FAMILIES:
        saccade.graft(net, "rp-cpe")
    x = image(side)
    with torch.no_grad():
        want = net(x)
        torch.testing.assert_close(torch.compile(net)(x), want, atol=1e-4, rtol=1e-3)
        program = torch.onnx.export(net, (x,), dynamo=True)
        program.save(tmp_path / "net.onnx")
    import onnxruntime

    session = onnxruntime.InferenceSession(tmp_path / "net.onnx")
    (y,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    np.testing.assert_allclose(y, want.numpy(), atol=1e-3, rtol=1e-3)
    if name in ("regnet", "pvt"):
        ready = prepared(net)
        to_onnx(ready, tmp_path / "ours.onnx", {})
        have = runner(tmp_path / "ours.onnx")(x.numpy())["logits"]
        np.testing.assert_allclose(have, want.numpy(), atol=1e-3, rtol=1e-3)

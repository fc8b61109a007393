"""SASA's networks: what its arguments change, and what they leave alone."""

import pytest
import torch
from torch import nn

import saccade
from saccade.layers.sasa import StandAloneAttention
from saccade.layers.sasa_stem import AttentionStem, ConvStem
from saccade.models.sasa import LAYERS, SASA, VARIANTS
from saccade.paper.count import flops, params
from saccade.paper.sasa import flops as printed_flops

small = {"depths": (1, 1, 1, 1), "widths": (8, 8, 16, 16), "heads": 2, "window": 3, "expand": 2}


def meta(**options):
    with torch.device("meta"):
        return SASA(depths=LAYERS[50], stem="conv", **options)


@pytest.mark.parametrize(
    "options",
    [
        {"position": "absolute"},
        {"position": "none"},
        {"content": False},
        {"border": "zero"},
        {"shared": False},
        {"scale": True},
        {"locality": 2.0},
        {"attend": "24"},
        {"attend": ""},
        {"stem": "attention"},
        {"stem": "attention-pointwise"},
        {"stem": "attention-conv"},
        {"stem": "attention", "stem_stride": 2, "mixtures": 2, "border": "zero"},
    ],
    ids=str,
)
def test_every_argument_gives_a_network_that_learns(options):
    backbone = SASA(**{**small, "stem": "conv", **options})
    maps = backbone(torch.randn(2, 3, 45, 38))
    for x, width, stride in zip(maps, backbone.widths, backbone.strides, strict=True):
        assert x.shape == (2, width, -(-45 // stride), -(-38 // stride))
    sum(x.square().mean() for x in maps).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in backbone.parameters())


def kinds(backbone):
    return [
        "".join("ca"[attends(block.mix)] for block in stage.blocks) for stage in backbone.stages
    ]


def attends(mix):
    assert isinstance(mix, StandAloneAttention | nn.Conv2d)
    return isinstance(mix, StandAloneAttention)


def test_attend_says_which_stages_do():
    backbone = meta(attend="34")
    assert kinds(backbone) == ["ccc", "cccc", "aaaaaa", "aaa"]
    assert kinds(meta(attend="")) == ["c" * n for n in LAYERS[50]]
    assert kinds(meta()) == ["a" * n for n in LAYERS[50]]


def test_strided_blocks_attend_at_full_resolution():
    for i, stage in enumerate(meta().stages):
        strides = [block.mix.stride for block in stage.blocks]
        assert strides == [2 if i else 1] + [1] * (len(strides) - 1)
        shortcut = stage.blocks[0].shortcut[0]
        assert shortcut.stride == ((2, 2) if i else (1, 1))
        assert all(isinstance(block.shortcut, nn.Identity) for block in stage.blocks[1:])


def test_the_networks_of_table_1():
    for n, depths in LAYERS.items():
        for name, stem, kind in (
            (f"sasa_resnet{n}", AttentionStem, "a"),
            (f"sasa_resnet{n}_convstem", ConvStem, "a"),
            (f"sasa_resnet{n}_conv", ConvStem, "c"),
        ):
            with torch.device("meta"):
                backbone = VARIANTS[name]()
            assert type(backbone.stem) is stem
            assert kinds(backbone) == [kind * depth for depth in depths]
            assert backbone.depths == depths
            assert backbone.widths == (256, 512, 1024, 2048)
            assert backbone.strides == (4, 8, 16, 32)


@pytest.mark.parametrize(
    ("name", "flops_said", "params_said"),
    [
        ("sasa_resnet26", 4.738, 10.324),
        ("sasa_resnet38_convstem", 5.727, 14.173),
        ("sasa_resnet50_conv", 8.240, 25.557),
        ("sasa_resnet50", 7.222, 18.008),
    ],
)
def test_counts_to_three_digits(name, flops_said, params_said):
    """The claims hold the printed digits; these hold the convention behind them."""
    with torch.device("meta"):
        model = saccade.build(name)
    assert round(params(model) / 1e6, 3) == params_said
    assert round(printed_flops(model, 224) / 1e9, 3) == flops_said


def test_counting_leaves_the_forms_alone():
    model = saccade.build("sasa_nano", stem="attention")
    forms = [m.form for m in model.modules() if hasattr(m, "form")]
    flops(model, (64, 64))
    assert [m.form for m in model.modules() if hasattr(m, "form")] == forms
    assert set(forms) == {"merged"}


def test_nano_is_small():
    with torch.device("meta"):
        backbone = VARIANTS["sasa_nano"]()
    assert 0.4e6 < params(backbone) < 0.6e6
    assert backbone.strides == (2, 4, 8, 16)


def test_checkpointing_counts_a_batch_once():
    """The recomputed forward must not move BatchNorm's running statistics a second time."""
    model = saccade.build("sasa_nano", num_classes=5).train()
    state = {k: v.clone() for k, v in model.state_dict().items()}
    x = torch.randn(2, 3, 32, 32)

    def statistics():
        model.load_state_dict(state)
        model(x).sum().backward()
        return {n: b.clone() for n, b in model.named_buffers()}

    plain = statistics()
    assert any(not torch.equal(b, state[n]) for n, b in plain.items())
    model.set_grad_checkpointing()
    for n, b in statistics().items():
        assert torch.equal(b, plain[n]), n
    assert all(m.momentum == 0.1 for m in model.modules() if isinstance(m, nn.BatchNorm2d))


def test_all_forms_make_the_same_network():
    model = saccade.build("sasa_nano", num_classes=5).double().eval()
    x = torch.randn(1, 3, 41, 50, dtype=torch.float64)
    with torch.no_grad():
        y = model(x)
        for form in ("unfolded", "shifted", "tiled"):
            for module in model.modules():
                if isinstance(module, StandAloneAttention):
                    module.backend = form
            torch.testing.assert_close(model(x), y, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"stem": "patch"}, "stem must be one of .* got stem='patch'"),
        ({"attend": "45"}, "attend lists the stages that do, .* got attend='45'"),
        ({"depths": (1, 1)}, "one entry per stage is needed"),
        ({"window": 4}, "window must be odd"),
        ({"border": "wrap"}, "border must be one of"),
        ({"heads": 16}, "even head width|heads must divide"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(options, says):
    with pytest.raises(ValueError, match=says):
        SASA(**{**small, **options})


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"stem": "attention", "stem_stride": 4}], ids=str)
def test_onnx_computes_the_same(options, untyped, tmp_path):
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    model = saccade.build("sasa_nano", num_classes=5, **options).eval()
    size = torch.export.Dim.DYNAMIC
    program = torch.onnx.export(
        model, (torch.randn(2, 3, 80, 80),), dynamo=True, verbose=False,
        dynamic_shapes=({0: size, 2: size, 3: size},),
    )  # fmt: skip
    program.save(tmp_path / "nano.onnx")
    session = runtime.InferenceSession(tmp_path / "nano.onnx")
    for shape in [(2, 3, 80, 80), (1, 3, 64, 64), (3, 3, 97, 61), (1, 3, 160, 224)]:
        x = torch.randn(shape)
        (y,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        torch.testing.assert_close(torch.from_numpy(y), model(x).detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("options", "least", "most"), [({}, 1, 1), ({"border": "zero"}, 0, 0.9)])
def test_a_corner_attends_to_pixels_of_the_map_unless_zeros_are_asked_for(options, least, most):
    attention = saccade.build("sasa_nano", **options).backbone.stages[0].blocks[0].mix
    weights = attention.weights(torch.randn(1, 16, 8, 8), [(0, 0)])  # B h 1 k k
    on_the_map = weights[..., 3:, 3:].sum((3, 4))
    assert (on_the_map > least - 1e-5).all()
    assert on_the_map.mean() < most + 1e-5


def test_pairs_off_the_map_cost_nothing_where_they_are_masked():
    with torch.device("meta"):
        masked, zeros = (
            StandAloneAttention(16, heads=2, window=5, border=border) for border in ("mask", "zero")
        )
    places = [sum(0 <= i + u < 6 for u in range(-2, 3)) for i in range(6)]
    pairs, products = sum(places) ** 2, 3 * 16 * 2
    difference = flops(zeros, (6, 6), 16) - flops(masked, (6, 6), 16)
    assert difference == products * (6 * 6 * 25 - pairs)


def test_a_layout_says_which_blocks_attend():
    model = saccade.build("sasa_cifar", num_classes=10).backbone
    kinds = [[type(block.mix) is StandAloneAttention for block in s.blocks] for s in model.stages]
    assert kinds == [[False, True]] * 3
    maps = model(torch.zeros(1, 3, 32, 32))
    assert [m.shape[1:3] for m in maps] == [(128, 16), (192, 8), (256, 4)]
    for layout in (("CA", "CA", "C"), ("CA", "CX", "CA"), ("CA", "CA")):
        with pytest.raises(ValueError, match="a letter, A or C, for each block"):
            saccade.build("sasa_cifar", layout=layout)
    with pytest.raises(ValueError, match="one entry per stage"):
        saccade.build("sasa_cifar", steps=(2, 2))

"""One set of tests over every variant: timm's protocol, the compilers, the rest of the world."""

import math

import pytest
import timm
import torch
from timm.layers import get_notrace_functions, get_notrace_modules
from timm.optim import param_groups_layer_decay
from torchvision.models.feature_extraction import create_feature_extractor, get_graph_node_names

import saccade
from saccade.models import zoo

NAMES = saccade.names()
SMALL = saccade.names("*_nano")
# Rows of ablation tables, and deeper siblings: one argument away from a variant that is tested.
ROWS = {n for p in ("sasa_resnet38*", "sasa_resnet50*", "qna_table*") for n in saccade.names(p)}


def over(names, slow):
    return pytest.mark.parametrize(
        "name", [pytest.param(n, marks=pytest.mark.slow if n in slow else ()) for n in names]
    )


every = over(NAMES, slow=ROWS)
every_but_mostly_slow = over(NAMES, slow=set(NAMES) - set(SMALL))
small = pytest.mark.parametrize("name", SMALL)


def image(side=64, batch=2, chans=3):
    return torch.randn(batch, chans, side, side)


# -- timm's protocol --------------------------------------------------------------------------


def test_timm_lists_us():
    assert set(NAMES) <= set(timm.list_models())
    assert timm.list_models("linglo_b?") == ["linglo_b0", "linglo_b1", "linglo_b2"]


@every
def test_every_parameter_learns(name):
    model = timm.create_model(name, num_classes=42).train()
    y = model(image(48))
    assert y.shape == (2, 42)
    y.square().mean().backward()
    silent = [n for n, p in model.named_parameters() if p.grad is None]
    assert not silent


@every_but_mostly_slow
def test_the_card_tells_the_truth(name):
    with torch.device("meta"):
        model = timm.create_model(name, device="meta", dtype=torch.float32).eval()
    timm_config, state = model.default_cfg, model.state_dict()
    assert timm_config["classifier"] + ".weight" in state
    assert timm_config["first_conv"] + ".weight" in state
    x = torch.empty(1, *timm_config["input_size"], device="meta")
    features = model.forward_features(x)
    assert features.shape[1:] == (model.num_features, *timm_config["pool_size"])
    assert model.forward_head(features, pre_logits=True).shape == (1, model.head_hidden_size)
    assert timm.data.resolve_model_data_config(model)["input_size"] == timm_config["input_size"]
    # without a classifier, without pooling, and back, on the same device and in the same dtype
    model.reset_classifier(0)
    assert model(x).shape == (1, model.num_features)
    model.reset_classifier(0, "")
    assert model(x).shape == features.shape
    model.to(torch.float64).reset_classifier(7, "max")
    fc = model.get_classifier()
    assert fc.weight.shape == (7, model.num_features)
    assert (fc.weight.device.type, fc.weight.dtype) == ("meta", torch.float64)


@every
def test_features_only(name):
    model = timm.create_model(name, features_only=True, out_indices=(1, -1)).eval()
    with torch.no_grad():
        maps = model(image())
    assert [x.shape[1] for x in maps] == model.feature_info.channels()
    assert [math.ceil(64 / r) for r in model.feature_info.reduction()] == [x.shape[2] for x in maps]


@small
def test_features_only_drops_what_it_does_not_need(name):
    whole = timm.create_model(name)
    first = timm.create_model(name, features_only=True, out_indices=(0,))
    assert sum(p.numel() for p in first.parameters()) < sum(p.numel() for p in whole.parameters())
    sum(x.square().mean() for x in first(image())).backward()
    assert all(p.grad is not None for p in first.parameters())


@small
def test_forward_intermediates(name):
    model = timm.create_model(name).eval()
    x = image()
    with torch.no_grad():
        final, maps = model.forward_intermediates(x)
        torch.testing.assert_close(final, model.forward_features(x), rtol=1e-5, atol=1e-8)
        early = model.forward_intermediates(
            x, indices=[0, 1], stop_early=True, intermediates_only=True
        )
    assert len(maps) == len(model.feature_info)
    for a, b in zip(early, maps, strict=False):
        assert torch.equal(a, b)
    with pytest.raises(ValueError, match="NCHW"):
        model.forward_intermediates(x, output_fmt="NLC")


@small
@pytest.mark.parametrize("chans", [1, 4])
def test_other_channels_and_pooling(name, chans):
    model = timm.create_model(name, in_chans=chans, global_pool="catavgmax", num_classes=3)
    assert model(image(chans=chans)).shape == (2, 3)


@small
def test_drop_path_rate_reaches_the_blocks(name):
    model = timm.create_model(name, drop_path_rate=0.5)
    rates = [m.drop_prob for m in model.modules() if isinstance(m, timm.layers.DropPath)]
    assert max(rates) == pytest.approx(0.5)


@every_but_mostly_slow
def test_checkpointing_changes_no_gradient(name):
    model = saccade.build(name, num_classes=5, drop_path_rate=0.0).train()
    x = image(batch=2)
    state = {k: v.clone() for k, v in model.state_dict().items()}

    def gradients():
        model.load_state_dict(state)
        model.zero_grad()
        model(x).square().sum().backward()
        return {n: p.grad.clone() for n, p in model.named_parameters()}

    plain = gradients()
    model.set_grad_checkpointing()
    for n, g in gradients().items():
        assert torch.equal(g, plain[n]), n


@every
def test_layers_form_groups_for_layer_decay(name):
    with torch.device("meta"):
        model = saccade.build(name)
    groups = param_groups_layer_decay(model, layer_decay=0.5)
    grouped = [p for group in groups for p in group["params"]]
    assert {id(p) for p in grouped} == {id(p) for p in model.parameters()}
    scale = {id(p): group["lr_scale"] for group in groups for p in group["params"]}
    blocks = [
        scale[id(next(block.parameters()))]
        for stage in model.backbone.stages
        for block in stage.blocks
    ]
    assert blocks == sorted(blocks)
    assert len(set(blocks)) == len(blocks)
    decayed = {n for n, _ in model.named_parameters()} - model.no_weight_decay()
    assert len(decayed) == len(list(model.parameters())) - len(model.no_weight_decay())


@every_but_mostly_slow
def test_fx_traces_to_the_same_function(name, untyped):
    model = saccade.build(name).eval()
    options = {
        "leaf_modules": get_notrace_modules(),
        "autowrap_functions": get_notrace_functions(),
        "param_shapes_constant": True,
    }
    _, nodes = get_graph_node_names(model, tracer_kwargs=options)
    traced = create_feature_extractor(model, [nodes[-1]], tracer_kwargs=options)
    x = image(48, batch=1)
    with torch.no_grad():
        assert torch.equal(traced(x)[nodes[-1]], model(x))


@every_but_mostly_slow
def test_weights_are_drawn_anew_after_the_meta_device(name):
    model = saccade.build(name, device="meta", dtype=torch.float64, num_classes=5)
    assert {p.device.type for p in model.parameters()} == {"meta"}
    model.to_empty(device="cpu")
    with torch.no_grad():
        for t in (*model.parameters(), *model.buffers()):
            if t.is_floating_point():
                t.fill_(float("nan"))
    model.init_weights()
    fresh = saccade.build(name, num_classes=5)
    for (n, p), q in zip(model.named_parameters(), fresh.parameters(), strict=True):
        assert p.isfinite().all(), n
        if p.numel() > 1000:
            assert p.std().item() == pytest.approx(q.std().item(), rel=0.25, abs=1e-6), n
    assert model(image().double()).isfinite().all()


# -- compilers --------------------------------------------------------------------------------


@small
def test_export_with_any_batch_height_and_width(name, untyped):
    model = saccade.build(name, num_classes=5).eval()
    size = torch.export.Dim.DYNAMIC
    with torch.no_grad():
        program = torch.export.export(
            model, (image(80),), dynamic_shapes=({0: size, 2: size, 3: size},)
        )
        for shape in [(2, 3, 80, 80), (1, 3, 64, 64), (3, 3, 97, 61), (1, 3, 160, 224)]:
            x = torch.randn(shape)
            torch.testing.assert_close(program.module()(x), model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.slow  # tests/models/test_attributed.py compiles a nano, too
@pytest.mark.parametrize("name", ["linglo_nano", "qna_nano", "sasa_nano"])
def test_compiles_as_one_graph(name, untyped):
    model = saccade.build(name, num_classes=5).eval()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    for side in (64, 96):
        x = image(side)
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
    model.train()
    compiled(x).square().mean().backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.slow
@every
def test_compiled_code_computes_the_same(name, untyped):
    torch._dynamo.reset()
    model = saccade.build(name, num_classes=5, drop_path_rate=0.0).eval()
    x = image()
    torch.testing.assert_close(
        torch.compile(model, fullgraph=True)(x), model(x), rtol=1e-3, atol=1e-4
    )


# -- the rest of the world ----------------------------------------------------------------------


@small
def test_transformers_takes_it_as_a_backbone(name):
    transformers = pytest.importorskip("transformers")
    config = transformers.TimmBackboneConfig(backbone=name, use_pretrained_backbone=False)
    backbone = transformers.TimmBackbone(config)
    maps = backbone(image()).feature_maps
    assert maps[-1].shape[1] == zoo.build(name).num_features


@small
def test_segmentation_models_take_it_as_an_encoder(name):
    smp = pytest.importorskip("segmentation_models_pytorch")
    model = smp.Unet(
        f"tu-{name}",
        encoder_weights=None,
        classes=4,
        encoder_depth=4,
        decoder_channels=(32, 16, 8, 8),
    )
    assert model.eval()(image(128)).shape == (2, 4, 128, 128)


# -- names ----------------------------------------------------------------------------------------


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match=r"no model named 'linglo_b9'; did you mean 'linglo_b0'?"):
        saccade.build("linglo_b9")


def test_an_unknown_argument_is_refused_with_the_nearest():
    with pytest.raises(TypeError, match=r"no argument named 'layouts'; did you mean 'layout'?"):
        saccade.build("linglo_nano", layouts="CHHH")


def test_names_by_pattern():
    assert saccade.names("linglo_b?") == ["linglo_b0", "linglo_b1", "linglo_b2"]
    assert saccade.names("nothing*") == []


def test_a_model_of_three_stages_gives_three_maps():
    model = timm.create_model("linglo_cifar", features_only=True).eval()
    assert [x.shape[2] for x in model(torch.zeros(1, 3, 32, 32))] == [16, 8, 4]

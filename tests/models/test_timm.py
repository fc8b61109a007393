"""What timm's own tests ask of every model, where `test_zoo` does not ask it yet.

`test_zoo` has the gradients of all parameters, the card, reset_classifier, features at chosen
stages, layer decay, checkpointing and tracing with timm's leaves. TorchScript compilation is not
here: PyTorch has retired it.
"""

import math

import pytest
import timm
import torch
from timm.models import GraphExtractNet
from torchvision.models.feature_extraction import get_graph_node_names

import saccade
from saccade import weights

NAMES = saccade.names()
FEW = [*saccade.names("*_nano"), "linglo_b0", "qna_t", "sasa_resnet26"]
every_mostly_slow = pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in FEW else pytest.mark.slow) for n in NAMES]
)


def size(model, most):
    """The card's input size, at most so many pixels on a side."""
    C, *sides = model.default_cfg["input_size"]
    return (C, *(min(side, most) for side in sides))


@every_mostly_slow
def test_forward_at_the_size_of_the_card(name):
    model = timm.create_model(name).eval()
    with torch.no_grad():
        y = model(torch.randn(1, *model.default_cfg["input_size"]))
    assert y.shape == (1, 1000)
    assert y.isfinite().all()


@every_mostly_slow
def test_backward_reaches_every_number(name):
    model = timm.create_model(name, num_classes=42).train()
    y = model(torch.randn(2, *size(model, 96)))
    y.mean().backward()
    assert y.shape == (2, 42)
    assert y.isfinite().all()
    for n, p in model.named_parameters():
        assert p.grad is not None, n
        assert p.grad.shape == p.shape, n
        assert p.grad.isfinite().all(), n


@every_mostly_slow
def test_the_head_can_be_taken_apart(name):
    model = timm.create_model(name, num_classes=7).eval()
    x = torch.randn(1, *size(model, 64))
    with torch.no_grad():
        features = model.forward_features(x)
        logits, pooled = model.forward_head(features), model.forward_head(features, pre_logits=True)
        assert torch.equal(model(x), logits)
        # The head is one kernel, which adds in an order of its own: that of torch's linear layer is
        # its library's, and no kernel can repeat it.
        assert (model.get_classifier()(pooled) - logits).abs().max() < 1e-5 * logits.abs().max()
        model.reset_classifier(0)
        assert torch.equal(model(x), pooled)
        model.reset_classifier(0, "")
        assert torch.equal(model(x), features)
        model.reset_classifier(3, "avg")
        assert model(x).shape == (1, 3)
    bare = timm.create_model(name, num_classes=0, global_pool="").eval()
    with torch.no_grad():
        assert bare(x).shape == features.shape


@every_mostly_slow
@pytest.mark.parametrize("kind", ["getter", "fx", None])
def test_features_of_all_stages(name, kind, untyped):
    options = {} if kind is None else {"feature_cls": kind}
    model = timm.create_model(name, features_only=True, **options).eval()
    channels, reductions = model.feature_info.channels(), model.feature_info.reduction()
    assert len(channels) >= 3  # models of small images have three stages
    side = 96
    with torch.no_grad():
        maps = model(torch.randn(1, 3, side, side))
    assert [tuple(m.shape) for m in maps] == [
        (1, c, math.ceil(side / r), math.ceil(side / r))
        for c, r in zip(channels, reductions, strict=True)
    ]
    assert all(m.isfinite().all() for m in maps)


@every_mostly_slow
def test_intermediates_are_the_features(name):
    model = timm.create_model(name).eval()
    features = timm.create_model(name, features_only=True, feature_cls="getter").eval()
    features.load_state_dict(
        {f"model.{k}": v for k, v in model.state_dict().items() if not k.startswith("head.")},
        strict=False,
    )
    x = torch.randn(1, *size(model, 64))
    with torch.no_grad():
        final, maps = model.forward_intermediates(x, norm=True)
        torch.testing.assert_close(final, model.forward_features(x))
        for got, want in zip(features(x), maps, strict=True):
            torch.testing.assert_close(got, want)
        last = model.forward_intermediates(x, indices=2, intermediates_only=True)
        assert len(last) == 2
        stages = model.prune_intermediate_layers([0, 1], prune_head=True)
        assert stages == [0, 1]
        early = model.forward_intermediates(x, indices=stages, intermediates_only=True)
    assert [tuple(m.shape) for m in early] == [tuple(m.shape) for m in maps[:2]]


@every_mostly_slow
def test_a_traced_graph_computes_and_learns(name, untyped):
    model = timm.create_model(name, num_classes=5, drop_path_rate=0.0).eval()
    x = torch.randn(2, *size(model, 64))
    train_nodes, eval_nodes = get_graph_node_names(
        model, tracer_kwargs={"leaf_modules": list(timm.layers.get_notrace_modules()),
                              "autowrap_functions": list(timm.layers.get_notrace_functions())}
    )  # fmt: skip
    assert train_nodes[-1] == eval_nodes[-1]
    traced = GraphExtractNet(model, [eval_nodes[-1]])
    with torch.no_grad():
        assert torch.equal(traced(x), model(x))
    traced.train()
    traced(x).square().mean().backward()
    assert {n for n, p in traced.named_parameters() if p.grad is None} == set()


@every_mostly_slow
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_models_are_built_in_a_dtype(name, dtype):
    model = timm.create_model(name, dtype=dtype, num_classes=5).eval()
    assert {p.dtype for p in model.parameters()} == {dtype}
    with torch.no_grad():
        y = model(torch.randn(1, *size(model, 64)).to(dtype))
    assert y.dtype == dtype
    assert y.isfinite().all()


@every_mostly_slow
def test_autocast_in_training(name):
    model = timm.create_model(name, num_classes=5).train()
    with torch.autocast("cpu", torch.bfloat16):
        y = model(torch.randn(2, *size(model, 64)))
    y.float().square().mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("tag", weights.classifiers())
def test_trained_weights_load_for_other_channels_and_classes(tag):
    model = timm.create_model(tag, pretrained=True, in_chans=1, num_classes=5).eval()
    C, H, W = model.pretrained_cfg["input_size"]
    with torch.no_grad():
        assert model(torch.randn(1, 1, H, W)).shape == (1, 5)
    features = timm.create_model(tag, pretrained=True, features_only=True).eval()
    with torch.no_grad():
        maps = features(torch.randn(1, C, H, W))
    assert [x.shape[1] for x in maps] == list(model.backbone.widths)

"""DETR through transformers: padding changes nothing, its API stays whole, weights drawn well."""

import builtins
import subprocess
import sys

import pytest
import timm
import torch

import saccade
from saccade.models import detr
from saccade.models.describe import timm_config
from saccade.paper.count import params
from saccade.recipes import detect

transformers = pytest.importorskip("transformers")
SMALL = {"dim": 32, "encoder": 1, "decoder": 2, "heads": 4, "hidden": 64, "queries": 5}


def small(name="qna_nano", **changes):
    return detr.build(name, 3, **{**SMALL, **changes})


def padded(images):
    """A batch as the loader pads it, and the sizes inside."""
    sizes = torch.tensor([x.shape[1:] for x in images])
    H, W = (-(-int(n) // 32) * 32 for n in sizes.amax(0))
    batch = torch.zeros(len(images), 3, H, W)
    for row, x in zip(batch, images, strict=True):
        row[:, : x.shape[1], : x.shape[2]] = x
    return batch, sizes


@pytest.mark.parametrize("name", ["qna_nano", "linglo_nano", "sasa_nano", "resnet18"])
def test_padding_does_not_change_an_images_result(name):
    net = small(name).eval()
    images = [torch.randn(3, *size) for size in ((50, 70), (97, 64), (50, 70), (128, 131))]
    batch, sizes = padded(images)
    with torch.no_grad():
        together = net(batch, sizes)
        assert together["aux_logits"].shape == (1, 4, 5, 4)
        for i, image in enumerate(images):
            alone = net(image[None])
            for key, axis in (("logits", 0), ("boxes", 0), ("aux_logits", 1), ("aux_boxes", 1)):
                torch.testing.assert_close(
                    together[key].select(axis, i), alone[key].select(axis, 0), atol=1e-5, rtol=1e-5
                )


def test_padding_would_matter_without_that():
    """transformers' own encoder shows the backbone the padding; the test above can fail."""
    net = small().eval()
    image = torch.randn(3, 50, 70)
    batch, sizes = padded([image, torch.randn(3, 96, 96)])
    theirs = transformers.DetrForObjectDetection(net.detr.config).eval()
    theirs.load_state_dict(net.detr.state_dict())
    with torch.no_grad():
        alone = net(image[None])["logits"][0]
        torch.testing.assert_close(theirs(image[None]).logits[0], alone, atol=1e-5, rtol=1e-5)
        padded_logits = theirs(batch, pixel_mask=detr.masked(batch, sizes).long()).logits[0]
    assert (padded_logits - alone).abs().max() > 1e-3


def test_the_whole_of_transformers_is_there(tmp_path):
    net = small().eval()
    assert isinstance(net.detr, transformers.DetrForObjectDetection)
    assert net.detr.config.num_labels == 3
    net.detr.save_pretrained(tmp_path)
    again = transformers.DetrForObjectDetection.from_pretrained(tmp_path).eval()
    x = torch.randn(1, 3, 64, 96)
    with torch.no_grad():
        torch.testing.assert_close(again(x).logits, net(x)["logits"])
    # its own call, with labels, and on padded batches
    batch, sizes = padded([torch.randn(3, 50, 70), torch.randn(3, 96, 96)])
    labels = [
        {"class_labels": torch.tensor([1]), "boxes": torch.tensor([[0.5, 0.5, 0.2, 0.2]])}
    ] * 2
    net.detr.set_attn_implementation("eager")  # which transformers wants for attention maps
    output = net.detr(
        batch, pixel_mask=detr.masked(batch, sizes), labels=labels, output_attentions=True
    )
    assert output.loss.isfinite()
    assert len(output.encoder_attentions) == 1
    with torch.no_grad():
        torch.testing.assert_close(output.logits, net(batch, sizes)["logits"])
    net.detr.model.freeze_backbone()
    assert not any(p.requires_grad for p in net.backbone.parameters())


@pytest.mark.parametrize(
    ("name", "backbone", "whole"),
    [
        ("qna_t", 15_202_560, 32_879_200),
        ("qna_s", 24_458_560, 42_135_200),
        ("qna_b", 54_901_008, 72_643_184),
    ],
)
def test_qna_in_full_size(name, backbone, whole):
    with torch.device("meta"):
        net = detr.build(name, 91)
    assert params(net.backbone) == backbone  # the classifier's, its last norm among them
    assert params(net) == whole
    assert net.backbone.model.feature_info.reduction() == [32]


def test_weights_are_drawn_as_detrs_and_the_backbones_own():
    torch.manual_seed(0)
    net = detr.build("qna_nano", 3, dim=128, encoder=1, decoder=1, hidden=256, queries=50)
    model = net.detr.model
    assert model.query_position_embeddings.weight.std().item() == pytest.approx(1, rel=0.05)
    matrix = model.encoder.layers[0].self_attn.q_proj.weight
    assert matrix.std().item() == pytest.approx((2 / 256) ** 0.5, rel=0.05)
    plain = dict(timm.create_model("qna_nano").named_parameters())
    mine = dict(net.backbone.model.model.named_parameters())
    for name, p in mine.items():
        if p.ndim > 1 and p.numel() > 2000:
            assert p.std().item() == pytest.approx(plain[name].std().item(), rel=0.1), name


def test_only_the_last_map_and_all_of_the_backbone_learns():
    net = small()
    out = net(torch.randn(2, 3, 64, 64))
    sum(x.square().sum() for x in out.values()).backward()
    assert [n for n, p in net.named_parameters() if p.grad is None] == []
    assert net.detr.model.input_projection.in_channels == 128
    assert {id(p) for p in net.backbone.parameters()} < {id(p) for p in net.parameters()}


def test_options_reach_the_backbone():
    net = small(window=5, drop_path=0.25, dim=64)
    inner = net.backbone.model.model.backbone
    assert inner.stages[0].blocks[0].mix.window == 5
    assert max(m.drop_prob for m in inner.modules() if hasattr(m, "drop_prob")) == pytest.approx(
        0.25
    )
    wide = detr.build("linglo_nano", 3, **SMALL, widths=[16, 32, 64, 80])
    assert wide.detr.model.input_projection.in_channels == 80
    assert wide(torch.randn(1, 3, 64, 64))["logits"].shape == (1, 5, 4)


def test_starting_from_a_classifier():
    for name in ("qna_nano", "sasa_nano", "resnet18"):
        classifier = timm.create_model(name, num_classes=4).eval()
        net = small(name).eval()
        net.backbone_from(classifier)
        x = torch.randn(1, 3, 64, 64)
        with torch.no_grad():
            torch.testing.assert_close(net.backbone.model(x)[-1], classifier.forward_features(x))
    with pytest.raises(ValueError, match=r"set model\.name=linglo_nano"):
        net.backbone_from(saccade.build("linglo_nano"))


def test_a_card_and_depths_as_timm_wants_them():
    from timm.optim import param_groups_layer_decay

    net = small()
    assert timm_config(net)["architecture"] == "qna_nano"
    groups = param_groups_layer_decay(net, layer_decay=0.5)
    scales = {p: g["lr_scale"] for g in groups for p in g["params"]}
    assert scales[net.detr.class_labels_classifier.weight] == 1.0
    assert scales[next(net.backbone.parameters())] < 0.2
    assert net.no_weight_decay()
    net.set_grad_checkpointing()
    net(torch.randn(1, 3, 64, 64))["logits"].sum().backward()


def test_bad_input():
    with pytest.raises(ValueError, match=r"heads must divide dim.* got dim=30 heads=4"):
        small(dim=30)
    with pytest.raises(ValueError, match="did you mean 'qna_nano'"):
        small("qna_nan")


def test_a_missing_package_names_the_cure(monkeypatch):
    real = builtins.__import__

    def missing(name, *args, **kwargs):
        if name == "scipy":
            raise ImportError("No module named 'scipy'")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ImportError, match=r"pip install 'saccade\[detection\]'"):
        small()


@pytest.mark.slow
def test_transformers_is_loaded_only_when_asked_for():
    code = "import saccade.tasks.detect.detr, sys; print('transformers' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"


@pytest.mark.parametrize("name", ["heads", "decoder", "hidden", "queries"])
def test_a_detr_needs_some_of_each(name):
    with pytest.raises(ValueError, match=rf"detr\.{name}: 1 or more, got 0"):
        detect.Detr(**{name: 0})


def test_the_raw_state_is_carried_as_detrs_authors_do():
    """Layer after layer by hand; the norm stands before the answers and nowhere between."""
    net = small(carry="raw", decoder=3).eval()
    for p in net.detr.model.decoder.layernorm.parameters():
        torch.nn.init.uniform_(p, 0.5, 2)
    states = []
    for layer in net.detr.model.decoder.layers:
        layer.register_forward_hook(lambda m, inward, out: states.append((inward[0], out)))
    with torch.no_grad():
        output = net(torch.randn(2, 3, 64, 64))
        (_, first), (second_in, second), (third_in, third) = states
        assert torch.equal(second_in, first)
        assert torch.equal(third_in, second)
        answers = [net._answer(net.detr.model.decoder.layernorm(y)) for y in (first, second, third)]
    for key in ("logits", "boxes"):
        torch.testing.assert_close(output[key], answers[2][key])
        torch.testing.assert_close(output[f"aux_{key}"][0], answers[0][key])
        torch.testing.assert_close(output[f"aux_{key}"][1], answers[1][key])


def test_the_normed_state_is_carried_by_default():
    """So that models trained before answer as they did."""
    net = small(decoder=2).eval()
    states = []
    for layer in net.detr.model.decoder.layers:
        layer.register_forward_hook(lambda m, inward, out: states.append((inward[0], out)))
    with torch.no_grad():
        net(torch.randn(1, 3, 64, 64))
        (_, first), (second_in, _) = states
        torch.testing.assert_close(second_in, net.detr.model.decoder.layernorm(first))

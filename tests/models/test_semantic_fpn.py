"""SemanticFPN: the printed counts, the exact extras, any backbone and any size."""

import pytest
import torch

import saccade
from saccade.models import zoo
from saccade.models.semantic_fpn import CLAIMS, SEGMENTERS, build
from saccade.paper.count import params

NANOS = ["linglo_nano", "qna_nano", "sasa_nano"]


@pytest.mark.parametrize("name", SEGMENTERS)
def test_what_the_paper_prints(name):
    with torch.device("meta"):
        net = SEGMENTERS[name]()
    for claim in CLAIMS[name]:
        if claim.what == "params":
            assert claim.holds(params(net)) == (claim.differs == ""), claim.show(params(net))


@pytest.mark.parametrize(
    ("name", "extra"),
    [("linglo_b0", 4_135_574), ("linglo_b1", 4_266_646), ("linglo_b2", 4_266_646)],
)
def test_what_it_adds_to_a_backbone_is_exact(name, extra):
    with torch.device("meta"):
        net = build(name, classes=150)
    assert params(net) - params(net.backbone) == extra


LIKELY = ["linglo_b1", "linglo_b0_wo_ch", "qna_t", "sasa_resnet26", "sasa_nano_conv"]


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in LIKELY else pytest.mark.slow) for n in zoo.names()]
)
def test_every_backbone_of_the_zoo_fits(name):
    with torch.device("meta"):
        net = build(name, classes=7, dim=32, inner=32).eval()
        assert net(torch.empty(1, 3, 97, 130)).shape == (1, 7, 97, 130)


@pytest.mark.parametrize("name", NANOS)
@pytest.mark.parametrize("size", [(32, 32), (45, 71), (64, 96)])
def test_every_pixel_gets_its_logits_and_every_weight_learns(name, size):
    net = build(name, classes=4, dim=16, inner=32)
    image = torch.randn(2, 3, *size)
    logits = net(image)
    assert logits.shape == (2, 4, *size)
    coarse = net(image, coarse=True)
    assert coarse.shape == (2, 4, *(-(-side // 4) for side in size))
    logits.square().mean().backward()
    assert [n for n, p in net.named_parameters() if p.grad is None] == []


def test_it_comes_back_from_disk_fused_or_not(tmp_path):
    net = build("linglo_nano", classes=3, dim=16, inner=32, mixer="dot", drop_path=0.1)
    x = torch.randn(1, 3, 40, 52)
    for _ in range(2):
        net.train()(torch.randn(2, 3, 64, 64))  # statistics that are not those of a fresh net
    with torch.no_grad():
        before = net.eval()(x)
        back = saccade.load(saccade.save(net, tmp_path / "a.safetensors", hello=1))
        assert torch.equal(back(x), before)
        assert back.notes == {"hello": 1}
        fused = saccade.load(saccade.save(net.fuse(), tmp_path / "b.safetensors"))
        assert fused.fused
        torch.testing.assert_close(fused(x), before, rtol=1e-4, atol=1e-5)


def test_it_starts_from_a_classifier():
    classifier = saccade.build("qna_nano", num_classes=9)
    net = build("qna_nano", classes=3, dim=16, inner=32)
    net.backbone_from(classifier)
    own = net.backbone.body.state_dict()
    theirs = classifier.backbone.state_dict()
    assert own
    assert all(torch.equal(own[name], theirs[name]) for name in own)
    with pytest.raises(ValueError, match=r"are of a 'qna_nano'.* backbone is a 'sasa_nano'"):
        build("sasa_nano", classes=3, dim=16).backbone_from(classifier)
    with pytest.raises(ValueError, match="other options"):
        build("qna_nano", classes=3, dim=16, window=5).backbone_from(classifier)


def test_any_backbone_of_timm_will_do():
    net = build("resnet18", classes=3, dim=16, inner=32)
    assert net.eval()(torch.randn(1, 3, 70, 66)).shape == (1, 3, 70, 66)
    with pytest.raises(ValueError, match="did you mean 'resnet18'"):
        build("resnet81")


def test_recomputing_blocks_changes_no_gradient():
    net = build("qna_nano", classes=3, dim=16, inner=32, drop_path=0.0)
    x, grads = torch.randn(2, 3, 48, 48), []
    for enable in (False, True):
        net.set_grad_checkpointing(enable)
        net.zero_grad()
        net(x).square().mean().backward()
        grads.append([p.grad.clone() for p in net.parameters()])
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b)

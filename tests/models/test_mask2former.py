"""Mask2Former through transformers: equal to theirs, on any backbone and any size."""

import pytest
import torch

from saccade.models import mask2former, saved

transformers = pytest.importorskip("transformers")
SMALL = {"dim": 32, "queries": 5, "encoder": 1, "decoder": 2, "heads": 4, "hidden": 32}


def small(name="linglo_nano", **changes):
    torch.manual_seed(0)
    return mask2former.build(name, 3, **{**SMALL, **changes})


@pytest.mark.parametrize("name", ["linglo_nano", "resnet18"])
def test_any_backbone_and_any_size(name):
    net, image = small(name), torch.randn(2, 3, 70, 101)
    layers = net.queries(image)
    assert layers["classes"].shape == (3, 2, 5, 4)  # before the first layer, and after both
    assert layers["masks"].shape == (3, 2, 5, 18, 26)
    sum(x.square().sum() for x in layers.values()).backward()
    silent = [n for n, p in net.named_parameters() if p.grad is None]
    assert not [n for n in silent if not n.startswith("backbone.")], silent
    scores = net.eval()(image).exp()
    assert scores.shape == (2, 3, 70, 101)
    assert (scores > 0).all()


def whole(net):
    """transformers' own model with the same weights, over maps that are given."""
    config = net.config
    config.backbone_config = transformers.TimmBackboneConfig(
        backbone="resnet18", use_pretrained_backbone=False, out_indices=[2, 3, 4]
    )
    model = transformers.Mask2FormerForUniversalSegmentation(config)
    level = model.model.pixel_level_module

    class Maps(torch.nn.Module):
        def forward(self, image):
            maps = net.backbone(image)
            return type("Output", (), {"feature_maps": [maps[i] for i in net.stages]})

    level.encoder = Maps()
    level.decoder = net.parts.pixels
    model.model.transformer_module = net.parts.transformer
    model.class_predictor = net.parts.classify
    return model.eval()


def test_queries_and_losses_are_transformers_own():
    from saccade.recipes.segment import Mask2Former
    from saccade.tasks.segment.mask2former import Mask2FormerTask

    net = small().eval()
    settings = Mask2Former(**SMALL, points=40)
    task = Mask2FormerTask(net, ("a", "b", "c"), settings=settings)
    image = torch.randn(2, 3, 64, 96)
    mask = torch.randint(0, 3, (2, 64, 96), dtype=torch.uint8)
    mask[0][mask[0] == 1] = 255  # not in the first image
    classes = [torch.tensor([0, 2]), torch.tensor([0, 1, 2])]
    masks = [(m == c[:, None, None]).float() for m, c in zip(mask, classes, strict=True)]
    net.config.num_labels = 3
    model = whole(net)
    torch.manual_seed(1)
    theirs = model(image, mask_labels=masks, class_labels=classes)
    layers = net.queries(image)
    torch.testing.assert_close(layers["classes"][-1], theirs.class_queries_logits)
    torch.testing.assert_close(layers["masks"][-1], theirs.masks_queries_logits)
    # places are drawn anew for each layer, in another order: the sum agrees nearly
    ours = [sum(task.loss(layers, {"mask": mask}).values()).item() for _ in range(20)]
    others = [model(image, masks, classes).loss.item() for _ in range(20)]
    assert sum(ours) == pytest.approx(sum(others), rel=0.02)


def test_an_image_without_any_class():
    from saccade.recipes.segment import Mask2Former
    from saccade.tasks.segment.mask2former import Mask2FormerTask

    task = Mask2FormerTask(small(), ("a", "b", "c"), settings=Mask2Former(**SMALL, points=40))
    image, mask = torch.randn(2, 3, 64, 64), torch.full((2, 64, 64), 255, dtype=torch.uint8)
    terms = task.loss(task(image), {"mask": mask})
    assert terms["masks"] == 0
    sum(terms.values()).backward()
    mask[1, :9] = 2
    assert task.loss(task(image), {"mask": mask})["masks"] > 0


def test_a_backbone_with_other_maps_is_refused():
    with pytest.raises(ValueError, match=r"maps or more at strides 4, 8, 16"):
        small("resnet18", output_stride=8)
    with pytest.raises(ValueError, match=r"32 and heads must divide dim, got dim=20"):
        small(dim=20)


def test_saved_and_loaded(tmp_path):
    net = small().eval()
    saved.save(net, tmp_path / "net.safetensors")
    image = torch.randn(1, 3, 64, 64)
    torch.testing.assert_close(saved.load(tmp_path / "net.safetensors")(image), net(image))

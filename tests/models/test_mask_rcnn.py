import pytest
import torch

from saccade.models import saved
from saccade.models.mask_rcnn import build


@pytest.mark.parametrize("name", ["linglo_nano", "qna_nano", "sasa_nano", "resnet10t"])
def test_any_backbone(name):
    """Its maps, strides and anchors agree, for sides that are no multiple of a stride."""
    net = build(name, 3, dim=16, hidden=16, convs=1).eval()
    image = torch.rand(1, 3, 70, 101)
    maps = net(image)
    assert len(maps) == len(net.strides)
    for x, stride in zip(maps[:-1], net.strides, strict=False):
        assert x.shape[1:] == (16, -(-70 // stride), -(-101 // stride))
    from torchvision.models.detection.image_list import ImageList

    anchors = net.proposals.anchor_generator(ImageList(image, [(70, 101)]), maps)[0]
    assert len(anchors) == 3 * sum(x.shape[2] * x.shape[3] for x in maps)
    first = anchors[: 3 * maps[0].shape[3]]  # a row of the finest map
    centres = (first[:, :2] + first[:, 2:]) / 2
    steps = centres[3::3, 0] - centres[:-3:3, 0]
    assert (steps == net.strides[0]).all()


def test_it_is_described_and_built_again():
    net = build("sasa_nano_conv", 3, dim=16, hidden=16, convs=1, anchor=4.0)
    again = saved.KINDS[net.describe()["kind"]]
    assert again == "saccade.models.mask_rcnn"
    about = {k: v for k, v in net.describe().items() if k not in ("kind", "fused")}
    twin = build(**about)
    assert twin.state_dict().keys() == net.state_dict().keys()
    assert twin.strides == net.strides


def test_proposals_are_cut_out_at_known_scales():
    """Where a padded batch is much larger than its images, scales are not guessed from sizes."""
    net = build("sasa_nano_conv", 2, dim=8, hidden=16, convs=1)
    for pool in (net.heads.box_roi_pool, net.heads.mask_roi_pool):
        assert pool.scales == [1 / stride for stride in net.strides[:-1]]
    maps = net.maps_by_name([torch.ones(1, 8, 96 // s, 96 // s) for s in net.strides])
    cut = net.heads.box_roi_pool(maps, [torch.tensor([[0.0, 0, 90, 90]])], [(40, 40)])
    assert cut.shape == (1, 8, 7, 7)
    assert (cut > 0.99).all()

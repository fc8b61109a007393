"""UperNet through transformers: its own heads, on any backbone and any size."""

import pytest
import torch

from saccade.models import saved, upernet

pytest.importorskip("transformers")


def small(name="linglo_nano", **changes):
    torch.manual_seed(0)
    return upernet.build(name, 3, **{"dim": 16, "auxiliary": 8, **changes})


@pytest.mark.parametrize("name", ["linglo_nano", "sasa_nano", "resnet18"])
def test_any_backbone_and_any_size(name):
    net, image = small(name), torch.randn(2, 3, 70, 101)
    logits, further = net.with_auxiliary(image)
    assert logits.shape == further.shape == (2, 3, 18, 26)
    (logits.square().sum() + further.square().sum()).backward()
    silent = [n for n, p in net.named_parameters() if p.grad is None]
    assert not [n for n in silent if not n.startswith("backbone.")], silent
    assert net.eval()(image).shape == (2, 3, 70, 101)


def test_the_head_is_transformers_own():
    from transformers import UperNetConfig
    from transformers.models.upernet.modeling_upernet import UperNetHead

    net = small().eval()
    widths = [net.backbone.widths[i] for i in net.stages]
    theirs = UperNetHead(UperNetConfig(hidden_size=16, num_labels=3), widths).eval()
    theirs.load_state_dict(net.head.state_dict())
    image = torch.randn(1, 3, 96, 132)
    torch.testing.assert_close(net(image, coarse=True), theirs(net._maps(image)))


@pytest.mark.parametrize("cells", [1, 2, 3, 6])
@pytest.mark.parametrize("size", [(13, 17), (6, 4), (1, 1)])
def test_means_of_cells(cells, size):
    x = torch.randn(2, 3, *size)
    expected = torch.nn.AdaptiveAvgPool2d(cells)(x)
    torch.testing.assert_close(upernet.CellMeans(cells)(x), expected)


def test_saved_and_loaded(tmp_path):
    net = small(auxiliary=0).eval()
    saved.save(net, tmp_path / "net.safetensors")
    image = torch.randn(1, 3, 64, 64)
    torch.testing.assert_close(saved.load(tmp_path / "net.safetensors")(image), net(image))


@pytest.mark.slow
def test_export(tmp_path):
    export = pytest.importorskip("saccade.export")
    pytest.importorskip("onnxruntime")
    from saccade.tasks.segment.upernet import UperNetTask

    task = UperNetTask(small().eval(), ("a", "b", "c")).eval()
    export.to_onnx(export.prepared(task), tmp_path / "net.onnx", {})
    assert export.apart(export.Raw(task), export.runner(tmp_path / "net.onnx")) < 1e-4

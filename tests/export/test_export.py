"""Files that run elsewhere: the same function at any size, and all that a program must know."""

import copy
import hashlib
import json
import logging
import shutil
import warnings
import zipfile
from contextlib import suppress

import numpy as np
import pytest
import torch
from torch import nn

import saccade
from saccade import export
from saccade.data.loader import Batch
from saccade.models import autoencoder, retinanet, semantic_fpn
from saccade.recipes.detect import Detr, RetinaNet, RTDetr
from saccade.tasks.autoencode.task import AutoEncodeTask
from saccade.tasks.detect.retinanet import RetinaNetTask
from saccade.tasks.segment.task import SegmentTask
from tests.attack import evil_archive

pytestmark = pytest.mark.usefixtures("untyped")  # exporters trace with symbols
SIZES = torch.tensor([[70, 65], [70, 65]])
ABOUT = {"classes": ["a", "b", "c"], "mean": [0.5] * 3, "std": [0.2] * 3}


def lively(name):
    """A small model whose norms do something."""
    torch.manual_seed(0)
    net = saccade.build(name, num_classes=3).eval()
    for norm in net.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.running_mean.normal_(std=0.3)
            norm.running_var.uniform_(0.5, 2)
            nn.init.normal_(norm.weight, 1, 0.2)
            nn.init.normal_(norm.bias)
    return net


def test_norms_are_folded_into_convolutions_and_nothing_changes():
    net = lively("sasa_nano_conv")
    norms = sum(isinstance(m, nn.BatchNorm2d) for m in net.modules())
    raw = export.prepared(net)
    assert sum(isinstance(m, nn.BatchNorm2d) for m in raw.modules()) == 0 < norms
    assert export.apart(export.Raw(net), export.runner_of(raw)) < 1e-5
    assert any(isinstance(m, nn.BatchNorm2d) for m in net.modules()), "the original is left alone"


class Twice(nn.Module):
    """A convolution whose output is also used without the norm: nothing may be folded."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)
        self.norm.running_mean.fill_(3.0)

    def forward(self, x):
        y = self.conv(x)
        return (y + self.norm(y)).mean((2, 3))


def test_a_fold_that_would_change_the_function_is_not_made():
    net = Twice().eval()
    assert export.fold_norms(copy.deepcopy(net)) == 1
    raw = export.prepared(net)
    assert isinstance(raw.model.norm, nn.BatchNorm2d)
    assert export.apart(export.Raw(net), export.runner_of(raw)) == 0


def test_branches_are_fused():
    raw = export.prepared(saccade.build("linglo_nano", num_classes=3))
    assert all(m.fused is not None for m in raw.modules() if hasattr(m, "branches"))


@pytest.mark.parametrize(
    "name",
    [
        "linglo_nano",
        pytest.param("qna_nano", marks=pytest.mark.slow),
        pytest.param("sasa_nano", marks=pytest.mark.slow),
    ],
)
def test_onnx_and_torch_files_at_any_size(name, tmp_path):
    net = lively(name)
    raw = export.prepared(net)
    for write, ending in ((export.to_onnx, ".onnx"), (export.to_torch, ".pt2")):
        path = write(raw, tmp_path / f"net{ending}", ABOUT)
        assert export.apart(export.Raw(net), export.runner(path)) < export.CLOSE
    assert sorted(p.name for p in tmp_path.iterdir()) == ["net.onnx", "net.pt2"], "no parts left"
    import onnxruntime

    session = onnxruntime.InferenceSession(str(tmp_path / "net.onnx"))
    assert session.get_inputs()[0].shape == ["batch", 3, "height", "width"]
    metadata = session.get_modelmeta().custom_metadata_map
    assert json.loads(metadata["saccade"])["outputs"] == ["logits"]
    assert json.loads(metadata["classes"]) == ABOUT["classes"]


@pytest.mark.slow
def test_ahead_of_time(tmp_path):
    raw = export.prepared(lively("linglo_nano"))
    path = export.to_aot(raw, tmp_path / "net.aot.pt2", ABOUT)
    assert export.apart(raw, export.runner(path)) < export.CLOSE


def test_eight_bits(tmp_path):
    raw = export.prepared(lively("sasa_nano_conv"))
    path = export.to_onnx(raw, tmp_path / "net.onnx", ABOUT)
    chance = np.random.default_rng(0)
    images = [chance.standard_normal((2, 3, 64, 64), np.float32) for _ in range(3)]
    small = export.to_int8(path, tmp_path / "net.int8.onnx", iter(images))
    assert small.stat().st_size < 0.5 * path.stat().st_size
    expected, got = (export.runner(p)(images[0])["logits"] for p in (path, small))
    assert 0 < np.abs(expected - got).max() < 0.2 * np.abs(expected).max()


def test_wide_products_are_those_that_do_much_with_each_number(tmp_path):
    import onnx

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.narrow, self.wide = nn.Conv2d(3, 64, 1), nn.Conv2d(64, 64, 3)
            self.each = nn.Conv2d(64, 64, 3, groups=64)

        def forward(self, x):
            return self.each(self.wide(self.narrow(x))).mean((2, 3))

    raw = export.Raw(Both().eval())
    path = export.to_onnx(raw, tmp_path / "net.onnx", ABOUT)
    shapes = {t.name: list(t.dims) for t in onnx.load(path).graph.initializer}
    (node,) = [n for n in onnx.load(path).graph.node if n.name in export.wide_products(path)]
    assert shapes[node.input[1]] == [64, 64, 3, 3]
    images = [np.random.default_rng(0).standard_normal((4, 3, 64, 64), np.float32)]
    small = export.to_int8(path, tmp_path / "net.int8.onnx", images, [node.name])
    kinds = [n.op_type for n in onnx.load(small).graph.node if n.op_type == "DequantizeLinear"]
    assert 2 <= len(kinds) <= 4
    assert export.apart(raw, export.runner(small), count=1) < 0.1


def test_what_is_no_number_is_far_apart():
    raw = export.Raw(lively("sasa_nano_conv"))
    assert export.apart(raw, lambda image: {"logits": np.full((len(image), 3), np.nan)}) == np.inf


def test_a_part_gets_its_name_or_is_gone(tmp_path):
    path = tmp_path / "net.onnx"
    path.write_text("old")
    with suppress(KeyError), export.partial(path) as part:
        part.write_text("half")
        raise KeyError
    assert path.read_text() == "old"
    with export.partial(path) as part:
        assert part.name.endswith(".onnx")
        part.write_text("new")
    assert path.read_text() == "new"
    assert [p.name for p in tmp_path.iterdir()] == ["net.onnx"]


def test_compiling_is_silent(monkeypatch, recwarn, caplog):
    raw = export.Raw(lively("sasa_nano_conv"))
    logger = logging.getLogger("torch.utils.cpp_extension")
    monkeypatch.setattr(logger, "handlers", [caplog.handler])  # torch may have cut it off from
    monkeypatch.setattr(logger, "propagate", False)  # the root, where caplog listens

    def chatty(model):
        warnings.warn("soon gone", FutureWarning, stacklevel=1)
        logger.warning("No CUDA runtime")
        return model

    monkeypatch.setattr(torch, "compile", lambda model: lambda image: chatty(model)(image))
    image = np.zeros((1, 3, 64, 64), np.float32)
    assert export.compiled(raw, image)(image)["logits"].shape == (1, 3)
    assert len(recwarn) == len(caplog.records) == 1, "but for the second call, which is none"


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match="export: no file"):
        export.runner(tmp_path / "net.onnx")


def rewritten(source, target, change):
    """A zip archive with its members changed."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for entry in old.infolist():
            new.writestr(entry.filename, change(entry.filename, old.read(entry)))
    return target


class Small(nn.Module):
    """As little as can be exported."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 2, 1)

    def forward(self, x):
        return self.conv(x).mean((2, 3))


def test_a_strangers_torch_program_is_not_opened(tmp_path):
    marker = tmp_path / "marker"
    ours = export.to_torch(export.Raw(Small()), tmp_path / "ours.pt2", ABOUT)
    assert export.runner(ours)(np.zeros((1, 3, 8, 8), np.float32))["logits"].shape == (1, 2)

    def pickled(name, content):
        if name.endswith("_config.json") and b"use_pickle" in content:
            return content.replace(b'"use_pickle": false', b'"use_pickle": true')
        return evil_archive(marker) if "/weights/weight_" in name else content

    evil = rewritten(ours, tmp_path / "evil.pt2", pickled)
    copied = shutil.copy(evil, tmp_path / "net.aot.pt2")
    (tmp_path / "link.pt2").symlink_to(evil)
    for path in (evil, tmp_path / "link.pt2", copied):
        with pytest.raises(ValueError, match=r"may run any code.*open it with torch.*load"):
            export.runner(path)
    assert not marker.exists()
    with pytest.raises(ValueError, match="damaged or was not written"):
        export.runner(evil, trusted=True)
    assert marker.exists(), "it would have run code"


def test_a_program_that_is_exchanged_after_it_was_compared_is_not_opened(tmp_path, monkeypatch):
    path = export.to_torch(export.Raw(Small()), tmp_path / "ours.pt2", ABOUT)
    digest = hashlib.sha256

    def slow(content=b""):
        path.write_bytes(evil_archive(tmp_path / "marker"))
        return digest(content)

    monkeypatch.setattr(hashlib, "sha256", slow)
    assert export.runner(path)(np.zeros((1, 3, 8, 8), np.float32))["logits"].shape == (1, 2)
    assert not (tmp_path / "marker").exists()


def test_a_file_of_another_kind_is_refused(tmp_path):
    for name, words in (("net.pt", "is no file of ours"), ("net.onnx", "is damaged or was not")):
        (tmp_path / name).write_bytes(evil_archive(tmp_path / "marker"))
        with pytest.raises(ValueError, match=words):
            export.runner(tmp_path / name)
    assert not (tmp_path / "marker").exists()


# -- tasks that find boxes or tell pixels apart ---------------------------------------------


def dense(which):
    """A task of each kind, small."""
    torch.manual_seed(0)
    classes = ("a", "b", "c")
    if which == "segment":
        return SegmentTask(semantic_fpn.build("linglo_nano", 3, dim=16, inner=8), classes)
    if which == "retinanet":
        settings = RetinaNet(dim=16, depth=1, scales=1)
        net = retinanet.build("linglo_nano", 3, settings)
        return RetinaNetTask(net, classes, settings)
    pytest.importorskip("transformers")
    from saccade.models import detr, rtdetr
    from saccade.tasks.detect.detr import DetrTask
    from saccade.tasks.detect.rtdetr import RTDetrTask

    if which == "rtdetr":
        small = RTDetr(queries=5, dim=16, decoder=1, heads=2, hidden=16, levels=2, expand=0.5)
        return RTDetrTask(rtdetr.build("linglo_nano", 3, small), classes, small)
    settings = Detr(queries=5, dim=16, encoder=1, decoder=1, heads=2, hidden=16)
    return DetrTask(detr.build("qna_nano", 3, settings), classes, settings)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("which", "outputs"),
    [
        pytest.param("segment", ["logits"], marks=pytest.mark.slow),
        ("retinanet", ["logits", "offsets", "anchors", "counts"]),
        pytest.param("detr", ["logits", "boxes"], marks=pytest.mark.slow),
        pytest.param("rtdetr", ["logits", "boxes"], marks=pytest.mark.slow),
    ],
)
def test_detectors_and_segmenters_at_any_size(which, outputs, tmp_path):
    task = dense(which).eval()
    raw = export.prepared(task)
    assert list(raw.names) == outputs
    path = export.to_onnx(raw, tmp_path / "net.onnx", ABOUT)
    assert export.apart(export.Raw(task), export.runner(path)) < export.CLOSE


@pytest.mark.slow
@pytest.mark.parametrize(
    ("encoder", "decoder"),
    [("max", "bilinear"), pytest.param("qna", "qna", marks=pytest.mark.slow)],
)
def test_auto_encoders_at_any_size(encoder, decoder, tmp_path):
    task = AutoEncodeTask(autoencoder.build(encoder=encoder, decoder=decoder, dim=8)).eval()
    raw = export.prepared(task)
    assert raw.names == ("reconstruction",)
    for write, ending in ((export.to_onnx, ".onnx"), (export.to_torch, ".pt2")):
        run = export.runner(write(raw, tmp_path / f"net{ending}", {}))
        assert export.apart(export.Raw(task), run) < export.CLOSE
        image = torch.rand(2, 3, 70, 65)
        figures = export.figures(task, run, [Batch(image, {}, torch.arange(2), SIZES)])
        expected = task.metric()
        with torch.no_grad():
            expected.update(task(image), {})
        assert figures == pytest.approx(expected.compute(), rel=1e-3)


@pytest.mark.parametrize("which", ["segment", "retinanet", "detr", "rtdetr"])
def test_figures_of_a_file_do_not_see_padding(which):
    task = dense(which).eval()
    sizes = torch.tensor([[64, 96], [96, 64]])
    image = torch.zeros(2, 3, 96, 96)
    for i, (h, w) in enumerate(sizes.tolist()):
        image[i, :, :h, :w] = torch.randn(3, h, w)
    part = Batch(image, {"id": [7, 9]}, torch.arange(2), sizes)
    seen = []

    class Kept:
        def update(self, output, target):
            seen.append((target["id"], task.predict(output, output["size"].tolist())))

        def compute(self):
            return {}

    task.metric = Kept
    export.figures(task, export.runner_of(export.Raw(task)), [part])
    assert [key for key, _ in seen] == [[7], [9]]
    for i, (_, (got,)) in enumerate(seen):
        h, w = sizes[i].tolist()
        with torch.no_grad():
            (expected,) = task.predict(task(image[i : i + 1, :, :h, :w]), [(h, w)])
        got, expected = (x if isinstance(x, tuple) else (x,) for x in (got, expected))
        assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


def test_figures_of_a_segmenter_that_looks_through_windows(tmp_path):
    task = dense("segment").eval()
    task.window = 64
    part = Batch(torch.randn(2, 3, 96, 132), {}, torch.arange(2), torch.tensor([[96, 132]] * 2))
    seen = []

    class Kept:
        def update(self, output, target):
            seen.append(output["logits"])

        def compute(self):
            return {}

    task.metric = Kept
    export.figures(task, export.runner_of(export.Raw(task)), [part])
    with torch.no_grad():
        expected = task(part.image)["logits"]
        whole = task.raw(part.image)["logits"]
    assert torch.allclose(seen[0], expected, atol=1e-5)
    assert not torch.allclose(seen[0], whole, atol=1e-5)

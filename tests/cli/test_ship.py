"""`saccade export` and the example that runs its file, as typed."""

import json
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import jaxtyping
import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image

import saccade
from saccade import cli, export, weights
from saccade.cli import ship
from saccade.data import picture
from saccade.engine import session
from saccade.infer.detect import Detector
from saccade.models import detectors, detr, retinanet, rtdetr, semantic_fpn, zoo
from saccade.ops import native
from saccade.recipes.detect import Detr, RetinaNet, RTDetr
from saccade.recipes.recipe import change
from saccade.recipes.segment import Segment
from tests.cli.examples import ALONE, EXAMPLES, alone, lively, pictures, saved
from tests.engine.classify_runs import PLAIN, fit, folder

EXAMPLE = Path(__file__).parents[2] / "examples" / "predict_onnx.py"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    place = tmp_path_factory.mktemp("ship")
    data = folder(place / "colours")
    recipe = change(PLAIN, model__name="sasa_nano_conv", schedule__epochs=6)
    return fit(recipe, data, place / "run").folder


def test_an_exported_model_predicts_without_torch(run, trained, untyped):
    code, out = run("export", str(trained), "--int8")
    assert code == 0, out
    assert "any batch and size" in out
    assert "int8" in out
    assert "% of images" in out.partition("same answer on ")[2]
    assert "x as fast as fp32 (one" in " ".join(out.split())
    assert f"next: python {EXAMPLE} {trained / 'model.onnx'} PICTURE" in out
    photo = trained.parent / "colours" / "val" / "red" / "0.png"
    code, out = run("predict", str(photo), "--model", str(trained), "--json")
    ours = {g["label"]: g["share"] for g in json.loads(out)["guesses"]}
    program = (
        f"import sys; sys.argv = ['x', {str(trained / 'model.onnx')!r}, {str(photo)!r}]\n"
        f"exec(open({str(EXAMPLE)!r}).read())\n"
        "assert 'torch' not in sys.modules"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    theirs = {
        line.split()[1]: float(line.split()[0][:-1]) for line in result.stdout.splitlines()[1:]
    }
    assert theirs == pytest.approx({k: 100 * v for k, v in ours.items()}, abs=0.2)


@pytest.mark.skipif(not native.available(), reason="there are no kernels here")
def test_a_file_with_our_operators(run, untyped, tmp_path):
    out = tmp_path / "net.onnx"
    code, output = run("export", "linglo_nano", "--untrained", "--kernels", "--out", str(out))
    assert code == 0, output
    assert "it calls saccade's operators: register_custom_ops_library(" in output
    assert "next:" not in output
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    with pytest.raises(Exception, match="saccade"):
        onnxruntime.InferenceSession(out, options)
    options.register_custom_ops_library(saccade.kernels())
    (y,) = onnxruntime.InferenceSession(out, options).run(
        None, {"image": np.zeros((1, 3, 64, 64), np.float32)}
    )
    assert np.isfinite(y).all()


def test_the_examples_are_short():
    assert len((EXAMPLES / "onnx_kernels.cpp").read_text().splitlines()) <= 60
    assert len(EXAMPLE.read_text().splitlines()) <= 60
    for name, most in {"detect": 110, "segment": 92}.items():  # detectors are of three kinds
        lines = (EXAMPLES / f"{name}_onnx.py").read_text().splitlines()
        assert sum(map(bool, lines)) <= most


def test_pip_brings_the_examples():
    project = tomllib.loads((EXAMPLES.parent / "pyproject.toml").read_text())
    (patterns,) = project["tool"]["setuptools"]["data-files"].values()
    examples = {path for pattern in patterns for path in EXAMPLES.parent.glob(pattern)}
    assert examples == set(EXAMPLES.glob("*.py"))


# -- where it is written --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("to", "out", "message"),
    [
        ("onnx", "model.safetensors", "ends in .onnx"),
        ("torch", "net.aot.pt2", "net.pt2"),
        ("aot", "net.pt2", "ends in .aot.pt2"),
        ("onnx", "there", "is a folder"),
        ("onnx", "model.safetensors/net.onnx", "nothing can be written into"),
    ],
)
def test_a_place_that_makes_no_sense_is_refused(run, trained, to, out, message):
    (trained / "there").mkdir(exist_ok=True)
    before = (trained / "model.safetensors").read_bytes()
    code, output = run("export", str(trained), "--to", to, "--out", str(trained / out))
    assert code == 1
    assert message in output
    assert "Traceback" not in output
    assert (trained / "model.safetensors").read_bytes() == before


def test_a_model_is_not_written_over(run, trained, tmp_path):
    odd = tmp_path / "net.pt2"
    odd.write_bytes((trained / "model.safetensors").read_bytes())
    code, output = run("export", str(odd), "--to", "torch")
    assert code == 1
    assert "is the model itself" in output


def test_an_older_file_outlives_a_failed_check(run, trained, untyped, monkeypatch, tmp_path):
    out = tmp_path / "net.pt2"
    out.write_text("old")
    monkeypatch.setattr(export, "runner", lambda _: lambda image: {"logits": np.zeros((1, 1))})
    code, output = run("export", str(trained), "--to", "torch", "--out", str(out))
    assert code == 1
    assert "differs from the model" in output
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("net.pt2", "old")]


def test_a_wrong_fuse_is_found_out(run, trained, untyped, monkeypatch, tmp_path):
    def wrong(self):
        self.head.fc.weight.mul_(1.01)
        return self

    monkeypatch.setattr(zoo.Classifier, "fuse", wrong)
    out = tmp_path / "deep" / "net.pt2"
    code, output = run("export", str(trained), "--to", "torch", "--out", str(out))
    assert code == 1
    assert "differs from the model" in output
    assert not any(path.is_file() for path in tmp_path.rglob("*"))


def test_one_that_comes_with_the_package_goes_where_one_stands(
    run, trained, untyped, monkeypatch, tmp_path
):
    name = "sasa_nano_conv.colours"
    monkeypatch.setattr(weights, "FILES", {name: trained / "model.safetensors"})
    monkeypatch.setattr(weights, "NAMES", (name,))
    monkeypatch.chdir(tmp_path)
    code, output = run("export", "sasa_nano_conv", "--to", "torch")
    assert code == 0, output
    assert [path.name for path in tmp_path.iterdir()] == ["sasa_nano_conv.pt2"]
    code, output = run("export", "sasa_nano_con")
    assert code == 1
    assert "did you mean 'sasa_nano_conv'?" in output


@pytest.mark.skipif(not native.available(), reason="there are no kernels here")
@pytest.mark.parametrize("plain", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_torch_programs_keep_our_operators_unless_asked_not_to(run, untyped, tmp_path, plain):
    out = tmp_path / "net.pt2"
    words = ["export", "linglo_nano", "--untrained", "--to", "torch", "--out", str(out)]
    code, output = run(*words, *["--plain"] * plain)
    assert code == 0, output
    nodes = torch.export.load(out).graph.nodes
    assert any("saccade" in str(node.target) for node in nodes) is not plain
    assert ("import saccade" in output) is not plain


@pytest.mark.parametrize("seconds", [{"all": 2.0, "wide": 1.0}, {"all": 1.0, "wide": 0.99}])
def test_of_two_8_bit_files_the_faster_is_kept(monkeypatch, tmp_path, seconds):
    """And of two that are as fast, the smaller."""

    def write(source, path, images, only):
        path.write_text(" ".join(only) or "all")
        return path

    monkeypatch.setattr(export, "to_int8", write)
    monkeypatch.setattr(export, "wide_products", lambda _: ["a", "b"])
    monkeypatch.setattr(ship, "_seconds", lambda *_: {"fp32": 3.0, **seconds})
    small = tmp_path / "net.int8.onnx"
    pace = ship._smallest_or_fastest(export, tmp_path / "net.onnx", small, list, None)
    assert small.read_text() == ("a b" if seconds["all"] == 2 else "all")
    assert pace == 3.0


# -- how fast -------------------------------------------------------------------------------


@pytest.mark.slow
def test_latency_is_the_cpu_time_of_one_thread(run, trained, untyped, monkeypatch, tmp_path):
    monkeypatch.setattr(ship, "ROUNDS", 2)
    monkeypatch.setattr(export, "compiled", lambda raw, _: export.runner_of(raw))
    words = ("export", str(trained), "--to", "torch", "--out", str(tmp_path / "net.pt2"))
    code, output = run(*words, "--latency", "--size", "32")
    assert code == 0, output
    head, *rows = output.splitlines()[1:]
    assert "one 32 x 32 image, one thread" in head
    assert "CPU ms" in head
    assert [row.split()[0] for row in rows] == ["eager", "compiled", "torch"]

    def broken(*_):
        raise RuntimeError("no compiler\nat all")

    monkeypatch.setattr(export, "compiled", broken)
    code, output = run(*words, "--latency", "--size", "32")
    assert code == 0, output
    assert "compiled is left out" in output
    assert "at all" not in output


# -- pictures of all kinds ------------------------------------------------------------------


def odd_pictures(place):
    """Such as a plain conversion to RGB gets wrong."""
    chance = np.random.default_rng(0)
    for mode, colours in (("L", ()), ("LA", (2,)), ("RGB", (3,)), ("RGBA", (4,))):
        pixels = chance.integers(0, 256, (40, 50, *colours), np.uint8)
        Image.fromarray(pixels, mode).save(place / f"{mode}.png")
    Image.fromarray(chance.integers(0, 65536, (40, 50), np.uint16)).save(place / "deep.png")
    palette = Image.open(place / "RGB.png").quantize(16)
    palette.save(place / "palette.png", transparency=3)
    turned = Image.Exif()
    turned[0x0112] = 6
    Image.open(place / "RGB.png").convert("CMYK").save(place / "turned.jpg", exif=turned)
    return sorted(place.iterdir())


@pytest.mark.filterwarnings("ignore:'mode' parameter is deprecated:DeprecationWarning")
@pytest.mark.parametrize("name", ["predict", "detect", "segment"])
def test_the_examples_see_what_saccade_sees(name, tmp_path):
    opened = runpy.run_path(str(EXAMPLES / f"{name}_onnx.py"))["opened"]
    for path in odd_pictures(tmp_path):
        theirs, ours = opened(path), picture.rgb(path, path.name)
        assert theirs.mode == "RGB"
        assert np.array_equal(theirs, ours), path.name
    (tmp_path / "junk.jpg").write_text("no picture")
    with pytest.raises(SystemExit, match=r"junk\.jpg' is no readable picture"):
        opened(str(tmp_path / "junk.jpg"))


@pytest.mark.parametrize("name", ["predict", "detect", "segment"])
def test_what_an_example_cannot_do_is_one_sentence(name, tmp_path):
    def typed(*words):
        program = [sys.executable, str(EXAMPLES / f"{name}_onnx.py"), *words]
        result = subprocess.run(program, capture_output=True, text=True)
        assert len(result.stderr.splitlines()) == 1, result.stderr
        return result.returncode, result.stderr

    assert typed() == (2, f"usage: python {name}_onnx.py MODEL.onnx PICTURE ...\n")
    (tmp_path / "net.onnx").write_text("no model")
    code, message = typed(str(tmp_path / "net.onnx"), "photo.jpg")
    assert code == 1
    assert "that saccade exported" in message


# -- boxes and masks without torch ----------------------------------------------------------


def exported(path):
    """By the command, as typed."""
    jaxtyping.config.update("jaxtyping_disable", True)  # exporters trace with symbols
    cli.main(["export", str(path)])
    jaxtyping.config.update("jaxtyping_disable", False)
    return path.with_suffix(".onnx")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return pictures(tmp_path_factory.mktemp("photos"))


@pytest.fixture(scope="module")
def boxes(tmp_path_factory):
    """A RetinaNet that is sure of many things."""
    torch.manual_seed(0)
    settings = RetinaNet(dim=16, depth=1, scales=1, score=0.2, most=40)
    net = retinanet.build("sasa_nano_conv", 3, settings)
    lively(net.classify.last, 4.0, -1.0)
    lively(net.locate.last, 0.5, 0.0)
    path = tmp_path_factory.mktemp("boxes") / "net.safetensors"
    return saved(net, path, settings, short=64, long=96)


@pytest.fixture(scope="module")
def masks(tmp_path_factory):
    torch.manual_seed(0)
    settings = Segment(dim=16, inner=16)
    net = semantic_fpn.build("sasa_nano_conv", 3, dim=16, inner=16)
    lively(net.branch.classify, 100.0, 0.0)
    path = tmp_path_factory.mktemp("masks") / "net.safetensors"
    return saved(net, path, settings, short=64, long=96)


FIND = """
rows = [[part.tolist() for part in example["found"](session, about, photo)] for photo in photos]
inputs = [example["shown"](photo, about).tolist() for photo in photos]
"""


def seen(model, paths):
    """Pictures as saccade shows them to a model."""
    ready = session.open_model(model)
    show = ready.transform()
    return ready, [show(Image.open(path).convert("RGB"))[None] for path in paths]


def assert_shown_alike(theirs, ours, about):
    """To the last digit of a byte: Pillow and torch round a few pixels differently."""
    for a, b in zip(theirs, ours, strict=True):
        away = np.abs(np.array(a) - b.numpy()) * 255 * np.array(about["std"])[:, None, None]
        assert away.max() < 1.01
        assert away.mean() < 0.1


@pytest.mark.slow
def test_boxes_without_torch(boxes, photos):
    program = ALONE + FIND + "print(json.dumps([about, rows, inputs]))"
    _, (about, rows, inputs) = alone("detect", program, exported(boxes), *photos)
    _, ours = seen(boxes, photos)
    assert_shown_alike(inputs, ours, about)
    expected = Detector(boxes, "cpu")(Image.open(photos[0]).convert("RGB"))
    xyxy, labels, scores = rows[0]
    assert 5 < len(labels) <= 40
    assert labels == expected.labels.tolist()
    assert np.abs(np.array(xyxy) - expected.boxes.numpy()).max() < 1e-2
    assert np.abs(np.array(scores) - expected.scores.numpy()).max() < 1e-3
    W, H = Image.open(photos[1]).size
    far = np.array(rows[1][0]).max(0)
    assert (far <= (W, H, W, H)).all()
    assert far[2] > 0.9 * W, "in pixels of the picture, not of what the model saw"


def read_without_torch(path, photos, tmp_path, reader, lines=""):
    """What a function of the example makes of the model's outputs, and what `predict` does."""
    ready, (image, _) = seen(path, photos)
    with torch.no_grad():
        out = ready.task.raw(image)
    np.savez(tmp_path / "out.npz", **{key: value.numpy() for key, value in out.items()})
    program = (
        "import json, runpy, sys\nimport numpy as np\nsys.modules['torch'] = None\n"
        "example, out = runpy.run_path(sys.argv[1]), np.load(sys.argv[2])\n"
        f"how = json.loads(sys.argv[3])\n{lines}boxes, labels, scores = example{reader}\n"
        "print(json.dumps([boxes.tolist(), labels.tolist(), scores.tolist()]))"
    )
    how = json.dumps(ready.task.decoding())
    _, (shares, labels, scores) = alone("detect", program, tmp_path / "out.npz", how)
    (expected,) = ready.task.predict({**out, "size": torch.tensor([[64, 81]])})
    assert labels == expected.labels.tolist()
    away = np.array(shares) * (81, 64, 81, 64) - expected.boxes.numpy()
    assert np.abs(away).max() < 1e-2
    assert np.abs(np.array(scores) - expected.scores.numpy()).max() < 1e-3
    return labels


def test_queries_without_torch(photos, tmp_path):
    """DETR's outputs as its graph gives them; that it does is for the tests of export."""
    pytest.importorskip("transformers")
    settings = Detr(queries=6, dim=16, encoder=1, decoder=1, heads=2, hidden=16, score=0.1)
    net = detr.build("qna_nano", 3, settings)
    path = saved(net, tmp_path / "net.safetensors", settings, short=64, long=96)
    labels = read_without_torch(path, photos, tmp_path, "['by_queries'](out, how)")
    assert len(labels) > 2


def test_places_without_torch(photos, tmp_path):
    """RT-DETR's outputs, read by numpy alone as `predict` reads them."""
    pytest.importorskip("transformers")
    settings = RTDetr(queries=6, dim=16, decoder=1, heads=2, hidden=16, expand=0.5, most=9)
    net = rtdetr.build("linglo_nano", 3, settings)
    path = saved(net, tmp_path / "net.safetensors", settings, short=64, long=96)
    size = "size = np.float32([81, 64])\n"
    labels = read_without_torch(path, photos, tmp_path, "['by_places'](out, size, how)", size)
    assert len(labels) == 9


CUT = """
example["main"](model, *pictures)
inputs = [example["shown"](photo, about).tolist() for photo in photos]
about["decode"]["window"] = 64
windows = example["mask"](session, about, photos[0]).tolist()
print(json.dumps([about, inputs, windows]))
"""


@pytest.mark.slow
@torch.no_grad()
def test_masks_without_torch(run, masks, photos, tmp_path):
    message, (about, inputs, windows) = alone("segment", ALONE + CUT, exported(masks), *photos)
    ready, ours = seen(masks, photos)
    assert_shown_alike(inputs, ours, about)
    assert "own_mask.png" in message[0]
    assert "%" in message[0]
    code, out = run(
        "segment", *map(str, photos), "--model", str(masks), "--out", str(tmp_path)
    )  # fmt: skip
    assert code == 0, out
    theirs, expected = (
        [np.asarray(Image.open(place / f"{path.stem}_mask.png")).astype(int) for path in photos]
        for place in (photos[0].parent, tmp_path)
    )
    first, second = ready.task.net(ours[0])[0].topk(2, 0).values.numpy()
    assert len(np.unique(expected[0])) > 1
    assert set(np.unique(theirs[0])) <= {7, 300, 20}
    assert (first - second)[theirs[0] != expected[0]].max(initial=0) < 1e-3 * np.abs(first).max()
    assert theirs[1].shape == expected[1].shape
    assert (theirs[1] == expected[1]).mean() > 0.98
    ready.task.window = 64
    (looked,) = ready.task.predict(ready.task(ours[0]), [(64, 81)])
    assert (np.array(windows) == looked.numpy()).mean() > 0.999


# -- by name --------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "make", "outputs"),
    [
        (
            "linglo_b0_retinanet",
            lambda: retinanet.build("sasa_nano_conv", 80, dim=16, depth=1, scales=1),
            ["logits", "offsets", "anchors", "counts"],
        ),
        (
            "linglo_b0_semantic_fpn",
            lambda: semantic_fpn.build("sasa_nano_conv", 150, dim=16, inner=16),
            ["logits"],
        ),
    ],
)
def test_a_papers_detector_by_name(run, untyped, monkeypatch, tmp_path, name, make, outputs):
    """Smaller than the paper's, for time's sake."""
    monkeypatch.setitem(detectors.DETECTORS, name, make)
    monkeypatch.chdir(tmp_path)
    code, out = run("export", name, "--untrained", "--to", "torch")
    assert code == 0, out
    extra = {"saccade.json": ""}
    torch.export.load(f"{name}.pt2", extra_files=extra)
    about = json.loads(extra["saccade.json"])
    assert about["outputs"] == outputs
    assert about["test"]["short"] in (512, 800)
    assert about["decode"]["ids"]


# -- the hub --------------------------------------------------------------------------------


def test_a_run_as_the_hub_has_it(run, trained):
    import timm

    code, out = run("export", str(trained), "--to", "hub")
    assert code == 0, out
    assert "bit for bit" in out
    assert "hf upload" in out
    place = trained / "hub"
    files = sorted(path.name for path in place.iterdir())
    assert files == ["README.md", "config.json", "model.safetensors"]
    pulled = timm.create_model(f"local-dir:{place}", pretrained=True)
    assert pulled.num_classes == 3
    assert pulled.pretrained_cfg["label_names"] == ["blue", "green", "red"]
    assert tuple(pulled.pretrained_cfg["input_size"]) == (3, 32, 32)
    assert timm.data.resolve_model_data_config(pulled)["crop_pct"] == 1.0
    text = (place / "README.md").read_text()
    assert text.startswith("---\nlibrary_name: timm\npipeline_tag: image-classification")
    assert "3 classes: blue, green, red." in text
    assert "colours (24 train, 9 val images)" in text
    assert "top-1" in text
    assert str(trained.parent) not in text, "nobody needs to know where images lay"
    photo = str(trained.parent / "colours" / "val" / "red" / "0.png")
    answers = [run("predict", photo, "--model", str(m), "--json")[1] for m in (trained, place)]
    assert json.loads(answers[0])["guesses"] == json.loads(answers[1])["guesses"]


def test_a_detector_as_the_hub_has_it(run, boxes, tmp_path):
    code, out = run("export", str(boxes), "--to", "hub", "--out", str(tmp_path / "hub"))
    assert code == 0, out
    assert sorted(p.name for p in (tmp_path / "hub").iterdir()) == [
        "README.md", "model.safetensors",
    ]  # fmt: skip
    text = (tmp_path / "hub" / "README.md").read_text()
    assert "object-detection" in text
    assert "saccade detect PICTURES" in text
    assert session.open_model(tmp_path / "hub").classes == ["ant", "bee", "cat"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["linglo_b0"], "comes without weights"),
        (["linglo_b0_retinanet"], "comes without weights"),
        (["linglo_b0_retinet", "--untrained"], "did you mean 'linglo_b0_retinanet'"),
        (["linglo_b0", "--untrained", "--to", "hub"], "give a trained model"),
        (["nowhere"], "no run or saved model"),
        (["linglo_nan"], "did you mean 'linglo_nano"),
        (["sasa_resnet5"], "did you mean 'sasa_resnet50 --untrained'"),
        (["linglo_b0", "--to", "torch", "--int8"], "int8 is for ONNX"),
        (["linglo_b0", "--untrained", "--int8"], "give a trained model"),
        (["linglo_b0", "--kernels", "--int8"], "leave out --kernels"),
        (["linglo_b0", "--plain"], "it is for --to torch and aot; leave out --plain"),
        (["linglo_b0", "--to", "aot", "--plain", "--kernels"], "asks for the contrary"),
    ],
)
def test_what_cannot_be_exported_is_said(run, words, message):
    code, out = run("export", *words)
    assert code == 1
    assert message in out


def test_what_an_exporter_stumbles_over_is_one_sentence(run, trained, monkeypatch):
    def stumble(*_):
        raise KeyError("a graph\nof many lines")

    monkeypatch.setattr(export, "to_torch", stumble)
    code, out = run("export", str(trained), "--to", "torch")
    assert code == 1
    assert "does not go to torch (KeyError" in out
    assert "Traceback" not in out

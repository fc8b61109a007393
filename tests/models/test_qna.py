"""QnA-ViT: the authors' micro model block by block, their counts and rates, and every layout."""

import copy
import json

import numpy as np
import pytest
import torch

import saccade
from saccade.bench import peak_memory
from saccade.layers.qna import LearnedQueryAttention
from saccade.layers.window import WindowAttention
from saccade.models import qna
from saccade.models.qna import QnA
from saccade.ops.window import tiled

MICRO = {
    "dim": 16, "depths": (1, 2, 1, 0), "sa_depths": (1, 0, 2, 1), "heads": (2, 4, 8, 16),
    "sa_heads": (2, 2, 4, 4), "sa_windows": (4, 4, 4, 4),
}  # fmt: skip
OFFICIAL = {
    "qna_vit_tiny": "qna_t",
    "qna_vit_tiny_7x7": "qna_t_7x7",
    "qna_vit_small": "qna_s",
    "qna_vit_base": "qna_b",
}
official = pytest.mark.parametrize(("theirs", "ours"), OFFICIAL.items())


def golden(shared):
    path = shared / "golden" / "qna" / "model_micro.npz"
    with np.load(path) as file:
        arrays = {key: file[key] for key in file.files}
    return arrays, qna.from_flax(path, "qna_t", **MICRO)


def relative(ours, theirs):
    theirs = torch.as_tensor(theirs)
    return ((ours.detach() - theirs).abs().max() / theirs.abs().max()).item()


def blocks(model):
    """Every block by the authors' name, in their order."""
    seen = {}
    for path, entry in qna.flax_entries(model).items():
        words = path.split("/")
        if "_Block_" in words[1]:
            name = entry.parameter.split(".")
            seen["/".join(words[:2])] = ".".join(name[:5] if name[3] == "blocks" else name[:4])
    return {path: model.get_submodule(name) for path, name in seen.items()}


def outputs(model, x):
    """What each block and stage of the authors' code gives, from a run of ours."""
    maps, hooks = {}, []

    def keep(name):
        return lambda module, inputs, y: maps.__setitem__(name, y.permute(0, 2, 3, 1))

    named = {"StemBlock_0": model.backbone.stages[0].down, **blocks(model)}
    for name, module in named.items():
        hooks.append(module.register_forward_hook(keep(name)))
    maps["ClassificationHead_0"] = model(x)
    for hook in hooks:
        hook.remove()
    last = maps["StemBlock_0"]
    for i in range(4):
        for kind in ("LSAStage", "QnAStage"):  # a stage gives what its last block gives
            inside = [name for name in named if name.startswith(f"{kind}_{i}/")]
            last = maps[f"{kind}_{i}"] = maps[inside[-1]] if inside else last
    return maps


def test_every_block_of_the_micro_model(shared):
    arrays, model = golden(shared)
    x = torch.tensor(arrays["x"]).permute(0, 3, 1, 2)
    maps = outputs(model, x)
    expected = {key[2:]: a for key, a in arrays.items() if key.startswith("i:")}
    assert len(expected) == 21
    for name, theirs in expected.items():
        ours = maps[name]
        if "MSA_Block" in name:  # theirs stay in windows from block to block
            ours = tiled(ours, 4, 4)
        assert ours.shape == theirs.shape, name
        assert relative(ours, theirs) < 1e-5, name
    assert relative(maps["ClassificationHead_0"], arrays["logits"]) < 1e-6


@pytest.mark.parametrize(
    ("dtype", "end", "bound"), [("float32", "", 1e-5), ("float64", "_f64", 1e-12)]
)
def test_logits_and_gradients_of_the_micro_model(shared, dtype, end, bound):
    arrays, model = golden(shared)
    model = model.to(getattr(torch, dtype))
    x = torch.tensor(arrays["x"]).to(getattr(torch, dtype)).requires_grad_()
    y = model(x.permute(0, 3, 1, 2))
    y.backward(torch.tensor(arrays["cotangent"]).to(y.dtype))
    assert relative(y, arrays["logits" + end]) < bound
    assert relative(x.grad, arrays["grad_x_f64"]) < bound
    for path, entry in qna.flax_entries(model).items():  # weights have theirs in fp32 alone
        gradient = entry.to_theirs(model.get_parameter(entry.parameter).grad)
        theirs = arrays[f"g:{path}"]
        if theirs.size < gradient.numel():  # of large ones, every fifth number is kept
            gradient = gradient.flatten()[::5]
        assert relative(gradient.float(), theirs) < 1e-5, path


@official
def test_the_authors_trees_fit(shared, theirs, ours):
    shapes = json.loads((shared / "golden" / "qna" / "param_shapes.json").read_text())[theirs]
    model = saccade.build(ours, device="meta")
    expected = qna.flax.shapes(model, qna.flax_entries(model))
    assert {path: list(shape) for path, shape in expected.items()} == shapes
    assert len(shapes) == len(list(model.parameters()))
    assert sum(np.prod(shape) for shape in shapes.values()) == sum(
        p.numel() for p in model.parameters()
    )


@official
def test_the_authors_drop_path_rates(shared, theirs, ours):
    rates = json.loads((shared / "golden" / "qna" / "drop_path.json").read_text())[theirs]
    model = saccade.build(ours, device="meta")
    by_block = {
        path: getattr(block.drop, "drop_prob", 0.0) for path, block in blocks(model).items()
    }
    assert [*by_block] == [*rates]
    assert by_block == pytest.approx(rates, abs=1e-12)


# -- weights from elsewhere ------------------------------------------------------------------------


def small_tree():
    model = saccade.build("qna_nano", num_classes=7, in_chans=1).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(std=0.1)
    return model, qna.to_flax(model)


def test_weights_travel_there_and_back(tmp_path):
    model, tree = small_tree()
    path = tmp_path / "a.npz"
    np.savez(path, **{f"params/{key}": a for key, a in tree.items()})
    again = qna.from_flax(path, "qna_nano")
    assert (again.num_classes, again.backbone.in_chans) == (7, 1)
    x = torch.randn(1, 1, 40, 48)
    assert torch.equal(again(x), model(x))


@pytest.mark.parametrize("ours", ["qna_t_7x7", "qna_s"])
def test_shapes_tell_the_variant(ours):
    model = saccade.build(ours, device="meta", num_classes=3)
    shapes = qna.flax.shapes(model, qna.flax_entries(model))
    zeros = {path: np.zeros(shape, np.float32) for path, shape in shapes.items()}
    net = qna.from_flax(zeros)
    assert (net.default_cfg["architecture"], net.num_classes) == (ours, 3)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"QnAStage_1/QnA_Block_1/FusedKQnA_0/Wk": None},
            r"it has no 'QnAStage_1/QnA_Block_1/Fused",
        ),
        ({"StemBlock_0/conv_1x1/kernel": None}, "it has no 'StemBlock_0/conv_1x1/kernel'"),
        (
            {"LSAStage_3/MSA_Block_1/LayerNorm_0/bias": np.zeros(9)},
            r"'LSAStage_3/MSA_Block_1/LayerNorm_0/bias' has shape \(9,\), where \(128,\) is needed",
        ),
        ({"QnAStage_3/QnA_Block_1/LayerNorm_0/bias": np.zeros(9)}, "has no place"),
    ],
)
def test_a_wrong_tree_is_refused_by_its_first_wrong_entry(change, says):
    _, tree = small_tree()
    tree = {key: a for key, a in {**tree, **change}.items() if a is not None}
    with pytest.raises(
        ValueError, match="the tree, read as qna_nano, is of another model: .*" + says
    ):
        qna.from_flax(tree, "qna_nano")


def test_a_tree_of_no_variant_is_refused():
    with pytest.raises(ValueError, match=r"read as qna_., is of another model"):
        qna.from_flax(small_tree()[1])


# -- the network -----------------------------------------------------------------------------------


def test_a_stage_is_a_way_down_then_window_attention_then_queries():
    model = saccade.build("qna_t", device="meta").backbone
    kinds = [[type(block.mix) for block in stage.blocks] for stage in model.stages]
    Q, S = LearnedQueryAttention, WindowAttention
    assert kinds == [[Q] * 2, [Q] * 3, [S] * 4 + [Q] * 2, [S] * 2]
    assert [type(stage.down).__name__ for stage in model.stages] == ["Patches"] + ["QnADown"] * 3
    assert [stage.blocks[0].mix.heads for stage in model.stages] == [8, 16, 8, 16]
    assert [stage.down.mix.heads for stage in model.stages[1:]] == [16, 32, 64]


def test_every_row_of_the_tables_has_a_name():
    rows = {n: len(saccade.names(f"qna_table{n}_*")) for n in (2, 3, 4)}
    assert rows == {2: 9, 3: 5, 4: 12}
    for name in saccade.names("qna_table4_*"):
        parts = name.split("_")
        model = saccade.build(name, device="meta").backbone
        assert (model.depths, model.sa_depths) == tuple(
            tuple(map(int, word)) for word in parts[2:4]
        )
        windows = {m.window for m in model.modules() if isinstance(m, WindowAttention)}
        assert windows <= ({7} if parts[-1] == "w7" else {14, 7})
    heads = saccade.build("qna_table3_q8_16_32_64_s4_8_16_32", device="meta").backbone
    assert (heads.heads, heads.sa_heads) == ((8, 16, 32, 64), (4, 8, 16, 32))


@pytest.mark.parametrize("queries", [1, 2, 3])
def test_section_5_1_varies_the_queries(queries):
    model = saccade.build("qna_table4_2220_1152_w7", queries=queries, device="meta")
    counts = {m.queries for m in model.modules() if isinstance(m, LearnedQueryAttention)}
    assert counts == {queries}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"heads": (8, 16, 3, 64)}, "heads must divide width, got width=256 heads=3"),
        ({"sa_heads": (2, 4, 7, 16)}, "heads must divide dim, got dim=256 heads=7"),
        ({"window": 4}, "its side must be odd, got window=4"),
        ({"sa_windows": (7, 7)}, "one entry per stage"),
    ],
)
def test_what_cannot_be_built_is_refused(arguments, says):
    with torch.device("meta"), pytest.raises(ValueError, match=says):
        QnA(**arguments)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_is_finite(dtype):
    model = saccade.build("qna_nano", num_classes=5).eval()
    x = torch.randn(2, 3, 64, 80) * 3
    with torch.no_grad():
        exact = model(x)
        y = copy.deepcopy(model).to(dtype)(x.to(dtype))
        with torch.autocast("cpu", torch.bfloat16):
            mixed = model(x)
    assert y.isfinite().all()
    assert (y - exact).norm() / exact.norm() < 0.05
    assert (mixed - exact).norm() / exact.norm() < 0.05


def test_checkpointing_saves_memory():
    model = saccade.build("qna_nano", num_classes=10, depths=(3, 3, 1, 0)).train()
    x = torch.randn(1, 3, 80, 80)

    def step():
        model(x).sum().backward()
        model.zero_grad()

    step()
    plain = peak_memory(step)
    model.set_grad_checkpointing()
    assert peak_memory(step) < 0.6 * plain


def test_convolution_blocks_come_first_in_a_stage():
    model = saccade.build("qna_cifar", num_classes=10).backbone
    kinds = [[type(block).__name__ for block in stage.blocks] for stage in model.stages]
    assert kinds == [["SEBasicBlock"] * 2 + ["Block"], ["SEBasicBlock", "Block"], ["Block"]]
    maps = model(torch.zeros(1, 3, 32, 32))
    assert [m.shape[1:3] for m in maps] == [(40, 16), (80, 8), (160, 4)]
    with pytest.raises(ValueError, match="one entry per stage"):
        saccade.build("qna_cifar", conv_depths=(1, 1))

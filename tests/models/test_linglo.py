import copy
import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import saccade
from saccade.bench import peak_memory
from saccade.layers.dot import DotProductAttention
from saccade.layers.linglo import KeyOnlyAttention
from saccade.layers.position import RPCPE
from saccade.models.linglo import LinGlo
from saccade.ops import native
from tests.layers.test_position import as_after_training, branch_by_branch


@pytest.mark.parametrize("norm", [False, True])
def test_fusing_a_whole_model_is_exact(norm, monkeypatch, untyped):
    model = as_after_training(saccade.build("linglo_nano", branch_norm=norm)).double().eval()
    x = torch.randn(2, 3, 48, 56, dtype=torch.float64)
    fused = copy.deepcopy(model).fuse()
    with torch.no_grad():
        y = fused(x)
        assert torch.equal(fused.fuse()(x), y)
        monkeypatch.setattr(RPCPE, "forward", branch_by_branch)
        expected = model(x)
    assert (y - expected).abs().max() <= 1e-14 * max(1, expected.abs().max())
    assert len(fused.state_dict()) < len(model.state_dict())


def test_fusing_is_refused_in_train_mode():
    with pytest.raises(RuntimeError, match=r"call eval\(\) first"):
        saccade.build("linglo_nano").fuse()


def test_timm_fuses_it_too():
    from timm.utils import reparameterize_model

    model = saccade.build("linglo_nano").eval()
    x = torch.randn(1, 3, 64, 64)
    torch.testing.assert_close(reparameterize_model(model)(x), model(x), rtol=1e-5, atol=1e-6)
    assert any(len(m.branches) for m in model.modules() if isinstance(m, RPCPE))


class Copies(TorchDispatchMode):
    """Sizes of the tensors that some operator laid out anew."""

    def __init__(self):
        super().__init__()
        self.sizes = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name in ("clone", "copy_", "contiguous", "_to_copy"):
            self.sizes.append(out.numel())
        return out


@pytest.mark.parametrize("name", ["linglo_b0", "linglo_b0_chhh"])
@pytest.mark.parametrize("train", [False, True])
def test_no_map_is_ever_copied_into_another_layout(name, train):
    model = saccade.build(name, drop_path_rate=0.0).train(train)
    x = torch.randn(2, 3, 160, 160).contiguous(memory_format=torch.channels_last)
    smallest = min(m.numel() for m in model.backbone(x))
    with torch.set_grad_enabled(train), Copies() as copies:
        y = model(x)
        if train:
            y.sum().backward()
    weights = {p.numel() for p in model.parameters()}
    maps = [n for n in copies.sizes if n >= smallest and n not in weights]
    # What is left are matrices per image (B C C) of the collapsed form, smaller than any map.
    assert max(maps, default=0) <= 2 * max(model.backbone.widths) ** 2
    assert all(m.is_contiguous(memory_format=torch.channels_last) for m in model.backbone(x))


@pytest.mark.parametrize("size", [160, 150])
def test_the_deployed_model_copies_no_map(size):
    """Fused, it hands tokens from product to 3x3 to GELU to product as they lie, and its operators
    copy nothing inside either: the profiler sees what a dispatch mode cannot."""
    model = saccade.build("linglo_b0").eval().to(memory_format=torch.channels_last).fuse()
    x = torch.randn(2, 3, size, size).contiguous(memory_format=torch.channels_last)
    with torch.no_grad(), torch.profiler.profile(record_shapes=True) as seen:
        smallest = min(m.numel() for m in model.backbone(x))
    again = ("aten::clone", "aten::contiguous", "aten::_to_copy")
    sizes = [math.prod(e.input_shapes[0]) for e in seen.events() if e.name in again]
    kernels = {e.name for e in seen.events() if e.name.startswith("saccade::")}
    assert bool(kernels) == native.available()
    assert max(sizes, default=0) < smallest


@pytest.mark.slow
def test_checkpointing_saves_memory():
    model = saccade.build("linglo_b0", num_classes=10).train()
    x = torch.randn(4, 3, 160, 160)

    def step():
        model(x).sum().backward()
        model.zero_grad()

    step()
    plain = peak_memory(step)
    model.set_grad_checkpointing()
    assert peak_memory(step) < 0.6 * plain  # of one block, the wide map and its gradient are there


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_is_finite(dtype):
    model = saccade.build("linglo_nano", num_classes=5).eval()
    x = torch.randn(2, 3, 96, 96) * 3
    with torch.no_grad():
        exact = model(x)
        y = copy.deepcopy(model).to(dtype)(x.to(dtype))
        with torch.autocast("cpu", torch.bfloat16):
            mixed = model(x)
    assert y.isfinite().all()
    assert (y - exact).norm() / exact.norm() < 0.05
    assert (mixed - exact).norm() / exact.norm() < 0.05


def test_the_ablations_are_what_they_say():
    def kinds(name, *types):
        model = saccade.build(name, device="meta")
        return [sum(isinstance(m, kind) for m in model.modules()) for kind in types]

    assert kinds("linglo_b0", KeyOnlyAttention, DotProductAttention, RPCPE) == [10, 0, 10]
    assert kinds("linglo_b0_dot", KeyOnlyAttention, DotProductAttention, RPCPE) == [0, 10, 10]
    assert kinds("linglo_b0_chhh", KeyOnlyAttention, RPCPE) == [8, 8]
    assert kinds("linglo_b0_cchh", KeyOnlyAttention, RPCPE) == [5, 5]
    assert kinds("linglo_b0_wo_c", KeyOnlyAttention, RPCPE) == [10, 0]
    flat = saccade.build("linglo_b0_wo_ch", device="meta").backbone
    assert (flat.widths, flat.strides) == ((150,) * 4, (16,) * 4)


def test_dot_product_twins_agree():
    fused = saccade.build("linglo_nano", mixer="dot").eval()
    naive = saccade.build("linglo_nano", mixer="dot-naive").eval()
    naive.load_state_dict(fused.state_dict())
    x = torch.randn(1, 3, 64, 64)
    torch.testing.assert_close(naive(x), fused(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"heads": (1, 2, 3, 8)}, "heads must divide dim, got dim=160 heads=3"),
        ({"position": "rope"}, "position must be one of"),
        ({"mixer": "qkv"}, "mixer must be one of"),
        ({"down": "pool"}, "down must be 'conv' or 'patch'"),
        ({"layout": "HHXH"}, "a letter C or H per stage"),
        ({"layout": "HHH"}, "one entry per stage"),
    ],
)
def test_what_cannot_be_built_is_refused(arguments, says):
    with pytest.raises(ValueError, match=says):
        LinGlo((32, 64, 160, 256), (1, 1, 1, 1), **arguments)


def test_a_word_of_the_layout_has_a_letter_for_each_block():
    model = saccade.build("linglo_cifar", num_classes=10).backbone
    kinds = [[type(block).__name__ for block in stage.blocks] for stage in model.stages]
    assert kinds == [["SEBasicBlock", "Block"]] * 2 + [["Block"]]
    assert [m.shape[2] for m in model(torch.zeros(1, 3, 32, 32))] == [16, 8, 4]
    with pytest.raises(ValueError, match="a letter for each block"):
        saccade.build("linglo_cifar", layout=("CH", "CHH", "H"))
    with pytest.raises(ValueError, match="a letter C or H"):
        saccade.build("linglo_cifar", layout=("CH", "", "H"))


def test_attention_is_in_every_stage_of_the_record_model():
    model = saccade.build("linglo_cifar", num_classes=10)
    for stage in model.backbone.stages:
        assert any(isinstance(m, KeyOnlyAttention) for m in stage.modules())
    assert sum(p.numel() for p in model.parameters()) <= 700_000

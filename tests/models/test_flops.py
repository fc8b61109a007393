"""One number of FLOPs an operator, the equation's: whatever computes it, forward and backward."""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import timm
import torch
from torch.utils.flop_counter import FlopCounterMode

import saccade
from saccade.layers.linglo import KeyOnlyAttention
from saccade.layers.qna import LearnedQueryAttention, LearnedQueryUpsampling
from saccade.layers.sasa import StandAloneAttention
from tests.layers.by_calls import LAYERS

ROOT = Path(__file__).resolve().parents[2]
NANOS = saccade.names("*_nano")
THINGS = [*LAYERS, *NANOS]
everything = pytest.mark.parametrize("name", THINGS)


def thing(name):
    """A layer or model and an input of it."""
    if name in LAYERS:
        layer = LAYERS[name].built().eval()
        if name == "dot":
            layer.fused = False  # torch counts its fused attention device by device
        return layer, LAYERS[name].image()
    torch.manual_seed(0)
    return timm.create_model(name, num_classes=5).eval(), torch.randn(2, 3, 64, 64)


def count(model, x):
    """FLOPs of a forward pass without gradients, with them, and of both passes."""
    with torch.no_grad(), FlopCounterMode(display=False) as alone:
        model(x)
    x = x.detach().requires_grad_()
    with FlopCounterMode(display=False) as recorded:
        y = model(x)
    forward = recorded.get_total_flops()
    with FlopCounterMode(display=False) as backward:
        y.sum().backward()
    return [alone.get_total_flops(), forward, backward.get_total_flops()]


@cache
def counted(name):
    return count(*thing(name))


@cache
def counted_without_kernels():
    code = "import json\nfrom tests.models import test_flops as t\n"
    code += "print(json.dumps({n: t.counted(n) for n in t.THINGS}))"
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env={**os.environ, "SACCADE_NATIVE": "0"}, cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1])


@everything
def test_recording_gradients_changes_no_count(name):
    alone, forward, backward = counted(name)
    assert alone == forward > 0
    assert backward > forward


@pytest.mark.slow
@everything
def test_the_count_is_the_same_without_kernels(name):
    assert counted(name) == counted_without_kernels()[name]


@everything
def test_the_count_is_the_same_on_meta(name):
    model, x = thing(name)
    assert count(model.to("meta"), x.to("meta")) == counted(name)


@everything
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_count_is_the_same_in_every_dtype(name, dtype):
    model, x = thing(name)
    assert count(model.to(dtype), x.to(dtype)) == counted(name)


@everything
def test_the_count_grows_with_the_batch(name):
    model, x = thing(name)
    twice = count(model, torch.cat((x, x)))
    # What does not depend on the image, such as q Wk^T, is done once.
    assert all(1.5 * a < b <= 2 * a for a, b in zip(counted(name), twice, strict=True))


@everything
def test_an_exported_program_counts_the_same(name, untyped):
    model, x = thing(name)
    with torch.no_grad():
        program = torch.export.export(model, (x,)).module()
        with FlopCounterMode(display=False) as counter:
            program(x)
    assert counter.get_total_flops() == counted(name)[0]


def forms(make, values):
    return [pytest.param(make, value, id=f"{make.__name__}-{value}") for value in values]


def key_only(form):
    return KeyOnlyAttention(16, 4, form), torch.randn(2, 7, 9, 16)


def learned_queries(form):
    return LearnedQueryAttention(16, 4, backend=form), torch.randn(2, 7, 9, 16)


def learned_stride(form):
    return LearnedQueryAttention(16, 4, 5, 2, backend=form), torch.randn(2, 7, 9, 16)


def learned_upsampling(form):
    return LearnedQueryUpsampling(16, 4, backend=form), torch.randn(2, 7, 9, 16)


def stand_alone(form):
    return StandAloneAttention(16, heads=2, window=5, backend=form), torch.randn(2, 16, 7, 9)


def stand_alone_mask(form):
    layer = StandAloneAttention(16, heads=2, window=3, border="mask", stride=2, backend=form)
    return layer, torch.randn(2, 16, 7, 9)


@pytest.mark.parametrize(
    ("make", "form"),
    [
        *forms(key_only, ("tokenwise", "folded", "collapsed")),
        *forms(learned_queries, ("convolved",)),
        *forms(learned_stride, ("convolved",)),
        *forms(learned_upsampling, ("convolved",)),
        *forms(stand_alone, ("unfolded", "tiled", "shifted", "blocked", "native")),
        *forms(stand_alone_mask, ("unfolded", "tiled", "shifted", "blocked", "native")),
    ],
)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_every_form_counts_the_same(make, form, device):
    if (form, device) == ("native", "meta"):
        pytest.skip("the C++ kernel reads memory, and a meta tensor has none")
    usual, x = make("auto")
    other, _ = make(form)
    got = count(other.eval().to(device), x.to(device))
    assert got == count(usual.eval().to(device), x.to(device))

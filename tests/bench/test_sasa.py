import pytest
import torch

from saccade.bench import sasa
from saccade.bench.peer import Shape, count, on_meta
from saccade.ops.native import build
from saccade.ops.sasa import local_attention

SAME = ("tiled", "halo", "shifts", "unfold")


@pytest.mark.parametrize("layer", [False, True], ids=["operator", "layer"])
@pytest.mark.parametrize("border", ["zero", "mask"])
@pytest.mark.parametrize("window", [3, 7])
def test_the_peers_compute_the_same(layer, border, window):
    shape = Shape(2, 9, 13, 8, 2)
    forms = sasa.peers(shape, layer=layer, train=True, border=border, window=window)
    y, gradients = forms["sasa"].call()(), None
    for name in ("sasa", *SAME):
        torch.testing.assert_close(forms[name].call()(), y, atol=1e-5, rtol=1e-4)
        torch.manual_seed(1)  # the output's gradient is drawn in the first call
        step = forms[name].call(train=True)()
        gradients = gradients or step
        for ours, theirs in zip(gradients, step, strict=True):
            torch.testing.assert_close(theirs, ours, atol=2e-4, rtol=1e-3)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("border", ["zero", "mask"])
def test_flex_computes_the_same(border, monkeypatch, untyped):
    """Uncompiled, which computes the same and takes no C++ compiler."""
    monkeypatch.setattr(torch, "compile", lambda f, **_: f)
    sasa._compiled_flex.cache_clear()
    forms = sasa.peers(Shape(1, 6, 9, 8, 2), border=border, window=3)
    y = forms["flex"].call()()
    torch.testing.assert_close(y, forms["sasa"].call()(), atol=1e-5, rtol=1e-4)
    sasa._compiled_flex.cache_clear()


@pytest.mark.slow
def test_compiled_flex_computes_the_same(untyped):
    forms = sasa.peers(Shape(1, 14, 14, 32, 4))
    torch.testing.assert_close(forms["flex"].call()(), forms["sasa"].call()(), atol=1e-5, rtol=1e-4)


def test_where_flex_cannot_run_it_says_why(monkeypatch):
    shape = Shape(1, 6, 9, 8, 2)
    assert sasa.peers(shape, train=True)["flex"].absent == "FlexAttention has no backward on CPU"

    def none():
        raise build.NoCompilerError("no C++ compiler found")

    monkeypatch.setattr(build, "compiler", none)
    assert "no C++ compiler found" in sasa.peers(shape)["flex"].absent


def test_work_is_that_of_the_registered_formula():
    forms = sasa.peers(Shape(2, 9, 13, 8, 2), window=5)
    inputs = on_meta(forms["sasa"].inputs)
    assert forms["unfold"].work == count(lambda *t: local_attention(*t, 2, 5), inputs, train=False)
    assert forms["sasa"].work.flops == 3 * 2 * (2 * 9 * 13 * 8) * 5**2


def test_copies_of_windows_must_fit():
    with torch.device("meta"):
        forms = sasa.peers(Shape(64, 1024, 1024, 64, 8), device="meta")
    assert forms["unfold"].needs > 2**40
    assert forms["sasa"].needs == 0

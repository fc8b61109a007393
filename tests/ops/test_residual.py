"""Halves of a block as operators: what layers call in graphs, with weights that may change."""

import gc
import weakref

import pytest
import torch

from saccade.layers.block import Block, FeedForward
from saccade.layers.linglo import KeyOnlyAttention
from saccade.layers.position import RPCPE
from saccade.ops.native import residual as native
from saccade.ops.native.linear import pays
from saccade.ops.operator import use_backend

pytestmark = pytest.mark.usefixtures("untyped")  # torch.compile traces with symbols


def block():
    torch.manual_seed(0)
    mix, ffn = KeyOnlyAttention(24, 2), FeedForward(24, 48, RPCPE(48, norm=False))
    return Block(24, mix, ffn, 0.1).eval()


def image():
    return torch.randn(2, 24, 8, 9).contiguous(memory_format=torch.channels_last)


def apart(y, net, x):
    with use_backend("plain"), torch.no_grad():
        expected = net(x)
    return ((y - expected).abs().max() / expected.abs().max()).item()


def targets(graph):
    return [str(node.target) for node in graph.nodes if "saccade" in str(node.target)]


def test_an_exported_block_is_two_operators():
    net, x = block(), image()
    with torch.no_grad():
        program = torch.export.export(net, (x,))
    names = ["saccade.key_only_residual.default", "saccade.feed_residual.default"]
    assert targets(program.graph) == names
    assert apart(program.module()(x), net, x) < 1e-5


def test_a_block_that_learns_is_exported_with_operators_that_do():
    program = torch.export.export(block().train(), (image(),))
    assert not any("residual" in name for name in targets(program.graph))


def test_a_hooked_part_is_called_in_graphs_too():
    net, x, calls = block(), image(), []
    net.mix.register_forward_hook(lambda *_: calls.append(1))
    with torch.no_grad():
        names = targets(torch.export.export(net, (x,)).graph)
    assert names == ["saccade.key_only.default", "saccade.feed_residual.default"]
    assert calls


@pytest.mark.skipif(not pays(), reason="torch's own product is the faster one here")
def test_weights_are_laid_out_once_and_anew_when_they_change(monkeypatch):
    net, x, packs = block(), image(), []
    pack = native.packed
    monkeypatch.setattr(native, "packed", lambda *a: (packs.append(a[0]), pack(*a))[1])
    with torch.no_grad():
        run = torch.export.export(net, (x,)).module()
        run(x), run(x)
        assert sorted(packs) == ["feed", "key_only"]
        for p in run.parameters():
            p.data.mul_(1.1)  # which no version counter sees
        y = run(x)
    assert sorted(packs) == ["feed", "feed", "key_only", "key_only"]
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(p * 1.1) if p.data_ptr() not in {q.data_ptr() for q in run.parameters()} else 0
    assert apart(y, net, x) < 1e-5


@pytest.mark.skipif(not pays(), reason="torch's own product is the faster one here")
def test_what_was_laid_out_goes_with_the_weights():
    net, x = block(), image()
    with torch.no_grad():
        run = torch.export.export(net, (x,)).module()
        run(x)
    memory = weakref.ref(
        native._MEMORIES[next(p for n, p in run.named_parameters() if "value.w" in n)]
    )
    assert memory() is not None
    del run, net
    gc.collect()
    assert memory() is None


@pytest.mark.parametrize("learns", [False, True])
def test_a_compiled_block_calls_operators(learns):
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    net, x = block(), image()
    with torch.set_grad_enabled(learns):
        y = torch.compile(net, backend=backend)(x)
    kind = "" if learns else "_residual"
    names = [f"saccade.key_only{kind}.default", f"saccade.feed{kind or '_forward'}.default"]
    assert [name for graph in graphs for name in targets(graph.graph)] == names
    assert apart(y.detach(), net, x) < 1e-5

import numpy as np
import pytest
import torch
from torch import nn

from saccade.layers import flax


def parts():
    module = nn.ModuleDict(
        {"a": nn.Linear(3, 5), "b": nn.LayerNorm(4), "c": nn.Conv2d(2, 6, 3, bias=False)}
    )
    entries = {
        **flax.under(
            "Outer", "a", {"Dense/kernel": flax.Entry("weight", lambda t: t.mT, lambda t: t.mT)}
        ),
        "Outer/Dense/bias": flax.Entry("a.bias"),
        **flax.norm("LayerNorm_0", "b"),
        **flax.conv("Conv_0", "c"),
    }
    return module, entries


def test_layouts_there_and_back():
    module, entries = parts()
    theirs = flax.dump(module, entries)
    assert {path: a.shape for path, a in theirs.items()} == flax.shapes(module, entries)
    assert flax.shapes(module, entries) == {
        "Outer/Dense/kernel": (3, 5),
        "Outer/Dense/bias": (5,),
        "LayerNorm_0/scale": (4,),
        "LayerNorm_0/bias": (4,),
        "Conv_0/kernel": (3, 3, 2, 6),
    }
    x = np.random.rand(7, 3).astype(np.float32)
    dense = x @ theirs["Outer/Dense/kernel"] + theirs["Outer/Dense/bias"]
    np.testing.assert_allclose(dense, module["a"](torch.tensor(x)).detach(), rtol=1e-5, atol=1e-6)
    assert theirs["Conv_0/kernel"][1, 2, 0, 4] == module["c"].weight[4, 0, 1, 2].item()
    other, _ = parts()
    flax.load(other, entries, theirs, "test")
    for a, b in zip(other.parameters(), module.parameters(), strict=True):
        assert torch.equal(a, b)


def test_linear_with_and_without_bias():
    assert set(flax.linear("to_v", "value", bias=True)) == {"to_v/kernel", "to_v/bias"}
    assert set(flax.linear("to_v", "value", bias=False)) == {"to_v/kernel"}


def test_what_is_loaded_is_not_shared_and_may_be_read_only():
    module, entries = parts()
    theirs = flax.dump(module, entries)
    for a in theirs.values():
        a.flags.writeable = False
    other, _ = parts()
    flax.load(other, entries, theirs, "test")
    with torch.no_grad():
        other["b"].weight.fill_(7)
    assert module["b"].weight[0] == 1


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"LayerNorm_0/scale": None}, r"it has no 'LayerNorm_0/scale' \(shape \(4,\)\)"),
        (
            {"Conv_0/kernel": np.zeros((6, 2, 3, 3))},
            r"\(6, 2, 3, 3\), where \(3, 3, 2, 6\) is needed",
        ),
        ({"Dense_9/bias": np.zeros(2)}, "'Dense_9/bias' has no place"),
    ],
)
def test_the_first_wrong_entry_is_named(change, says):
    module, entries = parts()
    theirs = {k: a for k, a in {**flax.dump(module, entries), **change}.items() if a is not None}
    with pytest.raises(ValueError, match="from_flax: the file is of another model: .*" + says):
        flax.load(module, entries, theirs, "the file")

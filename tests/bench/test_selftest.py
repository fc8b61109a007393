"""The self-test finds every kernel right here, and a wrong one wrong."""

from dataclasses import replace

import pytest

from saccade.bench import selftest
from saccade.ops import native
from saccade.ops.operator import OPERATORS


def test_every_operator_with_kernels_has_inputs():
    with_kernels = {name for name, operator in OPERATORS.items() if operator.kernels}
    assert with_kernels == {*selftest.INPUTS}


@pytest.mark.skipif(not native.available(), reason=native.where())
def test_every_kernel_here_computes_its_equation():
    findings = list(selftest.verify("cpu", configurations=2, seed=3))
    assert [finding for finding in findings if not finding.fine] == []
    assert {finding.operator for finding in findings if finding.form == "native"}
    assert all(finding.configurations == 2 and finding.error <= 1 for finding in findings)


@pytest.mark.parametrize("damage", ["a wrong number", "not a number", "an error"])
def test_a_wrong_kernel_is_found(monkeypatch, damage):
    operator = OPERATORS["local_attention"]
    kernel = operator.kernels["tiled"]

    def forward(out, residuals, *inputs):
        kernel.forward(out, residuals, *inputs)
        if damage == "an error":
            raise RuntimeError("an illegal instruction\nwas met")
        out.view(-1)[-1] += 0.01 if damage == "a wrong number" else float("nan")

    monkeypatch.setitem(operator.kernels, "tiled", replace(kernel, forward=forward))
    only = {"only": lambda name, form: (name, form) == ("local_attention", "tiled")}
    finding, *_ = selftest.verify("cpu", configurations=1, **only)
    assert not finding.fine
    assert ("an illegal instruction" in finding.wrong) == (damage == "an error")
    assert "[" in finding.wrong  # the shapes that show it

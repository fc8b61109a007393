"""The kernels in Triton's interpreter over random configurations, against float64."""

import pytest


def check(seed, configurations):
    from saccade.bench import selftest

    findings = [*selftest.verify("cpu", configurations, seed, lambda _, form: form == "triton")]
    assert {finding.operator for finding in findings} == {"local_attention", "aggregate"}
    assert [finding for finding in findings if not finding.fine] == []
    assert all(finding.configurations == configurations for finding in findings)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_random_configurations_agree_with_float64(interpreter, seed):
    interpreter(check, seed, 5)

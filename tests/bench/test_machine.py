import torch

from saccade.bench import machine


def test_limits_are_of_this_world():
    limits = machine.limits(256)
    assert 0.1 < limits.gflops < 1e6
    assert 0.1 < limits.gbytes < 1e5
    assert "GFLOP/s" in str(limits)


def test_limits_follow_from_times():
    limits = machine.limits_of({machine.PRODUCT: 2.0, machine.COPY: 1.0}, side=1000)
    assert limits.gflops == 1
    assert limits.gbytes == 2 * 4 * 2**24 / 1e9
    times = {machine.PRODUCT: 2.0, machine.OWN: 1.0, machine.COPY: 1.0}
    assert machine.limits_of(times, side=1000).gflops == 2
    times = {machine.PRODUCT: 2.0, machine.HALF: 2e-3, machine.COPY: 1.0}
    assert machine.limits_of(times, side=1000).gflops == 256**3 * 1e-6


def test_half_precision_has_a_limit_of_its_own():
    assert machine.HALF not in machine.limit_calls()
    calls = machine.limit_calls(torch.bfloat16)
    assert calls[machine.HALF]().dtype == torch.bfloat16
    assert calls[machine.PRODUCT]().dtype == torch.float32


def test_the_stamp_names_versions_and_kernels():
    stamp = machine.stamp()
    assert stamp["torch"] == torch.__version__
    assert stamp["threads"] == torch.get_num_threads()
    assert "kernels" in stamp["kernels"] or "PyTorch" in stamp["kernels"]


def test_free_memory_is_some():
    assert machine.free_memory() > 2**20

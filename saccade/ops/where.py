"""Which backends compute what here, and why, in lines to print."""

from saccade.ops import native, triton
from saccade.ops.operator import OPERATORS


def backends() -> list[str]:
    """The kernels of each kind of device, then the forms of every operator, the preferred first.

    Lines such as "cpu: C++ kernels, avx2 (installed with saccade)"; the first call may build them.
    """
    devices = [f"cpu: {native.where()}", f"cuda: {triton.where()}"]
    return devices + [f"{op.name}: {', '.join(op.ready())}" for op in OPERATORS.values()]

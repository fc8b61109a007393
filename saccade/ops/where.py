"""Which backend computes window attention here, and why: one line per kind of device."""

from saccade.ops import native, triton


def backends() -> list[str]:
    """Lines such as "cpu: C++ kernels, avx2 (built on install)"; the first call may build them."""
    return [f"cpu: {native.where()}", f"cuda: {triton.where()}"]

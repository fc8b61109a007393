"""Interleaved timing, for the scripts beside it: ratios of CPU time survive a busy machine."""

import time
from collections.abc import Callable

import torch


def interleaved(rounds: int, **peers: Callable[[], object]) -> dict[str, float]:
    """Best CPU seconds of each; all take turns, so that a slow moment of the machine hits all.

    Quick ones run several times a turn, about as long as the slowest (but at most 20 times).
    """
    best, repeats = {}, {}
    for name, f in peers.items():
        f()
        best[name] = _once(f)
    for name, seconds in best.items():
        repeats[name] = max(1, min(20, int(max(best.values()) / seconds / 2)))
    for _ in range(rounds):
        for name, f in peers.items():
            best[name] = min(best[name], *(_once(f) for _ in range(repeats[name])))
    return best


def _once(f: Callable[[], object]) -> float:
    start = time.process_time()
    f()
    return time.process_time() - start


def wall(rounds: int, f: Callable[[], object]) -> float:
    """Best wall seconds: what two threads are for."""
    f()
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        f()
        best = min(best, time.perf_counter() - start)
    return best


def training(f: Callable[..., torch.Tensor], tensors, g) -> Callable[[], object]:
    """Forward and backward of f with respect to all its tensors."""
    leaves = [None if t is None else t.detach().requires_grad_() for t in tensors]
    present = [t for t in leaves if t is not None]
    return lambda: torch.autograd.grad(f(*leaves), present, g)


def gemm_gflops(side: int = 1024, dtype: torch.dtype = torch.float32) -> Callable[[], object]:
    a, b = torch.randn(side, side).to(dtype), torch.randn(side, side).to(dtype)
    return lambda: a @ b


def against(value: float, bar: float, unit: str = "x") -> str:
    return f"{value:6.2f}{unit} (bar {bar:g}{unit}{'' if value >= bar else ', NOT met'})"

"""Optimisers and schedules of timm by a recipe, and the moving average of parameters.

rate(step) = peak * lr_scale * schedule(step),   peak = lr * batch / lr_batch
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
from timm.optim import create_optimizer_v2, param_groups_layer_decay
from timm.scheduler import CosineLRScheduler, MultiStepLRScheduler, PolyLRScheduler
from timm.scheduler.scheduler import Scheduler
from torch import Tensor, nn

from saccade.recipes.recipe import Loop, Optim, Schedule
from saccade.tasks.task import Task

TIMM_NAMES = {
    "adamw": "adamw", "adam": "adam", "sgd": "momentum", "nesterov": "nesterov", "muon": "nmuon",
}  # fmt: skip
NARROWEST = 8  # of a matrix whose steps muon orthogonalises


def optimiser(task: Task, optim: Optim, batch: int) -> torch.optim.Optimizer:
    """timm's optimiser over the task's parameters, in groups with and without decay."""
    settings: dict[str, Any] = {"momentum": optim.momentum}
    if optim.name in ("adamw", "adam"):
        settings = {"betas": (optim.momentum, optim.beta)}
    if optim.name == "muon":
        settings |= {"adjust_lr_fn": "original", "betas": (0.9, optim.beta)}
    else:
        # All parameters in one call of a kernel; one by one they cost a small model 4% of its step.
        settings["fused"] = all(p.device.type in ("cpu", "cuda") for p in task.parameters())
    return create_optimizer_v2(
        groups(task, optim), TIMM_NAMES[optim.name], lr=peak(optim, batch),
        weight_decay=optim.weight_decay, filter_bias_and_bn=False, **settings,
    )  # fmt: skip


def peak(optim: Optim, batch: int) -> float:
    """The largest rate, for steps of that many images."""
    return optim.lr if optim.lr_batch is None else optim.lr * batch / optim.lr_batch


def groups(task: Task, optim: Optim) -> list[dict]:
    """Parameters by decay, and by depth where early blocks are to learn more slowly."""
    scales = _scales(task, optim)
    without_decay = task.no_weight_decay() if "declared" in optim.undecayed else set()
    own = {p for head in task.heads() for p in head.parameters()}
    by_settings: dict[tuple[float, float, bool], list[Tensor]] = {}
    for name, p in task.named_parameters():
        if not p.requires_grad:
            continue
        free = name in without_decay or ("vectors" in optim.undecayed and p.ndim <= 1)
        scale, alone = scales.get(name, 1.0), False
        if optim.name == "muon":
            alone = name in without_decay or p in own or not _is_matrix(p)
            scale *= optim.vectors if alone else 1.0
        key = scale, 0.0 if free else optim.weight_decay, alone
        by_settings.setdefault(key, []).append(p)
    return [
        {"params": params, "weight_decay": decay, "lr_scale": scale}
        | ({"use_fallback": alone, "nesterov": not alone} if optim.name == "muon" else {})
        for (scale, decay, alone), params in by_settings.items()
    ]


def _is_matrix(p: Tensor) -> bool:
    """Whether it maps several numbers to several: also a convolution, by its flattened windows."""
    return p.ndim > 1 and min(len(p), p[0].numel()) >= NARROWEST


def _scales(task: Task, optim: Optim) -> dict[str, float]:
    """The share of the rate that each parameter learns with, by name, where it is not 1."""
    scales: dict[str, float] = {}
    if optim.layer_decay is not None:
        names = {p: name for name, p in task.named_parameters()}
        layered = param_groups_layer_decay(task.net, layer_decay=optim.layer_decay)
        scales = {names[p]: float(g["lr_scale"]) for g in layered for p in g["params"]}
    if optim.backbone != 1:
        backbone = getattr(task.net, "backbone", None)
        if not isinstance(backbone, nn.Module):
            raise ValueError("optim.backbone: this network has no backbone apart; leave it at 1")
        own = set(backbone.parameters())  # wherever in the network it lies
        for name, p in task.named_parameters():
            if p in own:
                scales[name] = scales.get(name, 1.0) * optim.backbone
    return scales


def length(plan: Schedule, steps: int) -> int:
    """Steps in all, where an epoch has `steps`."""
    return plan.epochs * steps if plan.iterations is None else plan.iterations


def schedule(optimizer: torch.optim.Optimizer, plan: Schedule, steps: int) -> Scheduler:
    """timm's schedule in steps, of which an epoch has `steps`; `step_update(n)` sets the rate."""
    total, warm = length(plan, steps), round(plan.warmup * steps)
    if warm > total:
        raise ValueError(
            f"schedule: the warm-up lies within the epochs, "
            f"got warmup={plan.warmup} epochs={total / steps:g}; shorten schedule.warmup"
        )
    high = optimizer.param_groups[0]["lr"]
    settings: dict[str, Any] = {
        "warmup_t": warm, "warmup_lr_init": plan.start * high, "t_in_epochs": False,
    }  # fmt: skip
    rest = max(total - warm, 1)
    if plan.shape == "cosine":
        return CosineLRScheduler(
            optimizer, t_initial=rest, lr_min=plan.end * high, warmup_prefix=True, **settings
        )
    if plan.shape == "poly":
        return PolyLRScheduler(
            optimizer, t_initial=rest, power=plan.power, lr_min=plan.end * high,
            warmup_prefix=True, **settings,
        )  # fmt: skip
    at = [round(epoch * steps) + 1 for epoch in plan.steps] if plan.shape == "step" else []
    return MultiStepLRScheduler(  # timm steps one update early: hence + 1
        optimizer, decay_t=at, decay_rate=plan.factor, warmup_prefix=False, **settings
    )


def average(model: nn.Module, loop: Loop) -> "Average | None":
    """The moving average that a recipe asks for, if it does."""
    return None if loop.ema is None else Average(model, loop.ema, loop.ema_ramp)


class Average:
    """The moving average of parameters:  a = decay a + (1 - decay) p  after every step.

    With `ramp`, the decay grows with the steps n, min(decay, (1 + n) / (10 + n)), so that a short
    run's average forgets where it began. It reaches 0.9999 only after 90,000 steps.
    """

    def __init__(self, model: nn.Module, decay: float, ramp: bool = True):
        self.decay, self.ramp = decay, ramp
        self.steps = 0
        self.values = {name: p.detach().clone() for name, p in model.named_parameters()}

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        self.steps += 1
        grown = (1 + self.steps) / (10 + self.steps)
        keep = min(self.decay, grown) if self.ramp else self.decay
        for name, p in model.named_parameters():
            self.values[name].lerp_(p.detach(), 1 - keep)

    @contextmanager
    def applied_to(self, model: nn.Module) -> Generator[None]:
        """The model with its averaged parameters, for as long as it is evaluated or saved."""
        self._swap(model)
        try:
            yield
        finally:
            self._swap(model)

    @torch.no_grad()
    def _swap(self, model: nn.Module) -> None:
        for name, p in model.named_parameters():
            own = p.detach().clone()
            p.copy_(self.values[name])
            self.values[name].copy_(own)

    def state_dict(self) -> dict:
        return {"steps": self.steps, "values": self.values}

    def load_state_dict(self, state: dict) -> None:
        self.steps = state["steps"]
        for name, value in self.values.items():
            value.copy_(state["values"][name])

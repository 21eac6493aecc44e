"""Optimisers and learning rates: DomainBed's Adam, and those of timm by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from dspreg.algorithms.stack import SCALE
from dspreg.config.train_config import TrainConfig
from dspreg.networks.network import Network
from dspreg.networks.stages import timm_model
from dspreg.training.adam import Adam
from dspreg.training.trained_part import layer_groups

FUSED = ("cuda", "mps")  # devices with an Adam in one kernel


def make_optimizer(
    params: Iterable[nn.Parameter], net: Network, settings: TrainConfig, device: str
) -> torch.optim.Optimizer:
    """The optimiser of a stack.

    With layer decay, each of timm's layers of the backbone is a group of its own with its own rate, in which tensors
    of one dimension have no weight decay, as timm has it. What is not in the backbone stays in the first group.

    Args:
        params: All that are trained.
        net: Their network. A stack may have others beside it.
        settings: Every option filled in.
        device: Of the parameters.
    """
    every = list(params)
    if settings.optimizer == "adam" and settings.layer_decay == 1:
        return make_adam(every, settings, device)
    groups: list[dict[str, Any]] = [{"params": every, SCALE: 1.0}]
    if settings.layer_decay < 1:
        layers = decayed_layers(net, settings)
        inside = {id(p) for group in layers for p in group["params"]}
        groups = [{"params": [p for p in every if id(p) not in inside], SCALE: 1.0}, *layers]
    for group in groups:
        group["lr"] = settings.lr * group[SCALE]
    if settings.optimizer == "adam":
        return make_adam(groups, settings, device)
    from timm import optim

    made: torch.optim.Optimizer = optim.create_optimizer_v2(  # type: ignore
        groups, opt=settings.optimizer, lr=settings.lr, weight_decay=settings.weight_decay
    )
    return made


def make_adam(params: Iterable[Any], settings: TrainConfig, device: str) -> Adam:
    """DomainBed's optimiser, in one kernel on a GPU, which rounds otherwise: on the CPU bits stay what they were."""
    fused = True if torch.device(device).type in FUSED else None
    return Adam(params, lr=settings.lr, weight_decay=settings.weight_decay, fused=fused)


def decayed_layers(net: Network, settings: TrainConfig) -> list[dict[str, Any]]:
    """timm's groups of the backbone's parameters, with the factor on the learning rate of each.

    Raises:
        ConfigError: timm knows no groups of it.
    """
    from timm import optim

    layer_groups(net.featurizer, settings.model)
    model = timm_model(net.featurizer)
    assert model is not None
    without: Any = getattr(model.module, "no_weight_decay", set)
    groups: list[dict[str, Any]] = optim.param_groups_layer_decay(  # type: ignore
        model.module,
        weight_decay=settings.weight_decay,
        no_weight_decay_list=without(),
        layer_decay=settings.layer_decay,
    )
    return groups


def learning_rates(settings: TrainConfig) -> Callable[[int], float] | None:
    """Step → factor on the learning rate, a function of the step alone; None where it is always 1.

    warm-up     (t + 1)/(W + 1)                         t < W
    cosine      ½ (1 + cos π (t − W)/(T − W))           t ≥ W, of T steps
    linear      1 − (t − W)/(T − W)
    """
    if settings.schedule == "constant" and not settings.warmup:
        return None
    from timm import scheduler as by_name

    by_timm: dict[str, dict[str, Any]] = {
        "constant": {"sched": "step", "decay_epochs": settings.steps, "decay_rate": 1.0},
        "cosine": {"sched": "cosine"},
        "linear": {"sched": "poly", "decay_rate": 1.0},
    }
    nothing = torch.optim.SGD([nn.Parameter(torch.zeros(()))], lr=1.0)
    scheduler, _ = by_name.create_scheduler_v2(  # type: ignore
        nothing,
        **by_timm[settings.schedule],
        num_epochs=settings.steps - settings.warmup,
        warmup_epochs=settings.warmup,
        warmup_lr=1 / (settings.warmup + 1),
        warmup_prefix=True,
    )

    def factor(t: int) -> float:
        scheduler.step(t)
        return float(nothing.param_groups[0]["lr"])

    return factor

"""Agreement: step less far along parameters on whose gradient the domains disagree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dspreg.algorithms.base import Algorithm, Direction, Log
from dspreg.algorithms.compatibility import Compatibility
from dspreg.algorithms.domain_gradients import gradient_by_domain, shrinkage
from dspreg.algorithms.task import Task
from dspreg.batches import Batch, Objective, at_least_float32
from dspreg.devices import send
from dspreg.distributions import LogUniform
from dspreg.errors import ConfigError
from dspreg.networks import Network
from dspreg.randomness import generator
from dspreg.sensitivity.controls import shuffle_matched
from dspreg.vectors import ParamVector, move_to, theta, trainable

CONTROLS = ("none", "matched")


class Agreement(Algorithm):
    """Step less far along parameters on whose gradient the domains disagree.

        θ_k ← θ_k + r_k Δ_k        r_k ∝ ḡ_k² / (ḡ_k² + strength · V_k/D)        r has mean 1 in every tensor

    Δ is the step of the layers below, Adam's for instance. ḡ and V are mean and variance over the D domains of running
    means of their gradients. ḡ²/(V/D) is the square of a t-value, so a parameter that all domains want to move the same
    way keeps its step, and one that they pull in opposite ways hardly moves. It sees signs and acts on coordinates:
    with the rates permuted it is another update, unlike DSP-Reg's c.

    Args:
        strength: 0 is the base, bitwise. With 1 the rate is the Wiener filter of a common gradient in the domains'.
        beta: Of the running means, one for each domain: with 0.9 over about ten steps.
        prior: How many parts of the tensor's mean variance go into V_k with one part of its own, which has D − 1
            degrees of freedom (the moderated t of Smyth, 2004).
        every: Steps between two computations of the rates.
        control: `"matched"` permutes the rates within each tensor and decile of |ḡ|, at every computation.

    Ours. Neighbours: AND-mask (Parascandolo et al., ICLR 2021) and SAND-mask (Shahtalebi et al., 2021) mask or shrink
    the *gradient* of a batch by the agreement of signs, which Adam's division partly undoes, and JPS (2025) trains a
    fixed subset of consistent parameters. Balles & Hennig (ICML 2018) shrink steps by the same factor with the variance
    between samples.

    Changes `gradient` and `update`. Over layers that change neither forward, loss nor gradient, the gradients of the
    domains make up the whole one, and it takes as many passes as ERM, on smaller batches; else twice as many.
    """

    compatibility = Compatibility(needs_several_domains=True)
    space = {"strength": LogUniform(-1, 2)}
    saved_attributes = ("means", "masses", "rates")

    def __init__(
        self,
        base: Algorithm | None = None,
        *,
        strength: float = 1.0,
        beta: float = 0.9,
        prior: float = 1.0,
        every: int = 5,
        control: str = "none",
    ):
        super().__init__(base)
        for name, value in {"strength": strength, "prior": prior}.items():
            if not 0 <= value < float("inf"):
                raise ConfigError(f"Agreement: {name}={value}; wanted a finite number ≥ 0")
        if not 0 <= beta < 1:
            raise ConfigError(f"Agreement: beta={beta}; wanted a number from 0 to below 1")
        if every < 1 or every != int(every):
            raise ConfigError(f"Agreement: every={every}; wanted a whole number of steps, at least 1")
        if control not in CONTROLS:
            raise ConfigError(f"Agreement: control={control!r}; wanted one of {', '.join(map(repr, CONTROLS))}")
        self.strength, self.beta, self.prior, self.every, self.control = strength, beta, prior, every, control
        self._start(0)

    def _start(self, domains: int) -> None:
        self.means = ParamVector()  # running means of the domains' gradients, (D, …) each, biased towards their start
        self.masses = [0.0] * domains  # sum of the weights in them; numbers of the host, which asks for them
        self.rates = ParamVector()
        self._seen: list[tuple[int, ParamVector]] = []  # domain and gradient, of this step

    def build(self, task: Task) -> Network:
        self._start(task.num_domains)
        return self.base.build(task)

    def gradient(self, objective: Objective, batches: Sequence[Batch]) -> tuple[Tensor, ParamVector]:
        first = self.stack.first_time(self, "gradient")
        if not first or not self.strength or len(batches) < 2:
            return self.base.gradient(objective, batches)
        loss, g, each = gradient_by_domain(self, objective, batches)
        self._seen = [(batch.domain, of_domain) for batch, of_domain in zip(batches, each, strict=True)]
        return loss, g

    def update(self, direction: Direction, batches: Sequence[Batch]) -> Log:
        if not self.strength:
            return self.base.update(direction, batches)
        self._seen = []  # a step of an adversary, such as DANN's, asks for no gradient
        before = theta(self.net)
        log = self.base.update(direction, batches)
        rates = self._take_in() if self._seen else self.rates
        after = trainable(self.net)
        moved = {n: torch.lerp(before[n], after[n].detach(), r.to(before[n].dtype)) for n, r in rates.items()}
        move_to(self.net, ParamVector(moved))
        if rates and self.stack.recording:
            low, middle, high = np.quantile(rates.flat().cpu().numpy(), (0.1, 0.5, 0.9)).tolist()
            self.note(rate_10=low, rate_50=middle, rate_90=high)
        return log

    @torch.no_grad()
    def _take_in(self) -> ParamVector:
        """Take this step's gradients into the running means; the rates, computed anew where it is time."""
        masses, means = list(self.masses), dict(self.means)
        for d, _ in self._seen:
            masses[d] = masses[d] * self.beta + (1 - self.beta)
        for name, p in trainable(self.net).items():
            if not any(name in g for _, g in self._seen):
                continue
            old = means.get(name)
            new = at_least_float32(p.new_zeros(len(masses), *p.shape)) if old is None else old.clone()
            for d, g in self._seen:
                new[d].mul_(self.beta)
                if name in g:
                    new[d].add_(g[name], alpha=1 - self.beta)
            means[name] = new
        self.stage("means", ParamVector(means))
        self.stage("masses", masses)
        if self.rates and self.t % self.every:
            return self.rates
        present = [d for d, mass in enumerate(masses) if mass]
        rates = ParamVector((name, self._rates(name, m, masses, present)) for name, m in means.items())
        self.stage("rates", rates)
        return rates

    def _rates(self, name: str, means: Tensor, masses: Sequence[float], present: Sequence[int]) -> Tensor:
        if len(present) < len(masses):
            means = torch.stack([means[d] for d in present])
        weights = send(torch.tensor([masses[d] for d in present], dtype=means.dtype), means.device)
        gradients = means / weights.view(-1, *[1] * (means.ndim - 1))  # unbiased
        rates = agreement_rates(gradients, self.strength, self.prior)
        if self.control == "matched":
            return shuffle_matched(rates, gradients.mean(0).abs(), generator(*self.task.key, self.t, name, "agreement"))
        return rates

    def get_extra_state(self) -> dict[str, Any]:
        return super().get_extra_state() | {"masses": torch.tensor(self.masses, dtype=torch.float64)}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        super().set_extra_state(state | {"masses": state["masses"].tolist()})


def agreement_rates(gradients: Tensor, strength: float, prior: float) -> Tensor:
    """r of one parameter tensor from the domains' gradients (D, …), mean 1."""
    rates = shrinkage(gradients, strength, prior)
    mean = rates.mean()
    return torch.where(mean > 0, rates / mean.clamp(min=torch.finfo(rates.dtype).tiny), 1.0)

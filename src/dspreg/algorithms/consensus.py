"""Consensus: predict with every unit moved only as far as all domains profit from its move."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from dspreg.algorithms.base import Algorithm, to_param_device
from dspreg.algorithms.compatibility import Compatibility
from dspreg.algorithms.domain_gradients import gradient_by_domain, shrinkage
from dspreg.algorithms.task import Task
from dspreg.batches import Batch, Objective, at_least_float32
from dspreg.distributions import LogUniform
from dspreg.errors import ConfigError
from dspreg.networks import Network
from dspreg.randomness import generator
from dspreg.sensitivity.controls import shuffle_matched
from dspreg.vectors import ParamVector, move_to, standing_at, theta, trainable

CONTROLS = ("none", "matched", "mean")


class Consensus(Algorithm):
    """Predict with every unit moved from its start only as far as all domains profit from its move.

        ω_u^(d) = −Σ_t ⟨∂_u L_d(θ_t), (θ_t − θ_{t−1})_u⟩        predict with θ⁰ + r ⊙ (θ − θ⁰)
        r_u = ω̄_u² / (ω̄_u² + strength · V_u/D) where ω̄_u > 0, else 0

    ω_u^(d) is the credit of unit u for domain d: how much of the fall of L_d, to first order, the moves of its weights
    have brought (the path integral of Zenke et al., 2017, for each domain). The gradient is that of the batch after the
    move, so that a batch gets no credit for its own noise. ω̄ and V are mean and variance over the D domains. A unit
    that served all of them keeps its move; one that served some at the expense of others returns to its start. A unit
    is an output channel: one row of a weight, one entry of a bias or of a normalisation.

    Training is that of the layers below: only the prediction differs.

    Args:
        strength: 0 moves back none but the units of negative credit.
        prior: How many parts of the tensor's mean variance go into V_u with one part of its own.
        exclude: Parameters that keep their move, by patterns on their names: the classifier has no start worth keeping.
        control: `"matched"` permutes r within each tensor among units that moved as far (deciles); `"mean"` has the
            mean of the tensor's r for all its units: weights interpolated layer by layer, as WiSE-FT does for the whole
            network (Wortsman et al., 2022).

    Ours. Changes `gradient`, for the domains' gradients, which it adds up to the whole one, and `predict`.
    """

    compatibility = Compatibility(
        needs_several_domains=True,
        trains_featurizer=True,
        predicts_at_other_weights=True,
        predicts_from_current_weights=True,
    )
    space = {"strength": LogUniform(-1, 2)}
    saved_attributes = ("start", "rates")  # what a prediction needs; the rest is in the checkpoint

    def __init__(
        self,
        base: Algorithm | None = None,
        *,
        strength: float = 1.0,
        prior: float = 1.0,
        exclude: str | list[str] | None = "classifier.*",
        control: str = "none",
    ):
        super().__init__(base)
        for name, value in {"strength": strength, "prior": prior}.items():
            if not 0 <= value < float("inf"):
                raise ConfigError(f"Consensus: {name}={value}; wanted a finite number ≥ 0")
        if control not in CONTROLS:
            raise ConfigError(f"Consensus: control={control!r}; wanted one of {', '.join(map(repr, CONTROLS))}")
        self.strength, self.prior, self.exclude, self.control = strength, prior, exclude, control
        self._begin()

    def _begin(self) -> None:
        self.start = ParamVector()  # θ⁰
        self.before = ParamVector()  # θ_{t−1}
        self.credit = ParamVector()  # ω, (D, units) for each parameter
        self.rates = ParamVector()  # r

    def build(self, task: Task) -> Network:
        self._begin()
        return self.base.build(task)

    def configure_optimizer(self, optimizer: torch.optim.Optimizer) -> None:  # noqa: ARG002
        self.start = theta(self.net).select(exclude=self.exclude)
        self.before = self.start
        self.credit = self.start.map(lambda t: at_least_float32(t.new_zeros(self.task.num_domains, units(t))))
        self.rates = self.start.map(torch.ones_like)

    def gradient(self, objective: Objective, batches: Sequence[Batch]) -> tuple[Tensor, ParamVector]:
        if len(batches) < 2 or not self.stack.first_time(self, "gradient"):
            return self.base.gradient(objective, batches)
        loss, g, each = gradient_by_domain(self, objective, batches)
        now = theta(self.net).select(exclude=self.exclude)
        move = now - self.before
        credit = self.credit.map(Tensor.clone)
        for batch, of_domain in zip(batches, each, strict=True):
            for name, part in (of_domain * move).items():
                credit[name][batch.domain].sub_(by_unit(part).sum(1))
        self.stage("credit", credit)
        self.stage("before", now)
        return loss, g

    def on_step_end(self) -> None:
        params = trainable(self.net)
        self.rates = ParamVector((name, self._rates(name, params[name].detach())) for name in self.start)

    def _rates(self, name: str, now: Tensor) -> Tensor:
        credit = self.credit[name]
        rates = torch.where(credit.mean(0) > 0, shrinkage(credit, self.strength, self.prior), 0.0)
        rates = torch.where(credit.any(), rates, 1.0)  # nothing known yet: all of the way
        if self.control == "mean":
            rates = rates.mean().expand_as(rates)
        elif self.control == "matched":
            moved = by_unit(now - self.start[name]).norm(dim=1)
            rates = shuffle_matched(rates, moved, generator(*self.task.key, name, "consensus"))
        return rates.to(now.dtype)[:, None].expand_as(by_unit(now)).reshape(now.shape)

    def point(self) -> ParamVector:
        """θ⁰ + r ⊙ (θ − θ⁰); θ is where a layer above stands, such as an average."""
        now = ParamVector((name, p.detach()) for name, p in trainable(self.net).items())
        return self.start.map(torch.lerp, now, self.rates)

    def predict(self, x: Tensor) -> Tensor:
        with standing_at(self.net, self.point()):
            return self.base.predict(x)

    def on_load(self) -> None:
        """Move the network there: whoever exports, measures or adapts it finds what predicts."""
        move_to(self.net, self.point())
        self.rates = self.start.map(torch.ones_like)  # it has been moved

    def measured(self, batch: Batch) -> Callable[[Tensor], Tensor]:
        return self.base.measured(batch)  # c is of the weights that are trained

    def get_extra_state(self) -> dict[str, Any]:
        return super().get_extra_state() | {"before": dict(self.before), "credit": dict(self.credit)}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        super().set_extra_state(state)
        self.before, self.credit = (to_param_device(state[name], self.net) for name in ("before", "credit"))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Consensus:
        super()._apply(fn, recurse)
        self.before, self.credit = self.before.map(fn), self.credit.map(fn)
        return self


def by_unit(t: Tensor) -> Tensor:
    """(units, weights of each)."""
    return t.reshape(len(t), -1) if t.ndim > 1 else t.reshape(-1, 1)


def units(t: Tensor) -> int:
    return len(by_unit(t))

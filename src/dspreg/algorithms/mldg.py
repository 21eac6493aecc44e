"""MLDG: a step on some domains should help on the others."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dspreg.algorithms.base import Algorithm
from dspreg.algorithms.compatibility import Compatibility
from dspreg.algorithms.stack import network_groups
from dspreg.batches import Batch, Objective
from dspreg.distributions import Choice, LogUniform
from dspreg.errors import ConfigError
from dspreg.randomness import generator
from dspreg.vectors import ParamVector, displaced, trainable


class MLDG(Algorithm):
    """Meta-learning: add the gradient of other domains, taken where a step on this one leads.

        1/D Σ_pairs [ g_i + beta · ∇L_j(θ + δ_i) ],  g_i = ∇L_i(θ),  δ_i the first step of Adam along g_i

    The domains are split at random into D − n_meta_test that meta-train and n_meta_test that meta-test, and the k-th of
    the former is paired with the k-th of the latter, in turn. With D = 3 and n_meta_test = 2 that is one pair.

    Li et al., AAAI 2018, first-order as in DomainBed, whose inner Adam has the learning rate and weight decay of the
    run, whatever the optimiser. DomainBed crops each pair to the shorter batch, ours are whole: the same for batches of
    one size. Where DomainBed would be left without a pair, n_meta_test is at most D − 1. A single domain takes the step
    of the base. All passes of a step see the same dropout mask. Changes `gradient`; two passes over each pair.
    """

    compatibility = Compatibility(calls_base_per_domain=True, needs_several_domains=True)
    space = {"beta": LogUniform(-1, 1, key="mldg_beta"), "n_meta_test": Choice(1, 2, key="n_meta_test")}

    def __init__(self, base: Algorithm | None = None, *, beta: float = 1.0, n_meta_test: int = 2):
        super().__init__(base)
        if n_meta_test < 1:
            raise ConfigError(f"MLDG: n_meta_test={n_meta_test}; wanted at least 1")
        if not 0 <= beta < float("inf"):
            raise ConfigError(f"MLDG: beta={beta}; wanted a finite number ≥ 0")
        self.beta, self.n_meta_test = beta, n_meta_test

    def gradient(self, objective: Objective, batches: Sequence[Batch]) -> tuple[Tensor, ParamVector]:
        if len(batches) == 1:
            return self.base.gradient(objective, batches)
        losses, total = [], ParamVector()
        for here, there in self.pairs(batches):
            loss, g = self.base.gradient(objective, [here])
            with displaced(self.net, self.first_step(g)):
                other, ahead = self.base.gradient(objective, [there])
            losses.append(loss + self.beta * other)
            total = total + g + ahead * self.beta
        return torch.stack(losses).sum() / len(batches), total / len(batches)

    def pairs(self, batches: Sequence[Batch]) -> list[tuple[Batch, Batch]]:
        """The same ones however often a step asks."""
        order = torch.randperm(len(batches), generator=generator(*self.task.key, self.t, "MLDG")).tolist()
        tests = min(self.n_meta_test, len(batches) - 1)
        meta_train, meta_test = order[:-tests], order[-tests:]
        return [(batches[i], batches[meta_test[k % tests]]) for k, i in enumerate(meta_train)]

    def first_step(self, g: ParamVector) -> ParamVector:
        """Of Adam: −lr · ĝ/(|ĝ| + 1e-8) with ĝ = g + weight decay · θ."""
        first, params = self.stack.optimizer.param_groups[0], trainable(self.net)
        own = {id(p): group for group in network_groups(self.stack.optimizer) for p in group["params"]}
        groups = {name: own.get(id(p), first) for name, p in params.items()}  # with layer decay there are several
        decayed = ParamVector(
            (name, t + groups[name].get("weight_decay", 0.0) * params[name].detach()) for name, t in g.items()
        )
        return ParamVector((name, -groups[name]["lr"] * t / (t.abs() + 1e-8)) for name, t in decayed.items())

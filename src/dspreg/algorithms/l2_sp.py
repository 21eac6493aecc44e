"""L2SP: weight decay towards the pretrained weights."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from dspreg.algorithms.anchor import Anchor
from dspreg.algorithms.base import Algorithm
from dspreg.batches import Batch, Objective
from dspreg.distributions import LogUniform
from dspreg.errors import ConfigError
from dspreg.vectors import ParamVector, trainable


class L2SP(Anchor):
    """L2-SP: decay towards the start where there is one worth keeping, and towards 0 elsewhere.

        L + alpha/2 · Σ_{k old} (θ_k − θ⁰_k)² + beta/2 · Σ_{k new} θ_k²

    New are the parameters that `exclude` names, the classifier's; θ⁰ is the network before step 0.

    Li et al., ICML 2018, with the values of their script (a ResNet-101, SGD); the search space is ours, around them.
    Theirs penalises weights alone, and in a variant all parameters, as here. Under Adam this is a term of the loss and
    not a decoupled decay. `Anchor(by='ones', weight=alpha/2)` is the first term alone. Changes `gradient`; no pass.
    """

    space = {"alpha": LogUniform(-3, 0), "beta": LogUniform(-3, -1)}

    def __init__(
        self,
        base: Algorithm | None = None,
        *,
        alpha: float = 0.1,
        beta: float = 0.01,
        exclude: str | list[str] | None = "classifier.*",
    ):
        if not 0 < alpha < float("inf"):
            raise ConfigError(f"L2SP: alpha={alpha}; wanted a finite number > 0")
        if not 0 <= beta < float("inf"):
            raise ConfigError(f"L2SP: beta={beta}; wanted a finite number ≥ 0")
        super().__init__(base, weight=alpha / 2, by="ones", exclude=exclude)
        self.alpha, self.beta = alpha, beta

    def gradient(self, objective: Objective, batches: Sequence[Batch]) -> tuple[Tensor, ParamVector]:
        loss, g = super().gradient(objective, batches)
        new = ParamVector((name, p.detach()) for name, p in trainable(self.net).items() if name not in self.start)
        return loss, g + new * self.beta

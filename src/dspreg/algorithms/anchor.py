"""Anchor: stay near the weights training began with, each parameter by its own weight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from dspreg.algorithms.base import Algorithm, Direction, Log
from dspreg.algorithms.compatibility import ONLY_CLASSES, Compatibility
from dspreg.algorithms.measure import BATCHES, measuring, refresh_due
from dspreg.algorithms.task import Task
from dspreg.batches import Batch, Objective
from dspreg.distributions import LogUniform
from dspreg.errors import ConfigError
from dspreg.networks import Network
from dspreg.randomness import generator
from dspreg.sensitivity.controls import shuffle, shuffle_matched
from dspreg.sensitivity.refresh import measure_c_and_mean
from dspreg.vectors import ParamVector, theta, trainable

BY = ("c", "s", "ones")
CONTROLS = ("none", "matched", "shuffled")


class Anchor(Algorithm):
    """Stay near the weights training began with, each parameter by its own weight.

        L + λ Σ_k w_k (θ_k − θ⁰_k)²        w has mean 1 over the anchored parameters

    θ⁰ is the network before step 0, so anchoring means something where that is pretrained; the new classifier is left
    out. Unlike DSP-Reg's penalty, w_k multiplies its own coordinate.

    Args:
        weight: λ. 0 is the base, bitwise.
        by: `"c"`, DSP-Reg's coefficients; `"s"`, the mean sensitivity over domains: a diagonal Fisher, so this is EWC
            (Kirkpatrick et al., 2017) with the Fisher of the training task; `"ones"`: L2-SP (Li et al., ICML 2018).
        of: What s and c are of: `"loss"`, `"output"` or `"fisher"`; see `dspreg.measure`.
        refresh_epochs, refresh_steps, measure_batches: When and on how much w is measured, as in DSP-Reg; w = 1 before.
        exclude: Parameters that are not anchored, by patterns on their names.
        control: `"shuffled"` permutes w within each tensor at every refresh, `"matched"` within each tensor and decile
            of s̄ (of c, where w is s̄).

    Changes `gradient`, and `update` for the refresh. No pass beside those of the refreshes.
    """

    compatibility = Compatibility(trains_featurizer=True)
    space = {"weight": LogUniform(-3, 1)}
    saved_attributes = ("start", "w", "refreshed_at")
    instead: ClassVar[str] = "by='ones'"  # what to use where s can't be measured

    def __init__(
        self,
        base: Algorithm | None = None,
        *,
        weight: float = 0.1,
        by: str = "c",
        of: str = "loss",
        refresh_epochs: int = 2,
        refresh_steps: int | None = None,
        measure_batches: int = BATCHES,
        exclude: str | list[str] | None = "classifier.*",
        control: str = "none",
    ):
        super().__init__(base)
        if not 0 <= weight < float("inf"):
            raise ConfigError(f"{self.name}: weight={weight}; wanted a finite number ≥ 0")
        for name, value, known in (("by", by, BY), ("control", control, CONTROLS)):
            if value not in known:
                raise ConfigError(f"Anchor: {name}={value!r}; wanted one of {', '.join(map(repr, known))}")
        if by == "ones" and control != "none":
            raise ConfigError(f"Anchor: control={control!r} changes nothing with by='ones'; leave it out")
        self.weight, self.by, self.of, self.exclude, self.control = weight, by, of, exclude, control
        self.refresh_epochs, self.refresh_steps, self.measure_batches = refresh_epochs, refresh_steps, measure_batches
        if of == "fisher" and by != "ones":
            self.compatibility = Compatibility(trains_featurizer=True, kinds=ONLY_CLASSES, option="of='fisher'")
        self._begin()

    @property
    def name(self) -> str:
        """For messages."""
        return type(self).__name__

    def _begin(self) -> None:
        self.start = ParamVector()  # θ⁰
        self.w = ParamVector()  # ones until it is measured
        self.refreshed_at: int | None = None

    def build(self, task: Task) -> Network:
        if self.uses_c and not task.can_measure:
            raise ConfigError(
                f"{self.name} measures s and c during training: give the Task a `samples` function, or {self.instead}"
            )
        if self.uses_c and task.num_domains < 2:
            raise ConfigError(
                f"{self.name} compares source domains and there is 1: {task.domains[0]}. Use {self.instead}"
            )
        self._begin()
        return self.base.build(task)

    def configure_optimizer(self, optimizer: torch.optim.Optimizer) -> None:  # noqa: ARG002
        if self.weight:
            self.start = theta(self.net).select(exclude=self.exclude)

    @property
    def uses_c(self) -> bool:
        """Whether c is measured, so that a trainer keeps a profile before and after."""
        return bool(self.weight) and self.by != "ones"

    def due(self, t: int, steps_per_epoch: int | None = None) -> bool:
        """Whether w is measured before step t, as in DSP-Reg."""
        return refresh_due(t, self.refresh_epochs, self.refresh_steps, steps_per_epoch or self.task.steps_per_epoch)

    def update(self, direction: Direction, batches: Sequence[Batch]) -> Log:
        due = self.uses_c and self.due(self.t)
        if due and self.refreshed_at != self.t:  # a layer above, such as Fish, may update several times in one step
            self.w, self.refreshed_at = self.measure_weights(), self.t
        return self.base.update(direction, batches)

    def measure_weights(self) -> ParamVector:
        """w on fresh samples of the source domains."""
        options: dict[str, Any] = {"of": self.of, "exclude": self.exclude}
        with measuring(self, self.measure_batches, **options) as (meter, f, domains):
            c, s = measure_c_and_mean(meter, f, domains)
            s = ParamVector((name, t / meter.scales.get(name, 1.0) ** 2) for name, t in s.items())
        w, like = (c, s) if self.by == "c" else (s, c)
        if self.control != "none":
            w = ParamVector((name, self._permute(name, t, like[name])) for name, t in w.items())
        scale = self.scale(w)
        return w.map(lambda t, start: (t / scale).to(start.dtype), self.start)

    def scale(self, w: ParamVector) -> Tensor | float:
        """What w is divided by: its mean."""
        return w.sum() / w.numel()

    def _permute(self, name: str, w: Tensor, like: Tensor) -> Tensor:
        random = generator(*self.task.key, self.t, name, "shuffle")
        return shuffle(w, random) if self.control == "shuffled" else shuffle_matched(w, like, random)

    def gradient(self, objective: Objective, batches: Sequence[Batch]) -> tuple[Tensor, ParamVector]:
        loss, g = self.base.gradient(objective, batches)
        if not self.weight:
            return loss, g
        params = trainable(self.net)
        away = self.start.map(lambda start, p: p.detach() - start, ParamVector(params))
        pull = self.w * away if self.w else away
        if self.stack.recording:
            self.note(distance=away.norm(), ratio=2 * self.weight * pull.norm() / g.norm())
        return loss, g + pull * (2 * self.weight)

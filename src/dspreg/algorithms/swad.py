"""SWAD: predict with the mean of the weights from where the validation loss has stopped falling to its rise."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from dspreg.algorithms.base import Algorithm
from dspreg.algorithms.loss_valley import LossValley, Segment
from dspreg.algorithms.task import SourceValidation
from dspreg.algorithms.weight_average import AverageWithStatistics
from dspreg.errors import ConfigError
from dspreg.networks.batch_norm import copy_statistics, estimating_statistics, moves_statistics, scratch_buffers
from dspreg.vectors import ParamVector, standing_at, theta, to_device, trainable


class SWAD(AverageWithStatistics):
    """Stochastic weight averaging, densely: the mean of all weights while the source-validation loss is in its valley.

        θ̄ = mean over segments of ( mean of θ_t over a segment's steps ),  segments from evaluation to evaluation

    The loss is that of the trained weights, the mean over source domains, at every evaluation. The valley starts where
    `n_converge` evaluations in a row do not go below the first of them. It ends when the last `n_tolerance` are all
    above 1 + `tolerance_ratio` times the mean of those; `loss_valley.LossValley` has the rule in full. At every
    evaluation it predicts as if training ended there: before the valley with the mean of the last segment, as the
    original does if it never comes (with the one before it where the end of the run cuts it short), and after it with
    the same mean on and on. Training is that of the base, to the bit. A layer that has its own prediction goes below:
    'ARM+SWAD'.

    Segments follow the evaluations, so --evaluate-every matters, and is shorter in a short run: Cha et al. publish 100
    for 5,001 steps (50 on VLCS, with tolerance_ratio 0.2; 500 for DomainNet's 15,001) and the swad protocol. Running
    statistics of a batch norm that is not frozen are taken anew before each evaluation, with the averaged weights, on
    `bn_batches` batches of 32 plain training images per source domain.

    Cha et al., NeurIPS 2021. They stop training when the valley ends; here it goes on, and the prediction does not
    change. They take batch norm's statistics once, at the end, on 500 augmented batches. Changes the prediction alone:
    one more pass over the validation images per evaluation, and up to n_tolerance + 3 copies of the weights, all but
    two of them on the CPU.
    """

    def __init__(
        self,
        base: Algorithm | None = None,
        *,
        n_converge: int = 3,
        n_tolerance: int = 6,
        tolerance_ratio: float = 0.3,
        bn_batches: int = 100,
    ):
        super().__init__(base)
        for name, value in (("n_converge", n_converge), ("n_tolerance", n_tolerance), ("bn_batches", bn_batches)):
            if value < 1:
                raise ConfigError(f"SWAD: {name}={value}; wanted a number ≥ 1")
        if not 0 <= tolerance_ratio < float("inf"):
            raise ConfigError(f"SWAD: tolerance_ratio={tolerance_ratio}; wanted a number ≥ 0")
        self.n_converge, self.n_tolerance, self.tolerance_ratio = n_converge, n_tolerance, tolerance_ratio
        self.bn_batches = bn_batches
        self.valley = LossValley(n_converge, n_tolerance, tolerance_ratio)
        self.segment, self.segment_steps, self.segment_start = ParamVector(), 0, 0

    @torch.no_grad()
    def on_step_end(self) -> None:
        if self.valley.ended:
            return
        self.segment_steps += 1
        if not self.segment:
            self.segment = theta(self.net)
            return
        params = trainable(self.net)
        now: list[Tensor] = [params[name] for name in self.segment]
        torch._foreach_lerp_(list(self.segment.values()), now, 1 / self.segment_steps)

    def before_evaluation(self, validation: SourceValidation) -> None:
        if self.valley.ended:
            return
        weights = to_device(self.segment or theta(self.net), "cpu")  # in half precision all steps may be left out
        valley, had_converged = copy(self.valley), self.valley.window is not None
        valley.add(Segment(self.segment_start, validation.step, fmean(validation.loss.values()), weights))
        window = valley.result()
        mean = to_device(window.weights, next(self.net.parameters()).device)
        statistics = self._statistics(mean) if moves_statistics(self.net) else None  # where training may be stopped
        self.valley, self.mean, self.count, self.statistics = valley, mean, window.steps, statistics
        self.segment, self.segment_steps, self.segment_start = ParamVector(), 0, validation.step + 1
        if valley.window is not None and not had_converged:
            at, first = valley.converged_at, valley.window.first
            self.log_event("valley starts", converged_at=at, first=first, threshold=valley.threshold)
        if valley.ended:
            self.log_event("valley ends", first=window.first, last=window.last, segments=window.segments)

    @torch.no_grad()
    def _statistics(self, mean: ParamVector) -> Tensor:
        """Running statistics of batch norm at the mean, on the same images at every evaluation."""
        with scratch_buffers(self.net), standing_at(self.net, mean), estimating_statistics(self.net):
            for n in range(self.bn_batches):
                drawn = self.task.samples(-1 - n, 1)  # below 0: no step measures on these
                self.base.predict(torch.cat([batch.x for each in drawn.values() for batch in each]))
                self.task.on_progress()
            return copy_statistics(self.net)

    # The valley is in checkpoints; a saved model needs the mean alone.

    def get_extra_state(self) -> dict[str, Any]:
        segment = {"weights": dict(self.segment), "steps": self.segment_steps, "start": self.segment_start}
        return {**super().get_extra_state(), "valley": self.valley.state(), "segment": segment}

    def set_extra_state(self, state: Mapping[str, Any]) -> None:
        super().set_extra_state(dict(state))
        self.valley.load_state(state["valley"])
        saved = state["segment"]
        device = next(self.net.parameters()).device
        self.segment = to_device(ParamVector(saved["weights"]), device)
        self.segment_steps, self.segment_start = saved["steps"], saved["start"]

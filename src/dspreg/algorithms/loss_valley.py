"""Which weights of a training SWAD averages: those from where the validation loss has stopped falling to its rise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

import torch

from dspreg.vectors import ParamVector


@dataclass(frozen=True)
class Segment:
    """The mean of the weights over the steps between two evaluations, and the validation loss at the second."""

    first: int  # step
    last: int
    loss: float  # of the weights there, not of the mean
    weights: ParamVector

    @property
    def steps(self) -> int:
        return self.last - self.first + 1


@dataclass(frozen=True)
class Window:
    """The mean of segments, each of which counts the same however many steps it has."""

    weights: ParamVector
    first: int
    last: int
    segments: int = 0  # 0: the weights are a stand-in until the first segment comes

    @property
    def steps(self) -> int:
        return self.last - self.first + 1

    def adding(self, segment: Segment) -> Window:
        if not self.segments:
            return Window(segment.weights, segment.first, segment.last, 1)
        new = [segment.weights[name] for name in self.weights]
        mean = torch._foreach_lerp(list(self.weights.values()), new, 1 / (self.segments + 1))
        weights = ParamVector(zip(self.weights, mean, strict=True))
        return Window(weights, self.first, segment.last, self.segments + 1)


class LossValley:
    """Finds the window, segment by segment.

    It *converges* at a segment whose loss none of the n_converge − 1 segments after it goes below. The mean loss of
    these n_converge, times 1 + tolerance_ratio, is the threshold. The window starts before that segment, as far back as
    losses are below the threshold and n_tolerance reaches. Then a segment is in it as soon as n_tolerance − 1 more are
    known, unless all of them are above the threshold: the valley has ended, and nothing is added any more.

    Cha et al., NeurIPS 2021, with what their code does beyond the paper: the first segment of the way back is left out,
    and the one at which it converged counts twice, and more often where that is before there are n_tolerance segments.
    """

    def __init__(self, n_converge: int, n_tolerance: int, tolerance_ratio: float):
        self.n_converge, self.n_tolerance, self.tolerance_ratio = n_converge, n_tolerance, tolerance_ratio
        self.recent: list[Segment] = []  # the newest last
        self.window: Window | None = None  # from where it converged
        self.converged_at = -1  # step
        self.threshold = float("inf")
        self.ended = False

    def add(self, segment: Segment) -> None:
        """A segment that has just come to its end."""
        if self.ended:
            return
        self.recent = [*self.recent, segment][-max(self.n_converge, self.n_tolerance, 2) :]
        if self.window is None:
            self._try_to_converge()
            return
        waiting = self.recent[-self.n_tolerance :]
        if waiting[0].last < self.converged_at:
            return
        if least_loss(waiting) > self.threshold:
            self.ended, self.recent = True, []
            return
        self.window = self.window.adding(waiting[0])

    def _try_to_converge(self) -> None:
        compared = self.recent[-self.n_converge :]
        if len(compared) < self.n_converge or least_loss(compared) < compared[0].loss:
            return
        lowest = compared[0]
        self.converged_at = lowest.last
        self.threshold = fmean(each.loss for each in compared) * (1 + self.tolerance_ratio)
        self.window = Window(lowest.weights, lowest.first, lowest.last)
        for segment in self._up_to_convergence(compared):
            self.window = self.window.adding(segment)

    def _up_to_convergence(self, compared: Sequence[Segment]) -> Sequence[Segment]:
        """What is in the window at once. With a short n_tolerance that is what it would not wait for."""
        spare = self.n_tolerance - self.n_converge
        if spare <= 0:
            return compared[1 : 1 - spare]
        before = self.recent[-self.n_tolerance :][: spare + 1]
        above = [i for i, each in enumerate(before) if each.loss > self.threshold]
        return before[above[-1] + 2 if above else 1 :]

    def result(self) -> Window:
        """The window if training ended here: with the segments that still wait while the valley lasts.

        Where it has not converged, it is the last segment alone; with the one before it, step by step, where a run that
        ends between two evaluations has cut it short, to a single step at the worst.
        """
        if self.window is None:
            return self._newest()
        window, rest = self.window, [] if self.ended else self.recent[-self.n_tolerance :][1:]
        while rest and least_loss(rest) <= self.threshold:
            window = window.adding(rest[0])
            rest = rest[1:]
        return window

    def _newest(self) -> Window:
        last, before = self.recent[-1], self.recent[-2] if len(self.recent) > 1 else None
        if before is None or last.steps >= before.steps:
            return Window(last.weights, last.first, last.last, 1)
        share = last.steps / (last.steps + before.steps)
        new = [last.weights[name] for name in before.weights]
        mean = torch._foreach_lerp(list(before.weights.values()), new, share)
        return Window(ParamVector(zip(before.weights, mean, strict=True)), before.first, last.last, 2)

    # For checkpoints.

    def state(self) -> dict[str, Any]:
        """All that was found so far, as plain values and tensors."""
        return {
            "recent": [_plain(each) for each in self.recent],
            "window": self.window and _plain(self.window),
            "converged_at": self.converged_at,
            "threshold": None if self.window is None else self.threshold,
            "ended": self.ended,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.recent = [Segment(**_with_vector(each)) for each in state["recent"]]
        self.window = Window(**_with_vector(state["window"])) if state["window"] else None
        self.converged_at, self.ended = state["converged_at"], state["ended"]
        self.threshold = float("inf") if state["threshold"] is None else state["threshold"]


def least_loss(segments: Sequence[Segment]) -> float:
    return min(each.loss for each in segments)


def _plain(value: Segment | Window) -> dict[str, Any]:
    return {**asdict(replace(value, weights=ParamVector())), "weights": dict(value.weights)}


def _with_vector(saved: Mapping[str, Any]) -> dict[str, Any]:
    return {**saved, "weights": ParamVector(saved["weights"])}

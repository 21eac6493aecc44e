"""The sensitivity of one batch, by the chosen estimator; used by `measure` and by refreshes in training."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from dspreg.config.measure_config import ESTIMATORS, OF
from dspreg.errors import ConfigError, DataError
from dspreg.randomness import Key, generator
from dspreg.sensitivity import estimators
from dspreg.sensitivity.estimators import Loss
from dspreg.sensitivity.per_sample.accumulator import Accumulator
from dspreg.sensitivity.per_sample.estimator import estimate_per_sample
from dspreg.sensitivity.samples import Facts, Function, Samples, architecture
from dspreg.vectors import ParamVector, Patterns, matching_names, trainable

_outputs = Facts[tuple[int, ...]]()


class Meter:
    """Measures batches of a network that is already in evaluation mode.

    Args:
        net: Its trainable parameters are the θ_k.
        of: What is differentiated, one of `config.measure_config.OF`.
        estimator: One of `config.measure_config.ESTIMATORS`.
        draws: Sign draws per batch, only for `"signed"`; 1 by default.
        loss: Maps (output, y) to (B,) values; cross-entropy by default.
        only, exclude: Which parameters, by patterns on their names.
        key: Seed of drawn labels and signs.
        on_pass: Called at every forward pass, for progress and heartbeats: one batch may take minutes.
    """

    def __init__(
        self,
        net: nn.Module,
        *,
        of: str = "loss",
        estimator: str = "persample",
        draws: int | None = None,
        loss: Loss | None = None,
        only: Patterns = None,
        exclude: Patterns = None,
        key: Iterable[Key] = (),
        on_pass: Callable[[], None] | None = None,
    ):
        if not isinstance(net, nn.Module):
            raise ConfigError(
                f"the model is a {type(net).__name__}; wanted an nn.Module, whose parameters are measured"
            )
        check_settings(of, estimator, draws)
        if loss is not None and of != "loss":
            raise ConfigError(f"a loss was given, but of={of!r} does not use one; leave it out or use of='loss'")
        params = trainable(net)
        if any(p.is_complex() for p in params.values()):
            raise ConfigError("complex parameters are not supported; use separate real and imaginary parts")
        if not params:
            raise ConfigError(f"{type(net).__name__} has no trainable parameter (requires_grad is False everywhere)")
        self.net, self.of, self.estimator, self.loss, self.key = net, of, estimator, loss, tuple(key)
        self.on_pass = on_pass
        self.draws = draws or 1
        self.scales: dict[str, float] = {}  # sums hold s·scale², by parameter
        self.params: dict[str, Tensor] = {name: params[name] for name in matching_names(params, only, exclude)}

    @cached_property
    def architecture(self) -> tuple[object, ...]:
        """That of the network in evaluation mode. Once for a measurement: a network may count its passes."""
        return architecture(self.net)

    @property
    def takes_groups(self) -> bool:
        """Whether the estimator has squares per sample, which can be summed by any grouping in the same pass."""
        return self.estimator in ("loop", "persample")

    def with_labels(self, f: Function, samples: Samples, *place: Key, again: bool = True) -> Samples:
        """`samples` with the labels to be used, checked. `again`: the samples will be measured more than once."""
        if self.of == "output":
            return Samples(samples.inputs)
        if self.of == "fisher":
            self._classes(f, samples)
            if not again and not self.takes_groups:
                return Samples(samples.inputs)  # labels are drawn in the only forward pass
            with torch.no_grad():
                out = samples.outputs(self._report_passes(f))
            return samples.with_labels(estimators.draw_labels(out, self._random(place, "labels")))
        if samples.y is None:
            raise DataError("the loader yields no labels, which of='loss' needs; use of='output' or of='fisher'")
        return samples.with_labels(self._class_labels(f, samples, samples.y)) if self.loss is None else samples

    def sums(self, rows: int = 1) -> Accumulator:
        """Empty sums."""
        return Accumulator(self.params, rows, self.scales)

    def add(self, f: Function, samples: Samples, sums: Accumulator, *place: Key, groups: Tensor | None = None) -> None:
        """Add Σ_i s(sample i) to the one row of `sums`, or Σ_i groups_gi s(sample i) to every row.

        `place` identifies the batch, so that each has its own signs. Without `takes_groups` all samples of a batch must
        be in the same groups.
        """
        f = self._report_passes(f)
        device = next(iter(self.params.values())).device
        sums.set_weights((torch.ones(1, len(samples), dtype=torch.float64) if groups is None else groups).to(device))
        reading = estimators.readings(f, self.of, self.loss, self._random(place, "labels"))
        match self.estimator:
            case "signed":
                random = self._random(place, "signs")
                estimators.estimate_by_signs(reading, self.params, samples, sums, draws=self.draws, random=random)
            case "loop":
                estimators.estimate_by_loop(reading, self.params, samples, sums)
            case "minibatch":
                estimators.estimate_by_minibatch(reading, self.params, samples, sums)
            case _:
                outputs = estimators.readings(f, "output")
                estimate_per_sample(
                    reading, self.params, samples, sums, net=self.net, now=self.architecture, outputs=outputs
                )

    def _report_passes(self, f: Function) -> Function:
        on_pass = self.on_pass
        if on_pass is None:
            return f

        def reporting(*inputs: Any, **named: Any) -> Any:
            on_pass()
            return f(*inputs, **named)

        return reporting

    def _random(self, place: tuple[Key, ...], what: str) -> torch.Generator:
        return generator(*self.key, *place, what)

    def _classes(self, f: Function, samples: Samples) -> int:
        """The number of outputs, cached by network and kind of samples, since every batch needs it."""
        known, key = _outputs.about(self.net, self.architecture), samples.signature
        if key not in known:
            with torch.no_grad():
                known[key] = tuple(samples.take(slice(0, 1)).outputs(f).shape[1:])
        if len(known[key]) != 1 or known[key][0] < 2:
            raise DataError(
                f"the network returns shape {known[key]} per sample; cross-entropy wants one "
                "number for each of at least two classes. Give loss=, a function (output, y) → one value per sample"
            )
        return known[key][0]

    def _class_labels(self, f: Function, samples: Samples, y: Tensor) -> Tensor:
        """Labels for cross-entropy, or an error that says what is wrong with them."""
        classes = self._classes(f, samples)
        if y.is_floating_point():
            if y.shape != (len(samples), classes):
                raise DataError(
                    f"labels of type {y.dtype} and shape {tuple(y.shape)} are neither class numbers (B,) nor "
                    f"probabilities (B, {classes}); use y.long(), or give loss="
                )
            return y
        if y.ndim != 1:
            raise DataError(f"labels of shape {tuple(y.shape)}; wanted class numbers (B,). Perhaps y.squeeze(1)?")
        low, high = int(y.min()), int(y.max())
        if low < 0 or high >= classes:
            raise DataError(
                f"labels run from {low} to {high}, but the network has {classes} outputs, so they must be in "
                f"0…{classes - 1}; do the labels start at 1, or does the network need another head?"
            )
        return y.long()


def check_settings(of: str, estimator: str, draws: int | None) -> None:
    if of not in OF:
        raise ConfigError(f"of={of!r}; wanted one of {', '.join(map(repr, OF))}")
    if estimator not in ESTIMATORS:
        raise ConfigError(f"estimator={estimator!r}; wanted one of {', '.join(map(repr, ESTIMATORS))}")
    if draws is not None and estimator != "signed":
        raise ConfigError(f"draws={draws} are sign draws of estimator='signed'; estimator={estimator!r} has none")
    if draws is not None and draws < 1:
        raise ConfigError(f"draws={draws}; wanted at least 1")


def require_finite(s: ParamVector) -> ParamVector:
    for name, value in s.items():
        if not math.isfinite(value.sum()) and not torch.isfinite(value).all():
            raise DataError(f"the gradient of {name!r} is NaN or infinite; is the loss finite on these samples?")
    return s

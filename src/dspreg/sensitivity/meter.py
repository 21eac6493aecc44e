"""The sensitivity of one batch, by the chosen estimator: what `measure` and a training refresh share."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from dspreg.errors import ConfigError, DataError, Notice
from dspreg.randomness import Key, generator
from dspreg.sensitivity import estimators
from dspreg.sensitivity.estimators import Loss
from dspreg.sensitivity.samples import Network, Samples
from dspreg.vectors import ParamVector, Patterns, selected, trainable

OF = ("loss", "output", "fisher")
ESTIMATORS = ("loop", "persample", "signed", "minibatch")


class Meter:
    """Measures batches of a network that is already in evaluation mode.

    Args:
        net: Its trainable parameters are the θ_k.
        of: What is differentiated: `"loss"`, `"output"` or `"fisher"`.
        estimator: `"loop"`, `"persample"`, `"signed"` or `"minibatch"`.
        draws: Sign draws per batch, for `"signed"` alone; 1 unless given.
        loss: Maps (output, y) to (B,) values; cross-entropy unless given.
        only, exclude: Which parameters, by patterns on their names.
        key: Of the drawn labels and signs.
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
    ):
        check_settings(of, estimator, draws)
        if loss is not None and of != "loss":
            raise ConfigError(f"a loss was given, but of={of!r} does not use one; leave it out or use of='loss'")
        params = trainable(net)
        if not params:
            raise ConfigError(f"{type(net).__name__} has no trainable parameter (requires_grad is False everywhere)")
        self.net, self.of, self.estimator, self.loss, self.key = net, of, estimator, loss, tuple(key)
        self.draws = draws or 1
        self.params: dict[str, Tensor] = {name: params[name] for name in selected(params, only, exclude)}

    @property
    def takes_groups(self) -> bool:
        """Whether per-sample squares are at hand, to be summed by any grouping in the same pass."""
        return self.estimator in ("loop", "persample")

    def labelled(self, f: Network, samples: Samples, *place: Key) -> Samples:
        """`samples` with the labels that count, checked."""
        if self.of == "output":
            return Samples(samples.inputs)
        if self.of == "fisher":
            return samples.labelled(estimators.drawn_labels(f, samples, generator(*self.key, *place, "labels")))
        if samples.y is None:
            raise DataError("the loader yields no labels, which of='loss' needs; use of='output' or of='fisher'")
        if self.loss is None:
            self._check_labels(f, samples)
        return samples

    def mean(self, f: Network, samples: Samples, *place: Key) -> ParamVector:
        """s on these samples, float64. `place` names the batch, so that its signs are its own."""
        if self.takes_groups:
            one = torch.full((1, len(samples)), 1 / len(samples), dtype=torch.float64)
            return self.grouped(f, samples, one).map(lambda t: t[0])
        reading = estimators.readings(f, self.of, self.loss)
        if self.estimator == "signed":
            random = generator(*self.key, *place, "signs")
            return finite(estimators.signed(reading, self.params, samples, draws=self.draws, random=random))
        return finite(estimators.minibatch(reading, self.params, samples))

    def grouped(self, f: Network, samples: Samples, groups: Tensor) -> ParamVector:
        """Σ_i groups_gi s(sample i), a row per group."""
        reading = estimators.readings(f, self.of, self.loss)
        groups = groups.to(next(iter(self.params.values())).device)
        if self.estimator == "persample":
            try:
                return finite(estimators.persample(reading, self.params, samples, groups, net=self.net))
            except (DataError, torch.OutOfMemoryError):
                raise
            except (RuntimeError, NotImplementedError) as error:
                reason = str(error).strip().splitlines()[0]
                warnings.warn(
                    f"torch.func cannot vectorise this network ({reason}); "
                    "measuring sample by sample: the same numbers, slower",
                    Notice,
                    stacklevel=2,
                )
                self.estimator = "loop"
        return finite(estimators.loop(reading, self.params, samples, groups))

    def _check_labels(self, f: Network, samples: Samples) -> None:
        assert samples.y is not None
        if samples.y.is_floating_point():
            return
        with torch.no_grad():
            classes = samples.take(slice(0, 1)).outputs(f).shape[1]
        low, high = int(samples.y.min()), int(samples.y.max())
        if low < 0 or high >= classes:
            raise DataError(
                f"labels run from {low} to {high}, but the network has {classes} outputs, so they must be in "
                f"0…{classes - 1}; do the labels start at 1, or does the network need another head?"
            )


def check_settings(of: str, estimator: str, draws: int | None) -> None:
    if of not in OF:
        raise ConfigError(f"of={of!r}; wanted one of {', '.join(map(repr, OF))}")
    if estimator not in ESTIMATORS:
        raise ConfigError(f"estimator={estimator!r}; wanted one of {', '.join(map(repr, ESTIMATORS))}")
    if draws is not None and estimator != "signed":
        raise ConfigError(f"draws={draws} are sign draws of estimator='signed'; estimator={estimator!r} has none")
    if draws is not None and draws < 1:
        raise ConfigError(f"draws={draws}; wanted at least 1")


def finite(s: ParamVector) -> ParamVector:
    for name, value in s.items():
        if not torch.isfinite(value).all():
            raise DataError(f"the gradient of {name!r} is NaN or infinite; is the loss finite on these samples?")
    return s

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
from dspreg.sensitivity.samples import Function, Samples
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
        if not isinstance(net, nn.Module):
            raise ConfigError(
                f"the model is a {type(net).__name__}; wanted an nn.Module, whose parameters are measured"
            )
        check_settings(of, estimator, draws)
        if loss is not None and of != "loss":
            raise ConfigError(f"a loss was given, but of={of!r} does not use one; leave it out or use of='loss'")
        params = trainable(net)
        if any(p.is_complex() for p in params.values()):
            raise ConfigError("complex parameters have no sensitivity here; give real and imaginary parts of their own")
        if not params:
            raise ConfigError(f"{type(net).__name__} has no trainable parameter (requires_grad is False everywhere)")
        self.net, self.of, self.estimator, self.loss, self.key = net, of, estimator, loss, tuple(key)
        self.draws = draws or 1
        self._compared = False
        self.params: dict[str, Tensor] = {name: params[name] for name in selected(params, only, exclude)}

    @property
    def takes_groups(self) -> bool:
        """Whether per-sample squares are at hand, to be summed by any grouping in the same pass."""
        return self.estimator in ("loop", "persample")

    def labelled(self, f: Function, samples: Samples, *place: Key) -> Samples:
        """`samples` with the labels that count, checked."""
        if self.of == "output":
            return Samples(samples.inputs)
        if self.of == "fisher":
            self._classes(f, samples)
            return samples.labelled(estimators.drawn_labels(f, samples, generator(*self.key, *place, "labels")))
        if samples.y is None:
            raise DataError("the loader yields no labels, which of='loss' needs; use of='output' or of='fisher'")
        return samples.labelled(self._class_labels(f, samples, samples.y)) if self.loss is None else samples

    def mean(self, f: Function, samples: Samples, *place: Key) -> ParamVector:
        """s on these samples, float64. `place` names the batch, so that its signs are its own."""
        if self.takes_groups:
            one = torch.full((1, len(samples)), 1 / len(samples), dtype=torch.float64)
            return self.grouped(f, samples, one).map(lambda t: t[0])
        reading = estimators.readings(f, self.of, self.loss)
        if self.estimator == "signed":
            random = generator(*self.key, *place, "signs")
            return finite(estimators.signed(reading, self.params, samples, draws=self.draws, random=random))
        return finite(estimators.minibatch(reading, self.params, samples))

    def grouped(self, f: Function, samples: Samples, groups: Tensor) -> ParamVector:
        """Σ_i groups_gi s(sample i), a row per group."""
        reading = estimators.readings(f, self.of, self.loss)
        groups = groups.to(next(iter(self.params.values())).device)
        if self.estimator == "persample":
            try:
                s = finite(estimators.persample(reading, self.params, samples, groups, net=self.net))
                self._require_all_reached(reading, samples, s)
                return s
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

    def _require_all_reached(self, reading: estimators.Readings, samples: Samples, s: ParamVector) -> None:
        """`torch.func` exchanges parameters in their modules; one used from elsewhere, a list, would seem unused."""
        silent = [name for name, value in s.items() if not value.any()]
        if silent and not self._compared:
            params = {name: self.params[name] for name in silent}
            total = reading(samples).square().sum()
            for name, g in estimators.gradient(total, params, retain_graph=False).items():
                if g.any():
                    raise RuntimeError(f"{name!r} is used otherwise than as an attribute of its module")
        self._compared = True

    def _classes(self, f: Function, samples: Samples) -> int:
        with torch.no_grad():
            out = samples.take(slice(0, 1)).outputs(f)
        if out.ndim != 2 or out.shape[1] < 2:
            raise DataError(
                f"the network returns {tuple(out.shape)[1:]} per sample; cross-entropy wants one "
                "number for each of at least two classes. Give loss=, a function (output, y) → one value per sample"
            )
        return out.shape[1]

    def _class_labels(self, f: Function, samples: Samples, y: Tensor) -> Tensor:
        """Labels that cross-entropy takes, or a refusal that says what is wrong with them."""
        classes = self._classes(f, samples)
        if y.is_floating_point():
            if y.shape != (len(samples), classes):
                raise DataError(
                    f"labels of type {y.dtype} and shape {tuple(y.shape)} are neither class numbers (B,) nor "
                    f"probabilities (B, {classes}); use y.long(), or give loss="
                )
            return y
        if y.ndim != 1:
            raise DataError(f"labels of shape {tuple(y.shape)}; wanted class numbers (B,): use y.squeeze(1)?")
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


def finite(s: ParamVector) -> ParamVector:
    for name, value in s.items():
        if not torch.isfinite(value).all():
            raise DataError(f"the gradient of {name!r} is NaN or infinite; is the loss finite on these samples?")
    return s

"""Var(θ_k), which scales sensitivities: a number, a vector, or the variance along training."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from dspreg.errors import ConfigError
from dspreg.vectors import ParamVector


class RunningVariance:
    """The variance of each parameter along training, for `measure(variance=…)`.

    ```python
    variance = dspreg.RunningVariance(model)
    for batch in loader:
        ...
        optimizer.step()
        variance.update()
    dspreg.measure(model, domains, variance=variance)
    ```
    """

    def __init__(self, model: nn.Module):
        self.model = model
        self._count = 0
        self._mean, self._squares = ParamVector(), ParamVector()  # Σ (θ_t − θ̄)²

    def update(self) -> None:
        """Add the current parameters."""
        # frozen ones too: they may be trained later, and are constant until then
        now = ParamVector((name, p.detach().to(torch.float64, copy=True)) for name, p in self.model.named_parameters())
        self._count += 1
        change = now - self._mean
        self._mean = self._mean + change / self._count
        self._squares = self._squares + change * (now - self._mean)

    def vector(self) -> ParamVector:
        """1/n Σ_t (θ_t − θ̄)², float64."""
        if self._count < 2:
            raise ConfigError(
                f"the variance of {self._count} points is undefined; call update() after each optimizer.step()"
            )
        return self._squares / self._count


Variance = float | Mapping[str, Tensor] | RunningVariance


def variance_of(given: Variance, params: Mapping[str, Tensor]) -> ParamVector | float:
    """`given` as a number or a `ParamVector` that scales s."""
    if isinstance(given, RunningVariance):
        given = given.vector()
    if not isinstance(given, Mapping):
        if not isinstance(given, (int, float)) or not 0 < given < float("inf"):
            raise ConfigError(f"variance={given!r}; wanted a positive number, a vector by name, or a RunningVariance")
        return float(given)
    missing = [name for name in params if name not in given]
    if missing:
        raise ConfigError(f"variance has no entry for {missing[0]!r} (and {len(missing) - 1} more)")
    vector = ParamVector((n, given[n].to(p.device, torch.float64)) for n, p in params.items())
    for name, value in vector.items():
        if value.shape != params[name].shape:
            got, wanted = tuple(value.shape), tuple(params[name].shape)
            raise ConfigError(f"variance of {name!r} has shape {got}; wanted {wanted}, that of the parameter")
        if not (torch.isfinite(value) & (value >= 0)).all():
            raise ConfigError(f"variance of {name!r} has negative or non-finite entries")
    return vector

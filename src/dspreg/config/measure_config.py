"""One measurement of c as a value: on which images, of what, and how."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dspreg.errors import ConfigError

OF = {
    "loss": "the loss of each sample, as in the paper's experiments: the empirical Fisher",
    "output": "the network's outputs, as in the paper's definition of s; needs no labels",
    "fisher": "the loss of labels drawn from the network's softmax, the true Fisher; needs no labels",
}
ESTIMATORS = {
    "persample": "squared per-sample gradients, at about the cost of one backward pass",
    "loop": "the same, one sample at a time: slow, the reference",
    "signed": "squared gradient of randomly signed sums: unbiased for s, one backward pass per draw",
    "minibatch": "squared gradient of the batch mean: another, smaller quantity",
}

VARIANCES = {
    "one": "1 for every parameter, as in the paper's experiments",
    "checkpoints": "the parameter's variance over the models that a run kept (--keep all)",
}


@dataclass(frozen=True, kw_only=True)
class MeasureConfig:
    """What `dspreg measure` is asked for.

    Attributes:
        dataset: As after `--dataset`; None for a run's own.
        root: Folder that holds the data sets.
        name: Of a `folder:` or `index:` data set.
        domains: Names of those to compare; empty: all, of a run its source domains.
        images: Per domain at most, drawn without replacement. From 512 on c is reliable to 0.8 on real images
            (docs/understand/engines.md).
        batch: Images at a time.
        mean, std: Of the images a network wants, per channel; None: what is known of it.
        seed: Of sampled images, random signs, drawn labels, pseudo-domains and newly initialised layers.
        of: What is differentiated, of `OF`.
        estimator: Of `ESTIMATORS`.
        draws: Sign draws per batch, for the estimator `"signed"`.
        variance: Var(θ_k), which scales s, of `VARIANCES`.
        eps: ε in c = √v/(s̄ + ε).
        only, exclude: Shell patterns on parameter names.
        null: Also measure c under random domain labels, the noise floor of c.
        layer: One that must be among the measured ones; refused before anything is measured.
        device: Where the network is; `"auto"`: on cuda, mps or the CPU, whichever is there first.
        workers: Processes that read images; None: the default of the data set.
    """

    dataset: str | None = None
    root: str | None = None
    name: str | None = None
    domains: Sequence[str] = ()
    images: int = 512
    batch: int = 32
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    seed: int = 0
    of: str = "loss"
    estimator: str = "persample"
    draws: int | None = None
    variance: str = "one"
    eps: float = 0.0
    only: Sequence[str] = ()
    exclude: Sequence[str] = ()
    null: bool = True
    layer: str | None = None
    device: str = "auto"
    workers: int | None = None

    def __post_init__(self) -> None:
        if self.mean is not None and not all(map(math.isfinite, self.mean)):
            raise ConfigError(f"--mean {' '.join(map(str, self.mean))}; wanted finite numbers")
        if self.std is not None and not all(0 < each < math.inf for each in self.std):
            raise ConfigError(f"--std {' '.join(map(str, self.std))}; wanted numbers above 0")
        if self.variance not in VARIANCES:
            raise ConfigError(f"variance={self.variance!r}; wanted one of {', '.join(map(repr, VARIANCES))}")

    def meter_options(self) -> dict[str, Any]:
        """The options of a `Meter`, which refuses wrong ones."""
        return {
            "of": self.of,
            "estimator": self.estimator,
            "draws": self.draws,
            "only": list(self.only) or None,
            "exclude": list(self.exclude) or None,
        }

"""scikit-learn: a classifier of vectors that is told which domain each row is from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from dspreg.algorithms.base import Algorithm
from dspreg.algorithms.registry import StackSpec
from dspreg.algorithms.task import Task
from dspreg.batches import Batch
from dspreg.errors import ConfigError, Diverged
from dspreg.networks.network import Featurizer
from dspreg.randomness import Key, generator
from dspreg.sensitivity.evaluation_mode import evaluation_mode
from dspreg.training.adam import Adam
from dspreg.training.model import load_tensors, tensors_of
from dspreg.training.step import train_step

MEASURED = 32  # rows of a batch on which c is measured, as of images


class DomainClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A small network for rows of numbers, trained by any method of dspreg.

        model = make_pipeline(StandardScaler(), DomainClassifier("DSPReg"))
        model.fit(X, y, domainclassifier__groups=site)
        cross_val_score(DomainClassifier(), X, y, groups=site, cv=LeaveOneGroupOut(), params={"groups": site})

    A step takes as many rows of each domain, drawn with replacement, as in `dspreg.train`. Scale the columns before.

    Args:
        algorithm: The method, as `--algorithm`: `"ERM"`, `"SWA"`, `"CORAL"`, `"DSPReg(weight=0.01)"`, `"A+B"`, …
        hidden: Widths of the hidden layers, of ReLUs.
        steps: Steps of training.
        batch_size: Rows of each domain in a step.
        lr: Learning rate of Adam.
        weight_decay: Of Adam.
        random_state: A number gives the same bits again.

    Attributes:
        classes_: The classes, as columns of `predict_proba`.
        domains_: The values of `groups`, in the order of the domains.
        losses_: The loss of each step.
    """

    def __init__(
        self,
        algorithm: str = "SWA",
        *,
        hidden: Sequence[int] = (64,),
        steps: int = 300,
        batch_size: int = 32,
        lr: float = 1e-2,
        weight_decay: float = 0.0,
        random_state: Any = None,
    ):
        self.algorithm = algorithm
        self.hidden = hidden
        self.steps = steps
        self.batch_size = batch_size
        self.lr = lr
        self.weight_decay = weight_decay
        self.random_state = random_state

    def fit(self, X: Any, y: Any, groups: Any = None) -> DomainClassifier:
        """Train.

        Args:
            X: (N, columns) numbers.
            y: (N,) classes of any kind.
            groups: (N,) domain of each row: site, batch, patient, device. None: all rows are of one domain, which
                methods that compare domains refuse.
        """
        X, y = validate_data(self, X, y, dtype=(np.float32, np.float64))
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y has one class, {self.classes_[0]!r}; a classifier needs at least two classes")
        if groups is None:
            self.domains_, domains = np.array(["all"]), np.zeros(len(y), np.int64)
        else:
            self.domains_, domains = np.unique(np.asarray(groups), return_inverse=True)
            if domains.shape != y.shape:
                raise ValueError(f"groups has shape {np.shape(groups)}; wanted one domain for each of {len(y)} rows")
        x, t = torch.tensor(X, dtype=torch.float32), torch.tensor(labels)
        rows = [torch.tensor(np.flatnonzero(domains == d)) for d in range(len(self.domains_))]
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        try:
            stack = self._setup(seed, x, t, rows)
        except ConfigError as error:
            raise error if groups is not None else ConfigError(f"{error} (fit was given no groups)") from error
        self.losses_ = []
        for step in range(self.steps):
            log = train_step(stack, draw_batches(x, t, rows, self.batch_size, seed, step))
            self.losses_.append(float(log["loss"]))
            if not np.isfinite(self.losses_[-1]):
                raise Diverged(
                    f"step {step}: the loss is not finite; scale the columns of X, or take a smaller lr", step
                )
        self._tensors = {name: tensor.numpy() for name, tensor in tensors_of(stack).items()}
        self._seed = seed
        self._predictor = self._rebuilt()
        return self

    def _spec(self) -> StackSpec:
        spec, _ = StackSpec.parse(self.algorithm).resolve(seed=None, steps=self.steps, settings={})
        return spec

    def _setup(
        self, seed: int, x: Tensor | None = None, t: Tensor | None = None, rows: Sequence[Tensor] = ()
    ) -> Algorithm:
        key: tuple[Key, ...] = ("DomainClassifier", seed)

        def samples(at: int, batches: int) -> Mapping[str, Sequence[Batch]]:
            assert x is not None
            assert t is not None
            found = {}
            for d, own in enumerate(rows):
                order = own[torch.randperm(len(own), generator=generator(*key, at, d, "measure"))]
                parts = order[: batches * MEASURED].split(MEASURED)
                found[str(self.domains_[d])] = [Batch(x[part], t[part], d) for part in parts]
            return found

        drawn = self.batch_size * max(1, len(rows))
        task = Task(
            len(self.classes_), tuple(map(str, self.domains_)), max(1, sum(map(len, rows)) // drawn),
            lambda: Rows(self.n_features_in_, self.hidden), key, samples,
        )  # fmt: skip
        return self._spec().build().setup(task, lambda p: Adam(p, lr=self.lr, weight_decay=self.weight_decay))

    def predict_proba(self, X: Any) -> np.ndarray:
        """(N, classes) probabilities."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=(np.float32, np.float64), reset=False)
        with evaluation_mode(self._predictor), torch.no_grad():
            logits = self._predictor.predict(torch.tensor(X, dtype=torch.float32))
        found: np.ndarray = logits.double().softmax(1).numpy()
        return found

    def predict(self, X: Any) -> np.ndarray:
        """(N,) the most probable class of each row."""
        probabilities = self.predict_proba(X)
        found: np.ndarray = self.classes_[probabilities.argmax(1)]
        return found

    def _rebuilt(self) -> Algorithm:
        """What predicts, built of the saved tensors alone, so that a copy that was pickled predicts the same."""
        stack = self._setup(self._seed)
        load_tensors(stack, {name: torch.tensor(values) for name, values in self._tensors.items()}, "the fitted model")
        return stack

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        return {name: value for name, value in state.items() if name != "_predictor"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "_tensors" in state:
            self._predictor = self._rebuilt()


class Rows(Featurizer):
    """Rows of numbers (B, columns) to features (B, width), by hidden layers of ReLUs."""

    def __init__(self, columns: int, hidden: Sequence[int]):
        super().__init__()
        widths = [columns, *hidden]
        self.width = widths[-1]
        layers = [(nn.Linear(a, b), nn.ReLU()) for a, b in pairwise(widths)]
        self.layers = nn.Sequential(*(each for pair in layers for each in pair))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layers(x)
        return found


def draw_batches(x: Tensor, t: Tensor, rows: Sequence[Tensor], size: int, seed: int, step: int) -> list[Batch]:
    """The training batches of a step, one of each domain."""
    batches = []
    for d, own in enumerate(rows):
        drawn = torch.randint(len(own), (size,), generator=generator("DomainClassifier", seed, step, d, "train"))
        batches.append(Batch(x[own[drawn]], t[own[drawn]], d))
    return batches

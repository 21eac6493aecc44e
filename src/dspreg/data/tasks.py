"""Inputs that are tensors, and labels that are no classes: what they have to be, and whether they are."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, SupportsIndex, cast

import numpy as np
import torch
from torch import Tensor

from dspreg.data.base import DomainDataset, split_pair
from dspreg.data.transforms import Unchanged, as_input
from dspreg.errors import DataError
from dspreg.kinds import CLASSES, MULTILABEL, useless_labels


def unchanged_inputs(data: DomainDataset) -> Unchanged:
    """The shape and type of all inputs of a data set of tensors: those of the first."""
    first = data.domains[0]
    samples = data.domain(first)
    if not len(samples):
        raise DataError(f"the domain {first!r} of {data.name} is empty")
    x = as_input(samples[0][0])
    return Unchanged(tuple(x.shape), x.dtype)


def label_of(y: Any, kind: str, count: int) -> Tensor:
    """A label that is no class, as float32. (C,)

    Args:
        y: A tensor, an array, a list or, with one of `classes`, a number.
        kind: Of the task.
        count: C, how many numbers it has.
    """
    label = torch.as_tensor(y, dtype=torch.float32)
    if label.ndim == 0 and count == 1:
        label = label[None]
    if label.shape != (count,):
        raise DataError(
            f"a label has the shape {tuple(label.shape)}; wanted one number for each of `classes`: ({count},)"
        )
    if kind == MULTILABEL and not bool(((label == 0) | (label == 1)).all()):
        raise DataError(f"a label is {label.tolist()[:8]}; wanted 1 where it is there and 0 where it is not")
    return label


def check_samples(
    data: DomainDataset, domain: str, samples: Sequence[Any], on_progress: Callable[[], None] = lambda: None
) -> np.ndarray:
    """Look at every sample of a domain, of another kind or of tensors, before anything is trained. Returns its labels.

    Args:
        data: Says what the samples are to be.
        domain: Its name, for messages.
        samples: All of them are read.
        on_progress: Called after every sample; may raise.

    Raises:
        DataError: An input has another shape or type than the first, or is not finite; or a label is none.
    """
    shown = unchanged_inputs(data) if data.tensors else None
    labels = []
    for i in range(len(samples)):
        where = f"{data.name}: sample {i} of {domain!r}"
        try:
            x, y = split_pair(samples[i])
            if shown is not None and not bool(shown(x).isfinite().all()):
                raise DataError("an input has numbers that are not finite")
            labels.append(_checked_label(data, y))
        except DataError as error:
            raise DataError(f"{where}: {error}") from None
        except (TypeError, ValueError, RuntimeError) as error:
            raise DataError(f"{where} is no pair of a tensor and a label: {error}") from None
        on_progress()
    return np.stack(labels) if labels else np.empty((0, data.num_classes))


def _checked_label(data: DomainDataset, y: Any) -> np.ndarray:
    if data.kind != CLASSES:
        label = label_of(y, data.kind, data.num_classes)
        if not bool(label.isfinite().all()):
            raise DataError("a label is not finite")
        return label.numpy()
    number = operator.index(cast(SupportsIndex, y.item() if isinstance(y, Tensor) else y))
    if not 0 <= number < data.num_classes:
        raise DataError(f"its label is {number}, outside 0 … {data.num_classes - 1}")
    return np.array(number)


def check_parts(
    data: DomainDataset, labels: Mapping[str, np.ndarray], splits: Mapping[str, tuple[list[int], list[int]]]
) -> None:
    """Refuse parts of which the figures of the kind can't be made, such as R² of labels that are all the same."""
    for name, parts in splits.items():
        for which, positions in zip(("in", "out"), parts, strict=True):
            if why := useless_labels(data.kind, labels[name][positions]):
                raise DataError(
                    f"the split {which!r} of the domain {name!r} of {data.name} can't be scored: {why}. Add samples, "
                    "or change holdout"
                )

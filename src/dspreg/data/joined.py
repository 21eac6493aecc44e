"""Any map-style data sets, one per domain, as a data set to train on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dspreg.data.base import DomainDataset, split_pair
from dspreg.errors import DataError
from dspreg.kinds import CLASSES, require_kind


class Samples(Sequence[Any]):
    """A map-style data set as a sequence: `len(…)` and `[i]` are all that it needs."""

    def __init__(self, samples: Any):
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, i: Any) -> Any:
        return self.samples[i]

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))


class JoinedDomains(DomainDataset):
    """What `join_domains` returns."""

    def __init__(self, name: str, samples: Mapping[str, Any], classes: Sequence[str], kind: str):
        super().__init__()
        self.name, self.domains, self.classes, self.kind = name, tuple(sorted(samples)), tuple(classes), kind
        self._samples = {domain: Samples(each) for domain, each in samples.items()}

    def domain(self, name: str) -> Sequence[Any]:
        self.check_domain(name)
        return self._samples[name]


def join_domains(
    name: str,
    domains: Mapping[str, Any],
    classes: Sequence[str],
    *,
    kind: str = CLASSES,
    steps: int = 1_000,
    evaluate_every: int = 100,
) -> DomainDataset:
    """Join map-style data sets, one per domain, to train on.

        data = dspreg.join_domains("ecg", {"site A": a, "site B": b, "site C": c}, ["AF", "MI"], kind="multilabel")
        config = dspreg.TrainConfig(dataset="ecg", targets=("site C",), model="my_networks.Encoder")
        dspreg.train(config, out="runs/site C", data=data)

    Args:
        name: In records and tables, and `dataset` of the `TrainConfig`.
        domains: Each has `len(…)` and gives pairs (x, y) by `[0]` to `[len − 1]`, always the same ones: a
            `torch.utils.data.Dataset`, or a list. x is a tensor or an array, of one shape and type throughout, or else
            a PIL image. y is a class number; of another kind, a number for each of `classes`.
        classes: Names of the classes, of the labels, or of the numbers to be predicted.
        kind: `"classes"`, `"multilabel"` or `"regression"`.
        steps, evaluate_every: Of a training, unless its configuration says otherwise.
    """
    require_kind(kind)
    if not isinstance(domains, Mapping) or len(domains) < 2:
        raise DataError("join_domains wants a mapping from name to data set with at least two domains")
    if not classes or isinstance(classes, str) or len(set(classes)) < len(classes):
        raise DataError(f"classes={classes!r}; wanted a list of different names, one per output of the network")
    if kind == CLASSES and len(classes) < 2:
        raise DataError(f"classes={list(classes)!r}; wanted at least two, or another kind")
    for domain, samples in domains.items():
        if not hasattr(samples, "__len__") or not hasattr(samples, "__getitem__"):
            raise DataError(
                f"the domain {domain!r} is a {type(samples).__name__}; wanted a map-style data set: len and [i]"
            )
        if not len(samples):
            raise DataError(f"the domain {domain!r} is empty")
    joined = JoinedDomains(name, domains, classes, kind)
    joined.tensors = not _is_image(joined.domain(joined.domains[0])[0])
    joined.small, joined.steps, joined.evaluate_every = True, steps, evaluate_every
    return joined


def _is_image(sample: Any) -> bool:
    return hasattr(split_pair(sample)[0], "convert")  # of PIL, which need not be imported for it

"""What a data set of several domains looks like to the rest of the package."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dspreg.config.reading import DOMAINBED_READING, Reading
from dspreg.errors import ConfigError, DataError
from dspreg.io.text import did_you_mean
from dspreg.kinds import CLASSES

if TYPE_CHECKING:
    from dspreg.data.cache import Cache
    from dspreg.data.findings import Finding


class DomainDataset(ABC):
    """The same task, seen in several domains.

    Input (x):
        A PIL image, from which transforms make a tensor later; or a tensor (channels, height, width) of uint8, or of
        floats from 0 to 1, which is an image, too. With `tensors`, a tensor that the network gets as it is.

    Label (y):
        A position in `classes`; of another `kind`, one number for each of `classes`.

    Domain:
        One of `domains`: where, how or by whom the image was made.

    A subclass names its attributes and writes `domain`. The order of `domains` is part of the
    data set: the split of a domain is drawn from its position, so a new order is another split.

    Attributes:
        name: As given to `--dataset`.
        domains: Full names, sorted.
        classes: Names of the labels 0, 1, …; of several labels, and of numbers to be predicted, the names of these.
        kind: `"classes"`, `"multilabel"` (each of `classes` is there, 1, or not, 0) or `"regression"`.
        tensors: Whether inputs are tensors, all of one shape and type, such as series or volumes.
        steps: Training steps of one run, unless the user says otherwise.
        evaluate_every: Steps between two evaluations, unless the user says otherwise.
        image_size: Height and width that images are brought to, in pixels.
        channels: Of its images: 3 for RGB, 1 for grey, or as many as its tensors have, unless the user says otherwise.
        small: Whether images are small: a small network, a higher learning rate and no photographic augmentation.
        own: Whether they are images of the user's own, given by a path or from the hub: their defaults differ from
            those of benchmarks.
        reading: How image files are read; see `read_as`.
        notices: What was odd about the data, in sentences.
        findings: The same by severity, as far as it is told apart.
        faults: What is wrong with the data, of a data set that was opened leniently; otherwise that was refused.
        cache: Where data sets of image files keep decoded pixels; see `open_cache`. Others ignore it.
    """

    name: str
    domains: tuple[str, ...]
    classes: tuple[str, ...]
    kind: str = CLASSES
    tensors: bool = False
    steps: int = 5_001
    evaluate_every: int = 300
    image_size: int = 224
    channels: int = 3
    small: bool = False
    own: bool = False
    reading: Reading = DOMAINBED_READING
    notices: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    faults: tuple[Finding, ...] = ()
    cache: Cache | None = None

    def __init__(self, root: str | Path | None = None) -> None:
        self.root = None if root is None else Path(root)

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @abstractmethod
    def domain(self, name: str) -> Sequence[tuple[Any, Any]]:
        """All (x, y) pairs of one domain, images and their classes, in an order that never changes."""

    def read_as(self, reading: Reading) -> None:
        """Let image files be read so from now on, by whatever `domain` returns."""
        self.reading = reading

    def check_domain(self, name: str) -> None:
        """Raise a ConfigError unless `name` is one of `domains`."""
        if name not in self.domains:
            raise ConfigError(
                f"Unknown domain {name!r} of {self.name}.{did_you_mean(name, self.domains)} "
                f"Known: {', '.join(self.domains)}. "
                f"Use one of these full names; abbreviations and positions are not understood."
            )


def split_pair(sample: Any) -> tuple[Any, Any]:
    """x and y of a sample; a tensor of two rows is no pair.

    Raises:
        DataError: It is none.
    """
    if not isinstance(sample, tuple | list) or len(sample) != 2:
        found = f"{type(sample).__name__} of {len(sample)}" if hasattr(sample, "__len__") else type(sample).__name__
        raise DataError(f"a sample is a {found}; wanted a pair (x, y)")
    return sample[0], sample[1]


def labels_of(domain: Sequence[tuple[Any, Any]]) -> list[int]:
    """The labels of a domain, without decoding its images where it says them itself.

    Our own sequences say them as `labels`, torchvision's as `targets`. Of any other, every item is read.
    """
    for attribute in ("labels", "targets"):
        said = getattr(domain, attribute, None)
        if said is not None and len(said) == len(domain):
            return [int(label) for label in said]
    return [int(domain[i][1]) for i in range(len(domain))]

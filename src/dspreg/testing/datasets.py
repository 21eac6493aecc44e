"""What the rest of the package relies on in a data set, as a check for ours and for yours.

    from dspreg.testing import check_dataset

    def test_mine(tmp_path):
        check_dataset(Digits(tmp_path))

1. It names itself, its domains (sorted) and its classes, each once.
2. A domain read twice is the same twice: as many images, the same labels, the same pixels. Splits go by position.
3. Every item is an image and a label, a position in `classes`. The image is Pillow's, or a tensor (channels, height,
   width) of uint8 or of floats from 0 to 1, with the channels that `channels` says; of `tensors` and of other kinds
   what these say.
4. A domain can be sent to another process, because images are loaded there.
5. An unknown domain is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np

from dspreg.config.reading import Reading
from dspreg.data import DomainDataset, fingerprint, labels_of
from dspreg.data.bands import planes_of
from dspreg.data.convert import picture_from
from dspreg.data.tasks import check_samples
from dspreg.errors import DataError
from dspreg.kinds import CLASSES
from dspreg.testing.probes import LawBroken

LOOKED_AT = 8  # images of a domain, spread over it; labels are all read


def check_dataset(dataset: DomainDataset) -> None:
    """Raise `LawBroken` unless the data set keeps what is written above."""
    if not isinstance(dataset, DomainDataset):
        raise TypeError(f"check_dataset wants a DomainDataset, not {_kind(dataset)}; give an object, not its class")
    _names(dataset)
    _numbers(dataset)
    for name in dataset.domains:
        _domain(dataset, name)
    _unknown(dataset)


def _names(dataset: DomainDataset) -> None:
    for attribute in ("name", "domains", "classes"):
        if not getattr(dataset, attribute, None):
            raise LawBroken(f"{type(dataset).__name__} has no {attribute}: set it in the class or in __init__")
    if not isinstance(dataset.name, str):
        raise LawBroken(f"name must be a text, not {_kind(dataset.name)}")
    for attribute in ("domains", "classes"):
        names = getattr(dataset, attribute)
        if not isinstance(names, tuple) or not all(isinstance(name, str) and name for name in names):
            raise LawBroken(f"{attribute} must be a tuple of texts, but is {names!r}")
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise LawBroken(f"{attribute} names {', '.join(twice)} more than once")
    if list(dataset.domains) != sorted(dataset.domains):
        raise LawBroken(f"domains must be sorted, as {tuple(sorted(dataset.domains))}, but are {dataset.domains}")
    if dataset.num_classes != len(dataset.classes):
        raise LawBroken(f"num_classes is {dataset.num_classes}, but classes has {len(dataset.classes)} names")


def _numbers(dataset: DomainDataset) -> None:
    for attribute in ("steps", "evaluate_every", "image_size", "channels"):
        value = getattr(dataset, attribute)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise LawBroken(f"{attribute} must be a whole number of at least 1, but is {value!r}")


def _domain(dataset: DomainDataset, name: str) -> None:
    where = f"domain({name!r})"
    first, second = dataset.domain(name), dataset.domain(name)
    for attribute in ("__len__", "__getitem__"):
        if not hasattr(first, attribute):
            raise LawBroken(f"{where} must be a sequence, but {_kind(first)} has no {attribute}")
    if len(first) == 0:
        raise LawBroken(f"{where} has no images")
    if len(first) != len(second):
        raise LawBroken(f"{where} has {len(first)} images when first read and {len(second)} afterwards")
    if dataset.tensors or dataset.kind != CLASSES:
        _samples(dataset, name, first, second)
        _pickled(where, first)
        return
    labels, again = labels_of(first), labels_of(second)
    if labels != again:
        at = next(i for i, (a, b) in enumerate(zip(labels, again, strict=True)) if a != b)
        raise LawBroken(f"{where} is in another order when read again: label {at} was {labels[at]} and is {again[at]}")
    for i, label in enumerate(labels):
        if not 0 <= label < len(dataset.classes):
            raise LawBroken(f"{where}[{i}] has the label {label}, outside 0 … {len(dataset.classes) - 1}")
    for i in sorted({j * (len(first) - 1) // (LOOKED_AT - 1) for j in range(LOOKED_AT)}):
        _item(f"{where}[{i}]", first[i], second[i], labels[i], dataset.channels)
    _pickled(where, first)


def _samples(dataset: DomainDataset, name: str, first: Sequence[Any], second: Sequence[Any]) -> None:
    """Of tensors, or of another kind."""
    try:
        labels, again = (check_samples(dataset, name, each) for each in (first, second))
    except DataError as error:
        raise LawBroken(str(error)) from error
    if not np.array_equal(labels, again):
        raise LawBroken(f"domain({name!r}) has other labels when read again: a data set may not draw at random")
    if fingerprint(first) != fingerprint(second):
        raise LawBroken(f"domain({name!r}) has other inputs when read again: a data set may not draw at random")


def _item(where: str, item: Any, again: Any, label: int, channels: int) -> None:
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise LawBroken(f"{where} must be (image, label), but is {_kind(item)}")
    image, own = item
    try:
        pixels, same = (picture_from(each, Reading(channels=channels)) for each in (image, again[0]))
    except DataError as error:
        raise LawBroken(f"the image of {where}: {error}") from error
    if int(own) != label:
        raise LawBroken(f"{where} has the label {own}, but its labels or targets say {label}")
    if not np.array_equal(planes_of(pixels), planes_of(same)):
        raise LawBroken(f"{where} has other pixels when read again: a data set may not draw at random")


def _pickled(where: str, domain: Sequence[Any]) -> None:
    try:
        ForkingPickler.dumps(domain)
    except Exception as error:  # whatever the user's objects raise
        raise LawBroken(f"{where} can't be sent to another process: {type(error).__name__}: {error}") from error


def _unknown(dataset: DomainDataset) -> None:
    try:
        dataset.domain("no such domain")
    except Exception:  # a KeyError will do
        return
    raise LawBroken("domain('no such domain') gives something: call self.check_domain(name) first")


def _kind(value: object) -> str:
    return f"a {type(value).__name__}"

"""What makes two domains the same data: names, classes and bytes, not where and when the files were put."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from dspreg.data.bands import Bands, planes_of
from dspreg.data.images import TOGETHER, Images


def fingerprint(
    domain: Sequence[tuple[Any, Any]],
    on_progress: Callable[[], None] = lambda: None,
    hashes: list[str] | None = None,
) -> str:
    """SHA-256, in hexadecimal, of a domain.

    Of image files: over the name, the name of the class and the SHA-256 of the bytes of each, in order. Moving or
    renaming the folder or touching its files changes nothing; a flipped byte, a renamed file, an image more does.

    Of any other sequence of images: over the sizes, RGB pixels and labels, in order. Of tensors: over their types,
    shapes, numbers and labels.

    Args:
        domain: All its images are read.
        on_progress: Called now and then; may raise.
        hashes: Gets what `content_hashes` would say of all images, which then need not be read again.
    """
    total = hashlib.sha256()
    if isinstance(domain, Images):
        domain.take_hashes(on_progress)
        # without the domain's own name: under another one it is the same data
        start = {name.partition("/")[0] + "/" for name in domain.names}
        names = [name.removeprefix(next(iter(start))) if len(start) == 1 else name for name in domain.names]
        for name, label, sha in zip(names, domain.labels, domain.hashes, strict=True):
            total.update(_line(name, domain.classes[label], sha))
        if hashes is not None:
            hashes += domain.hashes
    else:
        for i in range(len(domain)):
            image, label = domain[i]
            if hasattr(image, "convert"):
                total.update(_line(*image.size, *_numbers(label)))
                total.update(image.convert("RGB").tobytes())
                if hashes is not None:
                    hashes.append(hash_pixels(image))
            else:
                from dspreg.data.transforms import as_input  # needs torch, and image files do not

                given = as_input(image)
                total.update(_line(str(given.dtype), *given.shape, *_numbers(label)))
                total.update(given.numpy().tobytes())
                if hashes is not None:
                    hashes.append(hash_pixels(image))
            if i % TOGETHER == TOGETHER - 1:
                on_progress()
    return total.hexdigest()


def hash_pixels(image: Any) -> str:
    """SHA-256, in hexadecimal, of size and RGB pixels: the same for an image saved again without loss.

    Of an input that is a tensor: of its shape and numbers. Of other channels than RGB: of all of them.
    """
    if not hasattr(image, "convert"):
        from dspreg.data.transforms import as_input  # needs torch, and image files do not

        given = as_input(planes_of(image) if isinstance(image, Bands) else image)
        return hashlib.sha256(repr((str(given.dtype), *given.shape)).encode() + given.numpy().tobytes()).hexdigest()
    pixels = image if image.mode == "RGB" else image.convert("RGB")
    return hashlib.sha256(repr(pixels.size).encode() + pixels.tobytes()).hexdigest()


def content_hashes(domain: Sequence[Any], positions: Iterable[int], *, pixels: bool = False) -> list[str]:
    """SHA-256 of images: of the bytes of files, or of `pixels`, which data sets that are no files have alone."""
    if isinstance(domain, Images) and not pixels:
        return [domain.hash(i) for i in positions]
    return [hash_pixels(domain[i][0]) for i in positions]


def _numbers(label: Any) -> list[float]:
    """A class, or any single whole number, as such; the numbers of any other label."""
    numbers = np.asarray(label)
    if numbers.ndim == 0 and int(numbers) == numbers:
        return [int(numbers)]
    values: list[float] = numbers.reshape(-1).tolist()
    return values


def _line(*values: str | float) -> bytes:
    return json.dumps(values).encode() + b"\n"  # quoted, so that no two lists of values run into the same bytes

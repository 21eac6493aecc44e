"""The image files of one domain."""

from __future__ import annotations

import hashlib
import os
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from dspreg.config.reading import DOMAINBED_READING, Reading
from dspreg.data.annotations import NONE, Annotations
from dspreg.data.bands import Picture
from dspreg.data.decode import decode_bytes, stamped_contents
from dspreg.data.pixels import make_square, put_pixels, resize
from dspreg.errors import DataError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dspreg.data.cache import Cache

TOGETHER = 64  # files that a thread hashes at a time
THREADS = min(4, os.cpu_count() or 1)  # each may hold one decoded image of the largest size


class Images(Sequence[tuple[Any, int]]):
    """(image, label) pairs of image files, decoded when asked for, in a fixed order.

    Attributes:
        files: Where they lie.
        names: Their paths relative to the data set, e.g. `"cartoon/dog/pic_1.jpg"`. Never absolute, because the
            identity of a run may not depend on where its files lie.
        labels: Positions in `classes`.
        classes: Of the data set, not only of this domain.
        cache: Where decoded pixels are kept, if anywhere.
        reading: How files are read.
        annotations: Group, part and weight of each, as far as they are given.
    """

    annotations: Annotations = NONE

    def __init__(
        self,
        files: Sequence[Path],
        names: Sequence[str],
        labels: Sequence[int],
        classes: Sequence[str],
        cache: Cache | None = None,
        reading: Reading = DOMAINBED_READING,
    ) -> None:
        if not len(files) == len(names) == len(labels):
            raise DataError(
                f"as many files as names as labels wanted, but got {len(files)}, {len(names)} and {len(labels)}"
            )
        self.files, self.names, self.labels = list(files), list(names), list(labels)
        self.classes, self.cache, self.reading = tuple(classes), cache, reading
        self._hashes: list[str | None] = [None] * len(self.files)
        self._stamps = array("q", bytes(8 * len(self.files)))  # of the files when their hashes were taken

    def __len__(self) -> int:
        return len(self.files)

    @property
    def groups(self) -> tuple[str, ...] | None:
        """Which images belong together, if that is known; who stands by itself is a group of one."""
        said = self.annotations.groups
        return None if said is None else tuple(g or f"image {n}" for g, n in zip(said, self.names, strict=True))

    @property
    def metadata(self) -> Mapping[str, tuple[str, ...]]:
        """Further columns of their table."""
        return self.annotations.metadata

    @overload
    def __getitem__(self, i: int) -> tuple[Picture, int]: ...

    @overload
    def __getitem__(self, i: slice) -> Images: ...

    def __getitem__(self, i: int | slice) -> tuple[Picture, int] | Images:
        if isinstance(i, slice):
            return self.select(range(len(self))[i])
        return self.image(i), self.labels[i]

    def image(self, i: int) -> Picture:
        """The i-th image, from the cache if it is there."""
        if self.cache is None:
            return self._decoded(i)
        found = self.cache.read(self.hash(i), self.reading)
        if found is None:
            found = self._decoded(i)
            self.cache.write(self.hash(i), found, self.reading)
        return found

    def put_resized(self, i: int, out: NDArray[np.uint8], how: str = "squash") -> None:
        """Write the i-th image to `out` (channels, size, size), brought to its size; from the cache if it is there.

        Args:
            i: Its position.
            out: Where to.
            how: As in `make_square`.
        """
        if self.cache is not None and self.cache.read_resized(self.hash(i), out, self.reading, how):
            return
        found = self.cache.read(self.hash(i), self.reading) if self.cache is not None else None
        image = self._decoded(i) if found is None else found
        put_pixels(resize(make_square(image, how), out.shape[-1]), out)
        if self.cache is not None:  # it alone: whoever only evaluates has no use for the original
            self.cache.write_resized(self.hash(i), out, self.reading, how)

    def _decoded(self, i: int) -> Picture:
        return decode_bytes(self._contents(i), self.files[i], self.reading)

    def _contents(self, i: int) -> bytes:
        """The bytes of the i-th file, which must be those of its hash, if that was taken."""
        content, stamp = stamped_contents(self.files[i])
        known = self._hashes[i]
        if known is not None and stamp != self._stamps[i]:  # written to, replaced, or touched only
            if hashlib.sha256(content).hexdigest() != known:
                raise DataError(
                    f"{self.files[i]} was changed after this run had begun to read it: these are no longer the images "
                    "that the run's fingerprint is of. Put the file back as it was and run the same command again, or "
                    "start a new run."
                )
            self._stamps[i] = stamp
        return content

    def select(self, positions: Iterable[int]) -> Images:
        """Some of the images, in the order given."""
        at = list(positions)
        part = Images(
            [self.files[i] for i in at], [self.names[i] for i in at], [self.labels[i] for i in at],
            self.classes, self.cache, self.reading,
        )  # fmt: skip
        part.annotations = self.annotations.select(at)
        part._hashes = [self._hashes[i] for i in at]
        part._stamps = array("q", (self._stamps[i] for i in at))
        return part

    def hash(self, i: int) -> str:
        """SHA-256 of the bytes of the i-th file, taken once."""
        known = self._hashes[i]
        if known is None:
            content, self._stamps[i] = stamped_contents(self.files[i])
            known = self._hashes[i] = hashlib.sha256(content).hexdigest()
        return known

    def take_hashes(self, on_progress: Callable[[], None] = lambda: None) -> None:
        """Read all files whose hash is not known. `on_progress` is called now and then, and may raise."""
        if None not in self._hashes:
            return
        parts = [range(len(self))[start : start + TOGETHER] for start in range(0, len(self), TOGETHER)]
        pool = ThreadPoolExecutor(THREADS)
        try:
            for n, _ in enumerate(pool.map(lambda part: [self.hash(i) for i in part], parts)):
                if n:
                    on_progress()
        finally:
            pool.shutdown(cancel_futures=True)

    @property
    def hashes(self) -> list[str]:
        """SHA-256 of the bytes of each file, taken once."""
        self.take_hashes()
        return [self.hash(i) for i in range(len(self))]

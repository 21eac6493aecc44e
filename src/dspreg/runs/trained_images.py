"""Which images a run was trained on, by their contents: `trained_images.bin` in its folder.

A line that says what was hashed, then the first eight bytes of each SHA-256, sorted: half a megabyte for PACS at most,
and of a million images against a million others two are taken for one with a probability of 1 in 18 million.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from dspreg.errors import IntegrityError
from dspreg.io.atomic_files import read_regular_file
from dspreg.runs.folder import RunFolder

NAME = "trained_images.bin"
FORMAT = "dspreg.images/1"
SIZE = 8  # bytes of each SHA-256
Hashed = Literal["files", "pixels"]


@dataclass(frozen=True)
class TrainedImages:
    """The contents of the training splits of the sources.

    Attributes:
        hashed: What of an image: the bytes of its `"files"`, or the `"pixels"` of data sets that are no files.
        known: The beginnings of their SHA-256.
    """

    hashed: Hashed
    known: frozenset[bytes]

    @staticmethod
    def of(hashed: Hashed, sums: Iterable[str]) -> TrainedImages:
        """From SHA-256 in hexadecimal."""
        return TrainedImages(hashed, frozenset(bytes.fromhex(each[: 2 * SIZE]) for each in sums))

    def __contains__(self, sha: str) -> bool:
        return bytes.fromhex(sha[: 2 * SIZE]) in self.known

    def to_bytes(self) -> bytes:
        return f"{FORMAT} {self.hashed}\n".encode() + b"".join(sorted(self.known))

    @staticmethod
    def from_bytes(data: bytes, where: str) -> TrainedImages:
        """Inverse of `to_bytes`.

        Raises:
            IntegrityError: The file is something else.
        """
        for hashed in ("files", "pixels"):
            start = f"{FORMAT} {hashed}\n".encode()
            if data.startswith(start) and (len(data) - len(start)) % SIZE == 0:
                rest = data[len(start) :]
                return TrainedImages(hashed, frozenset(rest[i : i + SIZE] for i in range(0, len(rest), SIZE)))
        raise IntegrityError(f"{where} starts with {data[:40]!r}; wanted {FORMAT} and hashes of {SIZE} bytes")


def read_trained_images(folder: RunFolder) -> TrainedImages | None:
    """What a run kept; None of one that kept nothing, as earlier ones."""
    path = folder / NAME
    if not path.exists():
        return None
    return TrainedImages.from_bytes(read_regular_file(path), str(path))

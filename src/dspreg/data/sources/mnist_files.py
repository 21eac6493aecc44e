"""MNIST's four files, where torchvision and DomainBed look for them: `root/MNIST/raw`."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Sequence
from pathlib import Path

from dspreg.data.mnist import FILES
from dspreg.data.sources.catalogue import Source
from dspreg.download.transfer import Remote
from dspreg.errors import DataError
from dspreg.io.atomic_files import make_folder, read_regular_file, sha256, sha256_of_file, write

MIRRORS = {
    "PyTorch's copy": "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "Google's copy": "https://storage.googleapis.com/cvdf-datasets/mnist/",
}
SOURCES = tuple(
    Source(name, tuple(Remote(f"{at}{file}.gz", f"{file}.gz") for file in FILES)) for name, at in MIRRORS.items()
)
PACKED = 2**25  # bytes; the largest has ten million


def place_mnist(trees: Sequence[Path], ready: Path) -> None:
    """Find the four files, packed or not, below some folders, compare them with what is known, and copy them.

    Raises:
        DataError: One is missing, or is another file.
    """
    make_folder(ready)
    for name, known in FILES.items():
        found = [path for tree in trees for file in (name, f"{name}.gz") for path in sorted(tree.rglob(file))]
        if not found:
            raise DataError(f"there is no {name}, nor {name}.gz, below {trees[0]}")
        content = _content(found[0], known.size)
        if sha256(content) != known.sha256:
            raise DataError(f"{found[0]} is not MNIST's {name}: its SHA-256 is {sha256(content)}")
        write(ready / name, content)


def _content(path: Path, size: int) -> bytes:
    if path.suffix != ".gz":
        return read_regular_file(path, limit=size, follow=True)
    try:
        with gzip.open(path) as packed:
            return packed.read(size + 1)  # one more, so that a longer file is another file
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} is damaged: {error}") from error


def is_whole(folder: Path) -> bool:
    """Whether all four files are there, byte for byte."""
    return all(
        (folder / name).is_file() and sha256_of_file(folder / name) == known.sha256 for name, known in FILES.items()
    )

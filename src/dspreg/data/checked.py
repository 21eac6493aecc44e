"""Every image decoded once before the first training on it, so that a bad one does not end a run at night."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from dspreg.data.base import DomainDataset
from dspreg.data.fingerprint import fingerprint
from dspreg.data.images import Images
from dspreg.data.verify import verify
from dspreg.errors import DataError
from dspreg.io.text import plural

SHOWN = 5


def check_once(
    dataset: DomainDataset,
    images: Mapping[str, Sequence[Any]],
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Decode all files of a data set, unless the same files were found sound before.

    Args:
        dataset: What is trained on.
        images: Its domains, as already read.
        progress: Is called with the number of images done and of all.

    Raises:
        DataError: Some can't be decoded; names the first and how to see all.
    """
    if not all(isinstance(each, Images) for each in images.values()):
        return  # made in memory, or by the user's own code
    stamp = stamps() / hashlib.sha256("".join(map(fingerprint, images.values())).encode()).hexdigest()
    if stamp.exists():
        return
    report = verify(dataset, progress)
    if report.bad:
        named = "\n".join(f"  {bad.image}: {bad.reason}" for bad in report.bad[:SHOWN])
        more = f"\n  and {len(report.bad) - SHOWN} more" if len(report.bad) > SHOWN else ""
        raise DataError(
            f"{plural(len(report.bad), 'image')} of {dataset.name} can't be used:\n{named}{more}\n"
            f"Mend or remove them; `dspreg data verify` names all of them"
        )
    with suppress(OSError):  # a reminder, nothing more: without it the images are looked at again next time
        stamp.parent.mkdir(parents=True, exist_ok=True)
        stamp.touch()


def stamps() -> Path:
    """Where is remembered what was found sound, by its contents."""
    return Path(os.environ.get("DSPREG_CACHE") or Path.home() / ".cache" / "dspreg") / "sound"

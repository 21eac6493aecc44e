"""What a verification found, kept as long as no file changes: looking at the same images twice costs nothing."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from dspreg import __version__
from dspreg.data.base import DomainDataset
from dspreg.data.images import Images
from dspreg.data.verify import Verification
from dspreg.errors import IntegrityError
from dspreg.io.atomic_files import read_json, write_json
from dspreg.io.user_cache import user_cache


class Remembered(NamedTuple):
    ok: bool
    text: str
    json: dict[str, Any]  # as `Verification.as_json`


def remember_verification(dataset: DomainDataset, found: Verification) -> None:
    """Keep what was found about these files, as they are now."""
    place = _place(dataset)
    if place is None:
        return
    with suppress(OSError, IntegrityError):  # a reminder, nothing more
        place.parent.mkdir(parents=True, exist_ok=True)
        write_json(place, {"ok": found.ok, "text": found.text(), "json": found.as_json()})


def recall_verification(dataset: DomainDataset) -> Remembered | None:
    """What was found about the same files, if none of them was touched since."""
    place = _place(dataset)
    if place is None:
        return None
    with suppress(OSError, IntegrityError, KeyError, TypeError):
        found = read_json(place)
        if isinstance(found["ok"], bool) and isinstance(found["text"], str) and isinstance(found["json"], dict):
            return Remembered(found["ok"], found["text"], found["json"])
    return None


def _place(dataset: DomainDataset) -> Path | None:
    """By the names, sizes and times of all files, and the program that looked; None of data that are no files."""
    found = [(each.severity, each.title) for each in (*dataset.faults, *dataset.findings)]
    whose = [__version__, dataset.name, dataset.classes, dataset.notices, dataset.own, dataset.reading.tag, found]
    known = hashlib.sha256(json.dumps(whose).encode())
    for domain in dataset.domains:
        images = dataset.domain(domain)
        if not isinstance(images, Images):
            return None
        said = images.annotations
        known.update((said.digest(splits=True, weights=False) + "\n").encode())
        for file, name, label in zip(images.files, images.names, images.labels, strict=True):
            try:
                about = os.stat(file)
            except OSError:
                return None
            line = [name, label, about.st_size, about.st_mtime_ns, about.st_ctime_ns, about.st_ino]
            known.update(json.dumps(line).encode() + b"\n")
    return user_cache("verified") / f"{known.hexdigest()}.json"

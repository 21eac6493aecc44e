"""Where this user's caches are: files that cost time to make again, and nothing else when they are deleted."""

from __future__ import annotations

import os
from pathlib import Path


def user_cache(kind: str) -> Path:
    """The folder for one kind of file, in `$DSPREG_CACHE` or `~/.cache/dspreg`. It may not be there yet."""
    return Path(os.environ.get("DSPREG_CACHE") or Path.home() / ".cache" / "dspreg") / kind

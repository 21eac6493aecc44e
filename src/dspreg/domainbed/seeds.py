"""DomainBed's seeds."""

from __future__ import annotations

import hashlib
from typing import Any


def seed_hash(*args: Any) -> int:
    """DomainBed's hash of any arguments: MD5 of their printed tuple, modulo 2³¹."""
    return int(hashlib.md5(str(args).encode(), usedforsecurity=False).hexdigest(), 16) % 2**31

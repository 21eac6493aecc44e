"""What an examination finds: in words, how bad it is, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "notice", "problem"]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        topic: A word: versions, device, memory, …
        level: `"ok"`; `"notice"`: works, and could be better; `"problem"`: a training will fail of it.
        says: What was found.
        remedy: What to do; empty if there is nothing to do.
    """

    topic: str
    level: Level
    says: str
    remedy: str = ""

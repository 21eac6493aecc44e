"""Progress of downloads as lines of text: bytes, rate and time left."""

from __future__ import annotations

import time
from collections.abc import Callable

from dspreg.io.text import format_duration


class ProgressLines:
    """Lines about the progress of several files: bytes, rate and time left. For streams that are no terminal."""

    def __init__(self, say: Callable[[str], None], every: float = 10.0, clock: Callable[[], float] = time.monotonic):
        self.say, self.every, self.clock = say, every, clock
        self.began: float | None = None
        self.said = 0.0
        self.first: dict[str, int] = {}
        self.files: dict[str, tuple[int, int | None]] = {}

    def __call__(self, name: str, done: int, total: int | None) -> None:
        now = self.clock()
        if self.began is None:
            self.began = self.said = now
        self.first.setdefault(name, done)
        self.files[name] = done, total
        if now - self.said >= self.every:
            self.said = now
            self.say(self.line(now))

    def line(self, now: float) -> str:
        done = sum(each for each, _ in self.files.values())
        totals = [total for _, total in self.files.values()]
        rate = (done - sum(self.first.values())) / max(now - (self.began or now), 1e-9)
        text = f"{done / 1e6:,.0f} MB"
        if None in totals or not rate:
            return f"{text}, {rate / 1e6:.1f} MB/s"
        total = sum(each or 0 for each in totals)
        return f"{text} of {total / 1e6:,.0f} MB, {rate / 1e6:.1f} MB/s, {format_duration((total - done) / rate)} left"

"""Small pictures as SVG text. Colours are classes, so that the page's theme decides them."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from dspreg.io.text import escape_terminal

COLOURS = 8  # classes k0 … k7 of the page's style
LETTER = 7.0  # pixels, about, of a capital letter in a picture
Point = tuple[float, float]


@dataclass(frozen=True)
class Scale:
    """From values to pixels."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, value = (math.log(v) if self.log else v for v in (self.low, self.high, value))
        return self.start + (self.end - self.start) * (value - low) / (high - low)

    def ticks(self) -> list[float]:
        """A few round values within."""
        if self.log:
            decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            every = [m * 10.0**d for d in decades for m in (1, 2, 5)]
            inside = [v for v in every if self.low <= v <= self.high]
            return inside[:: max(1, len(inside) // 3)]
        step = _round(self.high - self.low)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [n * step for n in range(first, last + 1)]


def fit_scale(values: Iterable[float], start: float, end: float, *, log: bool = False, zero: bool = False) -> Scale:
    """A scale with room for all of the values; a logarithmic one only where they are positive and wide apart."""
    there = [v for v in values if math.isfinite(v)] or [0.0, 1.0]
    low, high = min(there), max(there)
    if log and low > 0 and high > 30 * low:
        return Scale(low / 1.1, high * 1.1, start, end, log=True)
    low = min(low, 0.0) if zero else low
    room = 0.04 * (high - low) or max(abs(high), 1.0) / 10
    return Scale(low if zero and low == 0 else low - room, high + room, start, end)


def _round(span: float) -> float:
    """A step of 1, 2 or 5 times a power of ten that fits into `span` three to seven times."""
    size = 10.0 ** math.floor(math.log10(span / 3))
    return max(step for step in (size, 2 * size, 5 * size) if step <= span / 3 * (1 + 1e-9))


@dataclass
class Picture:
    """Drawn from the back to the front."""

    width: float
    height: float
    label: str  # for screen readers
    parts: list[str] = field(default_factory=list)

    def line(self, points: Sequence[Point], kind: str) -> None:
        """Connected; where a value is not finite there is a gap."""
        for piece in _pieces(points):
            at = " ".join(f"{x:.1f},{y:.1f}" for x, y in piece)
            self.parts.append(f'<polyline class="{kind}" points="{at}"/>')

    def area(self, points: Sequence[Point], kind: str) -> None:
        at = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.parts.append(f'<polygon class="{kind}" points="{at}"/>')

    def dot(self, x: float, y: float, kind: str, radius: float = 3, title: str = "") -> None:
        hover = f"<title>{escape_html(title)}</title>" if title else ""
        self.parts.append(f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}">{hover}</circle>')

    def text(self, x: float, y: float, text: str, anchor: str = "start", room: float = math.inf) -> None:
        """Without its middle where there is no room, for names differ at both ends; the whole is shown on pointing."""
        letters = len(text) if room == math.inf else int(room / LETTER)
        whole = f"<title>{escape_html(text)}</title>" if letters < len(text) else ""
        half = max(1, (letters - 1) // 2)
        cut = f"{text[:half]}…{text[-half:]}" if whole else text
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{whole}{escape_html(cut)}</text>')

    def draw_y_axis(self, scale: Scale, left: float, right: float) -> None:
        """Horizontal rules at the ticks, with their values to the left."""
        for value in scale.ticks():
            y = scale(value)
            self.line([(left, y), (right, y)], "rule")
            self.text(left - 4, y + 3.5, format_tick(value), "end")

    def draw_x_axis(self, scale: Scale, top: float, bottom: float, *, rules: bool = True) -> None:
        """Vertical rules at the ticks, with their values below."""
        ticks = scale.ticks()
        widest = LETTER * max((len(format_tick(value)) for value in ticks), default=1)
        room = abs(scale.end - scale.start) / max(1, len(ticks))
        every = max(1, math.ceil(widest / room))  # labels must not run into each other
        for n, value in enumerate(ticks):
            x = scale(value)
            if rules:
                self.line([(x, top), (x, bottom)], "rule")
            if n % every == 0:
                self.text(x, bottom + 13, format_tick(value), "middle")

    def svg(self) -> str:
        size = f'width="{self.width:g}" height="{self.height:g}" viewBox="0 0 {self.width:g} {self.height:g}"'
        return f'<svg {size} role="img" aria-label="{escape_html(self.label)}">{"".join(self.parts)}</svg>'


def colour_class(place: int, of: int) -> str:
    """The CSS class of one thing among several; with more things than colours, all have the same."""
    return f"k{place}" if of <= COLOURS else "k"


def format_tick(value: float) -> str:
    """As short as it can be and still differ from its neighbours."""
    if abs(value) >= 10_000:
        return f"{value / 1000:g}k"
    return f"{round(value, 10):g}"


def escape_html(text: str) -> str:
    return html.escape(escape_terminal(text))


def _pieces(points: Sequence[Point]) -> Iterable[list[Point]]:
    piece: list[Point] = []
    for x, y in points:
        if math.isfinite(x) and math.isfinite(y):
            piece.append((x, y))
        elif piece:
            yield piece
            piece = []
    if piece:
        yield piece

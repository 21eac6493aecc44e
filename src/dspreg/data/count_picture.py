"""How many images each class has in each domain, as a picture: for data sets whose table is too long to print."""

from __future__ import annotations

import io
from collections.abc import Mapping

LABELLED = 150  # classes whose names can still be read


def draw_counts(dataset: str, counts: Mapping[str, Mapping[str, int]]) -> bytes:
    """A PNG: a row for every class, a column for every domain, darker with more images; none at all is marked.

    Args:
        dataset: Its name.
        counts: Domain → class → images.
    """
    import numpy as np
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure

    domains = [*counts]
    classes = [*next(iter(counts.values()), {})]
    numbers = np.array([[counts[domain][name] for domain in domains] for name in classes]).reshape(len(classes), -1)
    named = len(classes) <= LABELLED
    side = 0.17 if named else 0.03
    size = (2.6 + 0.6 * max(2, len(domains)), min(60, 1.9 + side * max(8, len(classes))))
    figure = Figure(figsize=size, dpi=110, layout="constrained")
    axes = figure.subplots()
    shown = np.ma.masked_equal(numbers, 0)
    axes.set_facecolor("#d62728")  # what has no image
    drawn = axes.imshow(shown, aspect="auto", cmap="Blues", norm=LogNorm(1, max(2, int(numbers.max(initial=1)))),
                        interpolation="nearest")  # fmt: skip
    axes.set_xticks(range(len(domains)), [_plain(name) for name in domains], rotation=45, ha="right")
    if named:
        axes.set_yticks(range(len(classes)), [_plain(name) for name in classes], fontsize=7)
        for row, column in np.ndindex(numbers.shape):
            number = int(numbers[row, column])
            dark = number > numbers.max() ** 0.6
            axes.text(column, row, f"{number:,}", ha="center", va="center", fontsize=6, parse_math=False,
                      color="white" if dark or not number else "black")  # fmt: skip
    else:
        axes.set_ylabel(f"{len(classes):,} classes, in their order")
    empty = int((numbers == 0).sum())
    says = f"{empty:,} of {numbers.size:,} cells without an image, red" if empty else "no cell without an image"
    axes.set_title(f"{dataset[:60]}: {int(numbers.sum()):,} images\n{says}", fontsize=9, loc="left", parse_math=False)
    figure.colorbar(drawn, ax=axes, label="images", shrink=0.8)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def _plain(name: str) -> str:
    """A name without what matplotlib takes for mathematics."""
    short = name if len(name) <= 30 else name[:29] + "…"
    return short.replace("$", r"\$")

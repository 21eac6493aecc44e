"""Summaries of a profile or a comparison, as numbers and sentences, for the terminal, JSON and the HTML page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dspreg.sensitivity.compare import Comparison
from dspreg.sensitivity.profile import Profile

NEAR = 1.2  # c below this multiple of null (c under random domain labels) is mostly noise; on PACS: < 64 images
LOW = 0.5  # reliability below which the order of parameters is mostly noise
TOP_LAYERS = 10


def summarize_profile(profile: Profile, layers: int = TOP_LAYERS) -> dict[str, Any]:
    """The summary as JSON: layers with the largest median c; means over parameters that some domain is sensitive to."""
    alive = profile.over_alive(profile.c)
    mean = float(alive.double().mean()) if len(alive) else 0.0
    null = None
    if profile.null is not None:
        null = float(profile.over_alive(profile.null).double().mean()) if len(alive) else 0.0
    return {
        "domains": {name: int(d["samples"]) for name, d in profile.settings.get("domains", {}).items()},
        "parameters": profile.c.numel(),
        "insensitive": 1 - len(alive) / profile.c.numel(),
        "c_mean": mean,
        "null_mean": null,
        "c_bound": profile.bound,
        "reliability": profile.reliability,
        "layers_by": "median c",
        "layers_measured": len(profile.layers()),
        "layers": rank_layers(profile)[:layers],
        "remarks": list(remarks(mean, null, profile.reliability)),
        "settings": dict(profile.settings),
    }


def rank_layers(profile: Profile) -> list[dict[str, Any]]:
    """All layers, the most domain-sensitive first: by the median of c over their parameters, then by its mean.

    "near_null" is for a layer what `remarks` reports for the whole network: its c is hardly above its null.
    """
    rows = []
    for row in profile.by_layer().to_dict("records"):
        entry = {"layer": row["layer"], "kind": row["kind"], "parameters": int(row["parameters"])}
        c, null = row["c median"], row.get("null median")
        entry |= {"c": c, "null": null, "near_null": null is not None and c < NEAR * null}
        rows.append(
            entry | {"c_mean": row["c mean"], "null_mean": row.get("null mean"), "insensitive": row["insensitive"]}
        )
    return sorted(rows, key=lambda row: (-row["c"], -row["c_mean"]))


def remarks(c: float, null: float | None, reliability: float | None) -> Iterator[str]:
    """Warnings against reading too much into the numbers."""
    if null is None:
        yield "no null was measured: how much of c is noise is unknown. Leave out --no-null"
    elif c < NEAR * null:
        yield f"c ({c:.2f}) is hardly above its null ({null:.2f}): do not read much into it, use more images"
    if reliability is None:
        yield "reliability is unknown: it needs two batches per domain. Use more images, or a smaller --batch"
    elif reliability < LOW:
        text = f"the reliability of c is low ({reliability:.2f}): which parameters come first is mostly noise"
        yield f"{text}. Do not read much into it, use more images"


def summarize_comparison(comparison: Comparison, layers: int = TOP_LAYERS) -> dict[str, Any]:
    """The summary of a comparison as JSON: layers whose median c changed most."""
    rows = []
    for row in comparison.by_layer().to_dict("records"):
        entry = {"layer": row["layer"], "kind": row["kind"], "parameters": int(row["parameters"])}
        for which in ("median", "mean"):
            for when in ("before", "after", "change"):
                entry[f"c_{which}_{when}"] = row[f"c {which} {when}"]
            for when in ("before", "after"):
                entry[f"null_{which}_{when}"] = row.get(f"null {which} {when}")
        rows.append(entry)
    rows.sort(key=lambda row: -abs(row["c_median_change"]))
    return {
        **comparison.overall(),
        "agreement": comparison.agreement,
        "layers_by": "change of median c",
        "layers_measured": len(rows),
        "rose": sum(row["c_median_change"] > 0 for row in rows),
        "fell": sum(row["c_median_change"] < 0 for row in rows),
        "layers": rows[:layers],
        "remarks": [*comparison.notes, *_change_remarks(comparison)],
        "settings": {"before": dict(comparison.before.settings), "after": dict(comparison.after.settings)},
    }


def _change_remarks(comparison: Comparison) -> Iterator[str]:
    for when, profile in (("before", comparison.before), ("after", comparison.after)):
        if profile.reliability is not None and profile.reliability < LOW:
            yield f"the reliability of c {when} is low ({profile.reliability:.2f}): use more images"
    numbers = comparison.overall()
    c, null = ([numbers[f"{what}_{when}"] for when in ("before", "after")] for what in ("c", "null"))
    if None not in (*c, *null) and abs(c[1] - c[0]) <= abs(null[1] - null[0]):
        text = f"mean c changed by {c[1] - c[0]:+.3f} and its null by {null[1] - null[0]:+.3f}"
        yield f"{text}: that is no more than the change of the null, do not read much into it"

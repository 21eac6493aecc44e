"""The text that `dspreg measure` prints."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from dspreg.io.text import align_columns, escape_terminal


def profile_text(found: Mapping[str, Any]) -> Iterator[str]:
    """What was measured, the most sensitive layers, and how to read them."""
    from dspreg.sensitivity.html import PARTS

    settings = found["settings"]
    about = settings["about"]
    run = f", {about['which']} model of step {about['step']}, {about['algorithm']}" if "run" in about else ""
    if "averaged_steps" in about:
        run += f", weights averaged over {about['averaged_steps']:,} steps"
    head = f", its head of {about['outputs']} outputs new and random" if about.get("head") == "new" else ""
    yield escape_terminal(f"{about['model']}{run}{head}, on {about['data']} at {about['image_size']} pixels")
    each = [
        f"{name} {found['domains'][name]:,} of {there['images']:,}{PARTS[there['part']]}"
        for name, there in about["domains"].items()
    ]
    yield escape_terminal(f"images: {', '.join(each)}; drawn by seed {about['seed']}")
    draws = f", {settings['draws']} draws" if settings["draws"] else ""
    yield f"of {settings['of']}, estimator {settings['estimator']}{draws}"
    yield ""
    rows = [["layer", "kind", "parameters", "c", "null", "insensitive", ""]]
    for row in found["layers"]:
        name = [escape_terminal(row["layer"]) or "(top)", escape_terminal(row["kind"]), f"{row['parameters']:,}"]
        numbers = [_number(row["c"]), _number(row["null"]), f"{100 * row['insensitive']:.0f} %"]
        rows.append([*name, *numbers, "≈ null" if row["near_null"] else ""])
    yield from align_columns(rows, left=2)
    shown_of, every = len(found["layers"]), found["layers_measured"]
    which = f"all {every} layers" if shown_of == every else f"the {shown_of} most domain-sensitive of {every} layers"
    yield f"{which}, by median c"
    yield ""
    null, sure = _number(found["null_mean"], 3), _number(found["reliability"])
    yield f"mean c {found['c_mean']:.3f}, null {null}, reliability {sure}"
    dead = f"{100 * found['insensitive']:.1f} % of {found['parameters']:,} parameters are insensitive on every domain"
    yield f"{dead} and left out of these means"
    yield f"c is 0 where all domains agree, {found['c_bound']:.2f} where one alone decides; null is what chance gives"
    yield from found["remarks"]


def comparison_text(found: Mapping[str, Any]) -> Iterator[str]:
    """The layers that changed most, and the whole."""
    rows = [["layer", "kind", "parameters", "c before", "null", "c after", "null", "change"]]
    for row in found["layers"]:
        name = [escape_terminal(row["layer"]) or "(top)", escape_terminal(row["kind"]), f"{row['parameters']:,}"]
        numbers = [_number(row[f"{what}_median_{when}"]) for when in ("before", "after") for what in ("c", "null")]
        rows.append([*name, *numbers, f"{round(row['c_median_change'], 2) + 0.0:+.2f}"])
    yield from align_columns(rows, left=2)
    shown_of, every = len(found["layers"]), found["layers_measured"]
    which = f"all {every} layers, by" if shown_of == every else f"the {shown_of} of {every} layers of the largest"
    yield f"{which} change of median c; in all {found['rose']} rose, {found['fell']} fell"
    yield ""
    for when in ("before", "after"):
        c, null, sure = (_number(found[f"{what}_{when}"], 3) for what in ("c", "null", "reliability"))
        yield f"{when:<6}  mean c {c}, null {null}, reliability {sure}"
    yield (
        f"means over the {found['sensitive_both_times']:,} of {found['parameters']:,} parameters that some domain is "
        "sensitive to both times"
    )
    yield f"rank correlation of c before and after: {_number(found['agreement'])}"
    yield from map(escape_terminal, found["remarks"])


def held_out_text(found: Mapping[str, Any]) -> Iterator[str]:
    """What was measured, every predictor beside the others, and one sentence."""
    from dspreg.sensitivity.html import held_out_images

    about = found["settings"]["about"]
    run = f", {about['which']} model of step {about['step']}, {about['algorithm']}" if "run" in about else ""
    yield escape_terminal(f"{about['model']}{run}, on {about['data']} at {about['image_size']} pixels")
    for name, text in held_out_images(found):
        yield escape_terminal(f"{name}: {text}")
    if found["images"] < about["asked"]:
        yield f"{found['images']:,} images of each part instead of {about['asked']:,}: all have as many as the smallest"
    yield ""
    unseen, medians = escape_terminal(found["unseen"]), found["medians"]
    yield f"rank correlations with the change of sensitivity |log s/s̄| on {unseen}, on held-out images of the sources,"
    yield "and with the excess of the first; over all parameters, then within tensor and tenth by s̄"
    headings = {"": "change as it is", "_less_level": "level of each domain taken off"}
    for suffix, heading in headings.items():
        yield ""
        rows = [[heading, *(unseen, "sources", "excess", "") * 2]]
        for name, row in found["correlations"].items():
            cells = []
            for which in ("all", "within"):
                cells += [_signed(row[f"{each}{suffix}"][which]["value"]) for each in ("unseen", "sources", "excess")]
                cells.append(_interval(row[f"excess{suffix}"][which]))
            rows.append([escape_terminal(found["labels"][name]), *cells])
        yield from align_columns(rows)
        if found["third"]:
            third = (
                f"{name} {_signed(each[f'change{suffix}']['all']['value'])}" for name, each in found["third"].items()
            )
            yield escape_terminal(f"c of the other sources with the change on one of them: {', '.join(third)}")
    yield ""
    change = medians["change"]
    yield (
        f"median change {change['unseen']:.2f} and {change['sources']:.2f}, with the level taken off "
        f"{change['unseen_less_level']:.2f} and {change['sources_less_level']:.2f}; levels: "
        f"s/s̄ = {math.exp(medians['level']['unseen']):.3g} and {math.exp(medians['level']['sources']):.3g}"
    )
    kept = f"{found['compared']:,} of {found['parameters']:,} parameters, those that some source is sensitive to"
    yield f"{kept}; 95 % intervals from resampled tensors"
    yield escape_terminal(found["verdict"])


def _signed(value: float | None) -> str:
    return "–" if value is None else f"{round(value, 2) + 0.0:+.2f}"


def _interval(found: Mapping[str, float | None]) -> str:
    return "" if found["low"] is None else f"({_signed(found['low'])} … {_signed(found['high'])})"


def _number(value: float | None, places: int = 2) -> str:
    return "unknown" if value is None else f"{value:.{places}f}"

"""The answer as one page: the sentence first, and all that it stands on. The same results give the same bytes."""

from __future__ import annotations

import base64
import io
import math
from collections import Counter
from collections.abc import Sequence
from importlib.resources import files
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from dspreg.data import DomainDataset
from dspreg.data.base import labels_of
from dspreg.data.images import Images
from dspreg.io.html import render_page
from dspreg.io.text import format_duration, plural
from dspreg.reporting.html.page import report_style
from dspreg.reporting.html.svg import Picture, Scale
from dspreg.sites.answer import LEVEL, SHARES, Checked, Estimate, percent
from dspreg.sites.check import spaced
from dspreg.sites.plan import needs_validation
from dspreg.sites.results import (
    calibration_error,
    confusion,
    reliability,
    worst_mistakes,
)
from dspreg.sites.scores import WHICH

if TYPE_CHECKING:
    from PIL.Image import Image

Z90 = 1.6448536269514722  # normal quantile of a 90 % interval
WIDTH, LEFT, RIGHT, ROW, TOP = 340, 14, 326, 40, 8  # names stand above their points: so it is read on a phone, too
SIDE = 96  # pixels of a thumbnail
EACH, ALL = 8, 240  # thumbnails of a site, at most; of the page, of each kind
CELLS = 15  # classes up to which the confusion is a table; of more, the most frequent confusions are listed
PAIRS = 20


def render_estimate(found: Estimate, data: DomainDataset, inbox: Images | None = None, *, images: bool = True) -> str:
    """The page.

    Args:
        found: The answer.
        data: For the images.
        inbox: Images of the new site, if there is one.
        images: Whether any are shown.
    """
    style = report_style()
    bins = reliability(list(found.predictions.values()))
    return render_page(
        f"Estimate of {found.plan.name}",
        files("dspreg.sites").joinpath("page.html").read_text("utf-8"),
        style=style["style"] + files("dspreg.sites").joinpath("page.css").read_text("utf-8"),
        light=style["light"],
        dark=style["dark"],
        found=found,
        interval=found.forecast.interval(LEVEL),
        sites_picture=draw_sites(found, data),
        chance=describe_chance(data),
        rows=list(_site_rows(found)),
        others=[each.name for each in found.methods if each is not found.chosen],
        methods=list(_method_rows(found)),
        gallery=list(_gallery(found, data)) if images else [],
        inbox=_thumbnails(inbox, spaced(len(inbox), EACH)) if images and inbox is not None else [],
        new=_new_site(found) if found.new else None,
        confused=_confused(found),
        calibration=draw_reliability(bins),
        calibration_error=f"{100 * calibration_error(bins):.1f}",
        facts=list(_facts(found)),
        model="model",
        which=WHICH if needs_validation(found.chosen.spec) else "",  # else the last is the only one there is
        percent=percent,
    )


# The picture of sites.


def wilson(accuracy: float, images: int) -> tuple[float, float]:
    """90 % interval of a share of so many images (Wilson, 1927)."""
    z2 = Z90**2 / images
    middle = (accuracy + z2 / 2) / (1 + z2)
    half = Z90 / (1 + z2) * math.sqrt(accuracy * (1 - accuracy) / images + z2 / (4 * images))
    return max(0.0, middle - half), min(1.0, middle + half)


def chance_level(data: DomainDataset) -> tuple[str, float]:
    """The class that is most frequent over sites, and how often it is right to say it always: mean over sites."""
    shares: Counter[int] = Counter()
    for site in data.domains:
        labels = labels_of(data.domain(site))
        for label, count in Counter(labels).items():
            shares[label] += count / len(labels) / len(data.domains)  # type: ignore[assignment]
    label, share = max(sorted(shares.items()), key=lambda each: each[1])
    return data.classes[label], float(share)


def describe_chance(data: DomainDataset) -> str:
    name, share = chance_level(data)
    return f"always saying “{name}”: {percent(share)} %"


def draw_sites(found: Estimate, data: DomainDataset) -> str:
    """Accuracy on each site with its interval, the forecast below, and the chance line."""
    sites, checked = found.chosen.sites, {each.site: each for each in found.checked or ()}
    chance = chance_level(data)[1]
    forecast = {level: found.forecast.interval(level) for level in (0.8, LEVEL)}
    ends = [chance, *(each.low for each in forecast.values()), *(wilson(s.accuracy, s.images)[0] for s in sites)]
    low = max(0.0, math.floor(10 * (min(ends) - 0.02)) / 10)
    x = Scale(100 * low, 100.0, LEFT, RIGHT)
    height = TOP + ROW * (len(sites) + 1) + 4
    picture = Picture(WIDTH, height + 20, "accuracy on each site that was held out, in per cent, and on a new one")
    picture.draw_x_axis(x, TOP, height)
    picture.line([(x(100 * chance), TOP), (x(100 * chance), height)], "chance")
    for n, each in enumerate(sites):
        y = TOP + ROW * (n + 0.68)
        picture.text(0, y - 13, f"{each.site}  {percent(each.accuracy)} %", room=WIDTH)
        if each.site in checked:
            interval = checked[each.site].interval(LEVEL)
            picture.line([(x(100 * interval.low), y), (x(100 * interval.high), y)], "foretold")
        ends = [x(100 * end) for end in wilson(each.accuracy, each.images)]
        picture.line([(ends[0], y), (ends[1], y)], "bar k0")
        for trial, value in enumerate(each.accuracies) if len(each.accuracies) > 1 else ():
            picture.dot(x(100 * value), y, "dot k0", 2.5, f"trial {trial}: {100 * value:.1f} %")
        says = f"{each.site}: {100 * each.accuracy:.1f} % of {each.images:,} images"
        picture.dot(x(100 * each.accuracy), y, "site k0", 4.5, says)
    y = TOP + ROW * (len(sites) + 0.68)
    middle = found.forecast.expected
    picture.text(0, y - 13, f"a new site  {percent(middle)} %", room=WIDTH)
    for level, kind in ((LEVEL, "wide k1"), (0.8, "narrow k1")):
        picture.line([(x(100 * forecast[level].low), y), (x(100 * forecast[level].high), y)], f"forecast {kind}")
    picture.dot(x(100 * middle), y, "site k1", 4.5, f"as often better as worse: {100 * middle:.1f} %")
    if found.new is not None:
        picture.line([(x(100 * found.new.confidence), y - 9), (x(100 * found.new.confidence), y + 9)], "bar k2")
    return picture.svg()


def draw_reliability(bins: Sequence[tuple[int, float, float]]) -> str:
    """Share right against confidence, a dot per tenth of confidence."""
    side, left, bottom = 260, 38, 226
    x, y = Scale(0, 100, left, side), Scale(0, 100, bottom, 6)
    picture = Picture(side + 10, bottom + 22, "share of images recognised against the model's confidence, in per cent")
    picture.draw_y_axis(y, left, side)
    picture.draw_x_axis(x, 6, bottom)
    picture.line([(x(0), y(0)), (x(100), y(100))], "chance")
    most = max(n for n, _, _ in bins)
    for n, sure, right in bins:
        says = f"{plural(n, 'image')}: {100 * sure:.0f} % sure, {100 * right:.0f} % right"
        picture.dot(x(100 * sure), y(100 * right), "site k0", 2 + 5 * math.sqrt(n / most), says)
    return picture.svg()


# Tables.


def _site_rows(found: Estimate) -> Any:
    checked = {each.site: each for each in found.checked or ()}
    for n, site in enumerate(found.chosen.sites):
        each = found.predictions[site.site]
        yield {
            "site": site.site,
            "images": f"{site.images:,}",
            "accuracy": f"{100 * site.accuracy:.1f}",
            "others": [f"{100 * m.sites[n].accuracy:.1f}" for m in found.methods if m is not found.chosen],
            "low_high": " – ".join(percent(end) for end in wilson(site.accuracy, site.images)),
            "calibration": f"{100 * calibration_error(reliability([each])):.1f}",
            "check": _check(checked[site.site]) if site.site in checked else None,
        }


def _check(each: Checked) -> dict[str, Any]:
    interval = each.interval(LEVEL)
    return {
        "forecast": f"{percent(interval.low)} – {percent(interval.high)}",
        "right": each.was_right(LEVEL),
    }


def _method_rows(found: Estimate) -> Any:
    cheapest = min(each.seconds for each in found.methods)
    for each in found.methods:
        gap, error = each.behind
        yield {
            "name": each.name,
            "spec": each.spec,
            "chosen": each is found.chosen,
            "validation": found.format_validation(each.validation),
            "behind": "best" if gap == 0 else _behind(found, gap, error),
            "unseen": f"{100 * each.unseen:.1f}",
            "cost": f"{each.seconds / cheapest:.1f} ×",
            "seconds": format_duration(each.seconds),
        }


def _behind(found: Estimate, gap: float, error: float) -> str:
    scale, digits = (100, 1) if found.plan.metric in SHARES else (1, 3)
    return f"{scale * gap:.{digits}f} ± {scale * error:.{digits}f} behind"


def _confused(found: Estimate) -> dict[str, Any]:
    """As a table of shares of each class, or as a list of the most frequent confusions."""
    classes = found.plan.classes
    counts = confusion(found.predictions, len(classes))
    there = [c for c in range(len(classes)) if counts[c].sum()]
    if len(classes) <= CELLS:
        rows = []
        for c in there:
            shares = counts[c] / counts[c].sum()
            cells = [
                {"count": int(n) or "", "shade": min(9, int(10 * share)) if n else "none", "right": k == c}
                for k, (n, share) in enumerate(zip(counts[c], shares, strict=True))
            ]
            rows.append({"name": classes[c], "cells": cells})
        return {"names": classes, "rows": rows, "pairs": []}
    wrong = [(int(counts[a, b]), a, b) for a, b in np.argwhere(counts) if a != b]
    wrong.sort(key=lambda each: (-each[0], each[1], each[2]))
    pairs = [(classes[a], classes[b], n, percent(n / counts[a].sum())) for n, a, b in wrong[:PAIRS]]
    return {"names": [], "rows": [], "pairs": pairs}


def signed(points: float) -> str:
    """`"+1.5"`, `"−0.3"`, and `"0.0"` of whatever rounds to it."""
    rounded = round(points, 1)
    return f"{rounded:+.1f}".replace("-", "−") if rounded else "0.0"


def _new_site(found: Estimate) -> dict[str, Any]:
    """What is said of the images of a new site, each estimate beside its error on the known ones."""
    new = found.new
    assert new is not None
    estimates = found.estimates_of_new()
    rows = [
        {
            "title": each.title,
            "value": percent(each.value),
            "off": f"{100 * each.mean_error:.1f}",
            "most": f"{100 * max(map(abs, each.errors)):.1f}",
            "bias": signed(100 * fmean(each.errors)),
        }
        for each in estimates
    ]
    return {
        "rows": rows,
        "says": found.describe_new()[0],
        "odd": found.oddness_of_new(),
        "oddness": f"{new.oddness:.2f}",
        "sites": [
            (each.site, f"{each.oddness:.2f}", percent(each.accuracy or 0.0), percent(each.confidence),
             "" if each.agreement is None else percent(each.agreement))
            for each in found.label_free
        ],
        "known": found.new_known,
    }  # fmt: skip


def _facts(found: Estimate) -> Any:
    plan = found.plan
    for note in plan.notes:
        yield "the plan", note
    yield "options", ", ".join(f"{name} {value}" for name, value in sorted(plan.options.items()))
    yield "methods", ", ".join(plan.methods)
    yield "methods compared by", found.plan.metric
    yield (
        "selection",
        "the model of the last step; methods by the sources' held-out images at it, the cheapest within a standard "
        "error of the best",
    )
    for site, fingerprint in plan.fingerprints.items():
        yield f"images of {site}", f"fingerprint {fingerprint[:16]}"


# Images.


def _gallery(found: Estimate, data: DomainDataset) -> Any:
    """A few images of every site, and the mistakes that the model was surest of."""
    each = max(3, min(EACH, ALL // len(found.predictions)))
    for site, predictions in found.predictions.items():
        images = data.domain(site)
        labels = labels_of(images)
        some = sorted(spaced(len(images), each), key=lambda i: (labels[i], i))
        wrong = worst_mistakes(predictions, each)
        yield {
            "site": site,
            "some": [
                {"src": src, "says": data.classes[labels[i]]}
                for i, src in zip(some, _thumbnails(images, some), strict=True)
            ],
            "wrong": [
                {"src": src, "true": data.classes[label], "predicted": data.classes[said], "sure": percent(sure)}
                for (_, label, said, sure), src in zip(wrong, _thumbnails(images, [w[0] for w in wrong]), strict=True)
            ],
            "mistakes": f"{int((~predictions.right).sum()):,}",
            "images": f"{len(predictions.labels):,}",
        }


def _thumbnails(images: Sequence[tuple[Image, int]], positions: Sequence[int]) -> list[str]:
    """As addresses that hold the image itself."""
    from PIL import Image as Pillow

    found = []
    for i in positions:
        image = images[i][0].convert("RGB")
        if max(image.size) < SIDE // 2:  # a few pixels: enlarged as they are
            factor = SIDE // max(image.size)
            image = image.resize((image.width * factor, image.height * factor), Pillow.Resampling.NEAREST)
        image.thumbnail((SIDE, SIDE), Pillow.Resampling.BICUBIC)
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=85)
        found.append("data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode())
    return found

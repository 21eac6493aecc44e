"""What to expect on a further domain, by the accuracies on those that were held out: as `dspreg estimate` says it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from dspreg.forecast.sites import FEWEST, Forecast, Interval, SiteAccuracy, forecast_new_site
from dspreg.kinds import CLASSES
from dspreg.metrics import ACCURACY
from dspreg.protocol.selection import Choice
from dspreg.reporting.tables import SelectedRow

LEVEL = 0.9  # of the sentence


@dataclass(frozen=True)
class Expected:
    """Of one row.

    Attributes:
        label: Of the row.
        forecast: Of the accuracy on a further domain.
        metric: Of the sources' held-out images, that was selected by.
        validation: Its mean over domains and trials, the larger the better.
        domains: Of the data set, whether they were held out or not.
    """

    label: str
    forecast: Forecast
    metric: str
    validation: float
    domains: int

    @property
    def worst(self) -> SiteAccuracy:
        return min(self.forecast.sites, key=lambda each: each.accuracy)

    def interval(self, level: float = LEVEL) -> Interval:
        return self.forecast.interval(level)


def expected_on_new(row: SelectedRow) -> Expected | None:
    """The forecast by a row; None where fewer than two domains have an accuracy, or where these selected themselves."""
    if row.rule == "oracle" or any(run.kind != CLASSES for run in row.runs):
        return None
    sizes = {target: run.made["images"].get(target) for run in row.runs if run.made.get("images")
             for target in run.targets}  # fmt: skip
    sites, validation = [], []
    for target in row.domains:
        chosen = [each for trial in row.trials if isinstance(each := row.choices.get((target, trial)), Choice)]
        chosen = [each for each in chosen if math.isfinite(each.accuracy)]
        if chosen and sizes.get(target):
            sites.append(SiteAccuracy(target, sizes[target], tuple(each.accuracy for each in chosen)))
            validation += [each.validation for each in chosen]
    if len(sites) < FEWEST:
        return None
    metric = row.by or str(row.runs[0].conditions.get("select_by", ACCURACY))
    return Expected(row.label, forecast_new_site(sites), metric, fmean(validation), len(row.domains))


def expected_by_rows(rows: Sequence[SelectedRow]) -> list[Expected]:
    """By all rows of one data set that have a forecast."""
    return [found for row in rows if (found := expected_on_new(row)) is not None]


def expected_sentence(every: Sequence[Expected]) -> str:
    """Of the row that did best on held-out images of the sources, of those that held out every domain; or nothing.

    The domains that were held out do not decide which, or it would be the forecast of a method that was chosen by them.
    """
    whole = [each for each in every if len(each.forecast.sites) == each.domains]
    if not whole or len({each.metric for each in whole}) > 1:
        return ""  # what was selected by different metrics can't be compared by them
    best = max(whole, key=lambda each: each.validation)
    interval, worst = best.interval(), best.worst
    of_several = f" with {best.label}, the best on the sources' held-out images" if len(every) > 1 else ""
    return (
        f"On a domain it has never seen, expect about {100 * best.forecast.expected:.0f} %{of_several} (nine times out "
        f"of ten between {100 * interval.low:.0f} and {100 * interval.high:.0f}). Worst of these domains: "
        f"{worst.site}, {100 * worst.accuracy:.0f} %."
    )

"""From what the models said to the answer: the method, the forecast, its track record, what a new site looks like."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dspreg.errors import DataError
from dspreg.forecast.label_free import (
    estimate_by_agreement,
    estimate_by_confidence,
    oddness,
    softmax,
)
from dspreg.forecast.sites import (
    SiteAccuracy,
    forecast_new_site,
)
from dspreg.io.text import join_few, plural
from dspreg.metrics import selection_value
from dspreg.runs.run import Run
from dspreg.sites.answer import Checked, LabelFree, MethodResult
from dspreg.sites.plan import Plan, method_name
from dspreg.sites.scores import RunPredictions, SitePredictions
from dspreg.training.remarks import BEGINNINGS

BINS = 10  # of confidence
Key = tuple[str, str, int]  # method, site held out, trial


# Methods.


def compare_methods(
    plan: Plan, validation: Mapping[Key, float], scored: Mapping[Key, RunPredictions]
) -> tuple[tuple[MethodResult, ...], MethodResult]:
    """All methods, and the one to take: the cheapest that is within a standard error of the best.

    Compared by the mean accuracy on held-out images of the sources at the last step, pair by pair of the same site and
    trial. The sites that were held out decide nothing, or the forecast would be of a method that was chosen by them.
    """
    places = [(site, trial) for site in plan.sites for trial in range(plan.trials)]
    means = {each: fmean(validation[each, site, trial] for site, trial in places) for each in plan.methods}
    best = max(plan.methods, key=lambda each: means[each])  # of equal ones the cheapest
    found = []
    for each in plan.methods:
        gaps = [validation[best, site, trial] - validation[each, site, trial] for site, trial in places]
        error = float(np.std(gaps, ddof=1)) / math.sqrt(len(gaps)) if len(gaps) > 1 else 0.0
        accuracies = []
        for site in plan.sites:
            runs = [scored[each, site, trial].unseen[site] for trial in range(plan.trials)]
            accuracies.append(SiteAccuracy(site, len(runs[0].labels), tuple(run.accuracy for run in runs)))
        found.append(MethodResult(each, means[each], (fmean(gaps), error), tuple(accuracies), plan.seconds[each]))
    fit = [each for each in found if each.behind[0] <= each.behind[1]]
    chosen = min(fit, key=lambda each: each.seconds)
    return tuple(found), chosen


def validation_at_end(plan: Plan, records: Sequence[Mapping[str, Any]], run: Run) -> float:
    """What methods are compared by: the metric of the plan on held-out images of the sources, at the last step."""
    sources = [site for site in plan.sites if site not in run.targets]
    found = selection_value(records[-1], sources, plan.metric) if records else None
    if found is None or math.isnan(found):
        raise DataError(
            f"{run} has no {plan.metric} on held-out images of its sources, by which methods are compared. Take a new "
            f"--out without --select-by, or add images"
        )
    return found


def gather_remarks(said: Mapping[Key, Sequence[str]]) -> tuple[str, ...]:
    """What is odd about the trainings, a sentence for each method and kind: how many, which, and the first of them.

    Args:
        said: Of every training, the remarks in its result.
    """
    trainings = Counter(method for method, _, _ in said)
    alike: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for (method, site, _), remarks in said.items():
        for each in remarks:
            kind = next((begins for begins in BEGINNINGS if each.startswith(begins)), each)
            alike.setdefault((method, kind), []).append((site, each))
    order = list(trainings)
    found = []
    for (method, _), those in sorted(alike.items(), key=lambda each: order.index(each[0][0])):
        sites = join_few(list(dict.fromkeys(site for site, _ in those)))
        of = f"{len(those)} of {plural(trainings[method], 'training')} of {method_name(method)}"
        found.append(f"{of} ({sites} held out): {those[0][1]}")
    return tuple(found)


# Track record.


def check_forecasts(
    sites: Sequence[SiteAccuracy], pairs: Mapping[tuple[str, str], RunPredictions]
) -> tuple[Checked, ...]:
    """Every site forecast from what came of the others in runs that held it out, too.

    Args:
        sites: What each really gave, held out alone.
        pairs: Two sites, in the data set's order → the run that held out both.
    """
    names = [each.site for each in sites]
    found = []
    for truth in sites:
        others = []
        for name in names:
            if name != truth.site:
                first, second = sorted((name, truth.site), key=names.index)
                seen = pairs[first, second].unseen[name]
                others.append(SiteAccuracy(name, len(seen.labels), (seen.accuracy,)))
        found.append(Checked(truth.site, forecast_new_site(others), truth.images, truth.accuracies[0]))
    return tuple(found)


# Without labels.


def label_free_of_sites(plan: Plan, method: str, scored: Mapping[Key, RunPredictions]) -> tuple[LabelFree, ...]:
    """Every site as if its labels were not known, by the models that held it out; and what it really gave."""
    found = []
    for site in plan.sites:
        runs = [scored[method, site, trial] for trial in range(plan.trials)]
        confidence = fmean(estimate_by_confidence(*run.validation(), run.unseen[site].logits) for run in runs)
        odd = fmean(oddness(run.unseen[site].features, run.source_features) for run in runs)
        agreement = _agreement([run.unseen[site].predicted for run in _alike(plan, method, site, scored)])
        found.append(LabelFree(site, confidence, agreement, odd, fmean(run.unseen[site].accuracy for run in runs)))
    return tuple(found)


def label_free_of_new(
    plan: Plan, method: str, scored: Mapping[Key, RunPredictions], new: Mapping[Key, SitePredictions]
) -> LabelFree:
    """A new site, by every model that held a site out: these have held-out images of their own to set a threshold
    by."""
    keys = [(method, site, trial) for site in plan.sites for trial in range(plan.trials)]
    confidence = fmean(estimate_by_confidence(*scored[key].validation(), new[key].logits) for key in keys)
    odd = fmean(oddness(new[key].features, scored[key].source_features) for key in keys)
    within = []
    for site in plan.sites:
        same = [new[each, site, t].predicted for each, t in _alike_keys(plan, method) if (each, site, t) in new]
        if (found := _agreement(same)) is not None:
            within.append(found)
    return LabelFree("", confidence, fmean(within) if within else None, odd)


def _alike_keys(plan: Plan, method: str) -> list[tuple[str, int]]:
    """Trainings on the same sites: trials of the method; where there is one trial only, other methods."""
    if plan.trials > 1:
        return [(method, trial) for trial in range(plan.trials)]
    return [(each, 0) for each in plan.methods]


def _alike(plan: Plan, method: str, site: str, scored: Mapping[Key, RunPredictions]) -> list[RunPredictions]:
    return [scored[each, site, trial] for each, trial in _alike_keys(plan, method)]


def _agreement(predicted: Sequence[NDArray[Any]]) -> float | None:
    return estimate_by_agreement(predicted) if len(predicted) > 1 else None


# Confusion and calibration.


def confusion(predictions: Mapping[str, SitePredictions], classes: int) -> NDArray[Any]:
    """(C, C) images of each class (row) by the class predicted, over all sites held out."""
    total = np.zeros((classes, classes), np.int64)
    for each in predictions.values():
        np.add.at(total, (each.labels, each.predicted), 1)
    return total


def reliability(predictions: Sequence[SitePredictions]) -> list[tuple[int, float, float]]:
    """Images, mean confidence and share right, of each tenth of confidence that has an image."""
    confidence = np.concatenate([softmax(each.logits).max(1) for each in predictions])
    right = np.concatenate([each.right for each in predictions])
    place = np.clip(np.ceil(confidence * BINS).astype(int) - 1, 0, BINS - 1)
    found = []
    for b in range(BINS):
        here = place == b
        if here.any():
            found.append((int(here.sum()), float(confidence[here].mean()), float(right[here].mean())))
    return found


def calibration_error(bins: Sequence[tuple[int, float, float]]) -> float:
    """Σ_b n_b/N · |share right − mean confidence|"""
    total = sum(n for n, _, _ in bins)
    return sum(n * abs(right - sure) for n, sure, right in bins) / total


def worst_mistakes(found: SitePredictions, most: int) -> list[tuple[int, int, int, float]]:
    """Position, class, predicted class and confidence of the wrong predictions that were surest."""
    p = softmax(found.logits)
    wrong = np.flatnonzero(~found.right)
    order = wrong[np.lexsort((wrong, -p[wrong].max(1)))][:most]
    return [(int(found.positions[i]), int(found.labels[i]), int(p[i].argmax()), float(p[i].max())) for i in order]

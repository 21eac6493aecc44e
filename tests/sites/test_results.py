"""From predictions to the answer, against plain loops; and what must not look at what."""

import numpy as np
import pytest

from dspreg.forecast.label_free import FeatureStatistics, estimate_by_confidence
from dspreg.forecast.sites import SiteAccuracy, forecast_new_site
from dspreg.sites.answer import errors_without_labels
from dspreg.sites.page import signed
from dspreg.sites.plan import Plan
from dspreg.sites.results import (
    calibration_error,
    check_forecasts,
    compare_methods,
    confusion,
    gather_remarks,
    label_free_of_sites,
    reliability,
    worst_mistakes,
)
from dspreg.sites.scores import RunPredictions, SitePredictions
from dspreg.training.remarks import BEGINNINGS, training_remarks

SITES = ("A", "B", "C", "D")


def predictions(site, seed, skill=2.0, images=60):
    random = np.random.default_rng((seed, ord(site[0])))
    labels = random.integers(0, 3, images)
    logits = random.standard_normal((images, 3)) + skill * np.eye(3)[labels]
    features = random.standard_normal((images, 5))
    return SitePredictions(
        site, np.arange(images), labels, logits, FeatureStatistics(images, features.mean(0), features.var(0))
    )


def run_of(held_out, seed=0, skill=2.0):
    unseen = {s: predictions(s, seed, skill) for s in held_out}
    return RunPredictions(unseen, {s: predictions(s, seed + 100, 3.0) for s in SITES if s not in held_out})


def plan(methods=("SWA", "X+SWA"), trials=1):
    seconds = {each: 1.0 + n for n, each in enumerate(methods)}
    return Plan(
        "folder:x", "x", dict.fromkeys(SITES, "0"), ("a", "b", "c"), tuple(methods), {}, trials, seconds, (), {}
    )


def scored(p, skill=2.0):
    return {
        (m, s, t): run_of((s,), 10 * t + n, skill)
        for n, m in enumerate(p.methods)
        for s in SITES
        for t in range(p.trials)
    }


def test_methods_are_compared_on_sources_and_never_on_unseen_sites():
    p = plan(trials=2)
    found = scored(p)
    keys = [(s, t) for s in SITES for t in range(2)]
    even = {(m, s, t): 0.8 + 0.01 * t for m in p.methods for s, t in keys}
    _, chosen = compare_methods(p, even, found)
    assert chosen.spec == "SWA"  # as good, and cheaper
    assert chosen.sites[0].accuracies == tuple(found["SWA", "A", t].unseen["A"].accuracy for t in range(2))
    better = {key: value + 0.05 * (key[0] == "X+SWA") + 0.001 * (key[1] == "B") for key, value in even.items()}
    methods, chosen = compare_methods(p, better, found)
    assert chosen.spec == "X+SWA"
    assert methods[0].behind[0] == pytest.approx(0.05)
    # however well the other does where nothing was seen
    poisoned = {key: run_of((key[1],), 5, 9.0 if key[0] == "SWA" else -9.0) for key in found}
    assert compare_methods(p, better, poisoned)[1].spec == "X+SWA"


def test_a_difference_within_its_error_is_not_worth_its_price():
    p = plan()
    gaps = dict(zip(SITES, (0.08, -0.05, 0.06, -0.05), strict=True))
    validation = {(m, s, 0): 0.8 + (gaps[s] if m == "X+SWA" else 0.0) for m in p.methods for s in SITES}
    methods, chosen = compare_methods(p, validation, scored(p))
    assert methods[1].behind == (0.0, 0.0)
    values = np.array(list(gaps.values()))
    assert methods[0].behind == pytest.approx((values.mean(), values.std(ddof=1) / 2))
    assert chosen.spec == "SWA"


def test_a_site_is_forecast_from_the_others_alone():
    pairs = {(a, b): run_of((a, b), 7) for i, a in enumerate(SITES) for b in SITES[i + 1 :]}
    truth = [SiteAccuracy(s, 60, (0.7,)) for s in SITES]
    found = {each.site: each for each in check_forecasts(truth, pairs)}
    others = [pairs[tuple(sorted(("B", o)))].unseen[o] for o in "ACD"]
    by_hand = forecast_new_site(
        [SiteAccuracy(o.site, 60, (float(np.mean(o.logits.argmax(1) == o.labels)),)) for o in others]
    )
    np.testing.assert_array_equal(found["B"].forecast.chances, by_hand.chances)
    assert found["B"].was_right(0.9) == (0.7 in by_hand.interval(0.9, images=60))
    # what any model says of B, and what B gave, is not in it
    for key, run in pairs.items():
        if "B" in key:
            run.unseen["B"] = predictions("B", 99, -5.0)
    truth = [each if each.site != "B" else SiteAccuracy("B", 60, (0.01,)) for each in truth]
    again = {each.site: each for each in check_forecasts(truth, pairs)}["B"]
    np.testing.assert_array_equal(again.forecast.chances, by_hand.chances)
    assert not again.was_right(0.9)


def test_the_label_free_estimates_never_see_the_labels_of_the_site():
    p = plan(("SWA",), trials=2)
    found = scored(p)
    once = label_free_of_sites(p, "SWA", found)[1]
    runs = [found["SWA", "B", t] for t in range(2)]
    by_hand = np.mean([estimate_by_confidence(*run.validation(), run.unseen["B"].logits) for run in runs])
    assert once.confidence == pytest.approx(by_hand)
    assert once.agreement == np.mean(runs[0].unseen["B"].predicted == runs[1].unseen["B"].predicted)
    for run in runs:
        run.unseen["B"].labels[:] = 0
    again = label_free_of_sites(p, "SWA", found)[1]
    assert (again.confidence, again.agreement, again.oddness) == (once.confidence, once.agreement, once.oddness)
    errors = errors_without_labels(label_free_of_sites(p, "SWA", found))
    truths = [np.mean([found["SWA", s, t].unseen[s].accuracy for t in range(2)]) for s in SITES]
    assert errors["other sites"][0] == pytest.approx(np.mean(truths[1:]) - truths[0])
    assert len(errors["confidence"]) == 4


def test_the_features_of_all_sources_are_those_of_their_images_together():
    random = np.random.default_rng(0)
    parts = {s: random.standard_normal((n, 4)) + n for s, n in (("A", 30), ("B", 50))}
    sites = {}
    for s, x in parts.items():
        features = FeatureStatistics(len(x), x.mean(0), x.var(0))
        sites[s] = SitePredictions(s, np.arange(len(x)), np.zeros(len(x)), np.zeros((len(x), 2)), features)
    together, found = np.concatenate(list(parts.values())), RunPredictions({}, sites).source_features
    np.testing.assert_allclose(found.mean, together.mean(0))
    np.testing.assert_allclose(found.variance, together.var(0))
    assert found.images == 80


def test_remarks_of_many_trainings_are_gathered_by_what_is_odd():
    untrained = (
        "it may not be trained out: source validation still rises, by {} points from the third quarter to the last"
    )
    said = {
        ("SWA", "A", 0): [untrained.format(3.0)],
        ("SWA", "B", 0): ["it predicts 'a' for 100 % of 9 held-out images", untrained.format(1.5)],
        ("X+SWA", "C", 0): [untrained.format(2.0)],
        ("X+SWA", "D", 0): [],
        ("SWA", "C", 0): ["something that no list has"],
    }
    found = gather_remarks(said)
    assert found == (
        f"2 of 3 trainings of ERM with averaged weights (A, B held out): {untrained.format(3.0)}",
        "1 of 3 trainings of ERM with averaged weights (B held out): it predicts 'a' for 100 % of 9 held-out images",
        "1 of 3 trainings of ERM with averaged weights (C held out): something that no list has",
        f"1 of 2 trainings of X with averaged weights (C held out): {untrained.format(2.0)}",
    )


def test_the_beginnings_are_those_of_the_remarks_of_trainings():
    predicted = training_remarks([], steps=9, selected=None, values=[], predicted=[(5, 5), (10, 0)], classes=("a", "b"))
    records = [{"step": n} for n in range(8)]
    rising = training_remarks(records, steps=8, selected=7, values=[n / 10 for n in range(8)])
    stopped = training_remarks(records, steps=99, selected=2, values=[0.1] * 8)
    assert [each.startswith(BEGINNINGS) for each in (*predicted, *rising, *stopped)] == [True] * 3


def test_points_have_a_sign_unless_they_are_none():
    assert [signed(each) for each in (1.46, -0.31, -0.04, 0.04, 0.0)] == ["+1.5", "−0.3", "0.0", "0.0", "0.0"]


def test_mistakes_confusion_and_calibration_by_plain_loops():
    each = predictions("A", 3)
    shown = worst_mistakes(each, 4)
    p = np.exp(each.logits) / np.exp(each.logits).sum(1, keepdims=True)
    wrong = sorted((-p[i].max(), i) for i in range(60) if p[i].argmax() != each.labels[i])[:4]
    assert [position for position, *_ in shown] == [i for _, i in wrong]
    assert [said for _, _, said, _ in shown] == [int(p[i].argmax()) for _, i in wrong]
    counts = np.zeros((3, 3))
    for i in range(60):
        counts[each.labels[i], p[i].argmax()] += 1
    np.testing.assert_array_equal(confusion({"A": each}, 3), counts)
    bins = reliability([each])
    assert sum(n for n, _, _ in bins) == 60
    error = 0.0
    for b in range(10):
        here = [i for i in range(60) if b / 10 < p[i].max() <= (b + 1) / 10]
        if here:
            error += len(here) / 60 * abs(np.mean([p[i].max() - (p[i].argmax() == each.labels[i]) for i in here]))
    assert calibration_error(bins) == pytest.approx(error)

"""The answer for somebody with several sites: the forecast, the method to take, and both in sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from dspreg.forecast.sites import (
    LEVELS,
    Forecast,
    Interval,
    SiteAccuracy,
    exchangeable_chance,
    width_with_another,
)
from dspreg.io.text import plural
from dspreg.metrics import ACCURACY, METRICS, WORST
from dspreg.sites.plan import Plan, method_name
from dspreg.sites.scores import SitePredictions

LEVEL = 0.9  # of the sentence
SHARES = (ACCURACY, "balanced", "macro-f1", WORST)  # metrics that people read in per cent
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


@dataclass(frozen=True)
class MethodResult:
    """One method over all sites and trials.

    Attributes:
        spec: As it was trained.
        validation: Mean accuracy on the held-out images of the sources: what methods are compared by.
        behind: Mean paired difference of that to the best method, and its standard error.
        sites: Accuracies on each site that was held out; they decide nothing.
        seconds: Of one training, by the probe.
    """

    spec: str
    validation: float
    behind: tuple[float, float]
    sites: tuple[SiteAccuracy, ...]
    seconds: float

    @property
    def name(self) -> str:
        return method_name(self.spec)

    @property
    def unseen(self) -> float:
        return fmean(each.accuracy for each in self.sites)


@dataclass(frozen=True)
class Checked:
    """A site forecast from the others, by models that never saw it, and what it really gave.

    Attributes:
        site: Its name.
        forecast: Made of the other sites.
        images: That its accuracy was measured on.
        accuracy: Of the model that held it out alone.
    """

    site: str
    forecast: Forecast
    images: int
    accuracy: float

    def interval(self, level: float) -> Interval:
        return self.forecast.interval(level, self.images)

    def was_right(self, level: float) -> bool:
        return self.accuracy in self.interval(level)


@dataclass(frozen=True)
class LabelFree:
    """Estimates of one site's accuracy without its labels, and how odd its images are.

    Attributes:
        site: Its name.
        confidence: Average thresholded confidence.
        agreement: Of trainings with each other; None where there is one only.
        oddness: Distance of its features from those trained on, in standard deviations.
        accuracy: What it really is; None of a new site.
    """

    site: str
    confidence: float
    agreement: float | None
    oddness: float
    accuracy: float | None = None


@dataclass(frozen=True)
class Estimate:
    """The answer, for a page, a table or a program.

    Attributes:
        plan: What was done.
        methods: All of them, the cheapest first.
        chosen: The one that is recommended.
        forecast: Of its accuracy on a new site.
        predictions: Of the chosen method's first trial, by the site that was held out.
        label_free: Of the sites, where they were held out.
        checked: The track record; None without `--check`, or where there are too few sites for it.
        no_check: Why there is none, if one was asked for.
        new: Of the images of `--new`.
        new_name: Of the folder.
        new_images: How many they are, and
        new_known: how many of them are at one of the sites, too.
        remarks: What makes the answer worse, of the images and of the trainings, in sentences.
    """

    plan: Plan
    methods: tuple[MethodResult, ...]
    chosen: MethodResult
    forecast: Forecast
    predictions: Mapping[str, SitePredictions]
    label_free: tuple[LabelFree, ...]
    checked: tuple[Checked, ...] | None = None
    no_check: str = ""
    new: LabelFree | None = None
    new_name: str = ""
    new_images: int = 0
    new_known: int = 0
    remarks: tuple[str, ...] = ()

    @property
    def worst(self) -> SiteAccuracy:
        return min(self.chosen.sites, key=lambda each: each.accuracy)

    def sentence(self) -> str:
        """The answer in one paragraph."""
        interval, worst = self.forecast.interval(LEVEL), self.worst
        return (
            f"On a site it has never seen, expect about {percent(self.forecast.expected)} % (nine times out of ten "
            f"between {percent(interval.low)} and {percent(interval.high)}). Worst of your sites: {worst.site}, "
            f"{percent(worst.accuracy)} %. {self.verdict()}"
        )

    def verdict(self) -> str:
        """Which method, and why."""
        others = [each for each in self.methods if each is not self.chosen]
        if not others:
            return f"{self.chosen.name} is the only method that was tried."
        dearer = [each for each in others if each.seconds > self.chosen.seconds]
        if len(dearer) == len(others):
            what = "anything dearer" if len(others) > 1 else f"{others[0].name}, which is dearer"
            return f"{self.chosen.name} was as good as {what}."
        cheaper = max((each for each in others if each not in dearer), key=lambda each: each.validation)
        gain = self.chosen.validation - cheaper.validation
        by = f"{100 * gain:.1f} points" if self.plan.metric in SHARES else f"{gain:.3f} of {self.plan.metric}"
        return f"{self.chosen.name} was better than {cheaper.name} by {by} on the sources' held-out images."

    def format_validation(self, value: float) -> str:
        """What methods are compared by, for people: in per cent, or as it is."""
        if self.plan.metric in SHARES:
            return f"{100 * value:.1f} %"
        return f"{value if METRICS[self.plan.metric].larger else -value:.3f}"

    def how_little(self) -> str:
        """What so few sites can tell, and what one more would."""
        count = len(self.chosen.sites)
        interval = self.forecast.interval(LEVEL)
        now, then = 100 * (interval.high - interval.low), 100 * width_with_another(self.forecast, LEVEL)
        share = exchangeable_chance(count)
        little = "very little" if count < 4 else "little" if count < 7 else "something"
        few = f"{number(count).capitalize()} sites say {little}"
        more = "one more would hardly narrow the interval"
        if then < now - 0.5:
            more = f"one more would narrow the interval from {now:.0f} to about {then:.0f} points"
        return (
            f"{few}: with nothing assumed but that sites come in no order, a new one is worse than your worst one "
            f"time in {round(1 / share)}; {more}."
        )

    def record(self) -> str:
        """How often the interval was right, in a sentence."""
        if self.checked is None:
            return self.no_check
        count = len(self.checked)
        right = {level: sum(each.was_right(level) for each in self.checked) for level in LEVELS}
        said = " and ".join(f"the {100 * level:.0f} % interval {right[level]} of {count} times" for level in LEVELS)
        return f"Forecast from the others, by models that never saw it, each site fell into {said}."

    def estimates_of_new(self) -> list[NewEstimate]:
        """What the images of the new site say, each estimate with its error on the known ones; the best of these
        first."""
        assert self.new is not None
        errors = errors_without_labels(self.label_free)
        of_new = {
            "average thresholded confidence": ("confidence", self.new.confidence),
            "agreement of trainings": ("agreement", self.new.agreement),
            "the forecast, which looks at no image": ("other sites", self.forecast.expected),
        }
        made = [NewEstimate(title, value, tuple(errors[name])) for title, (name, value) in of_new.items()
                if value is not None and name in errors]  # fmt: skip
        return sorted(made, key=lambda each: each.mean_error)

    def oddness_of_new(self) -> str:
        """In words, among the sites."""
        assert self.new is not None
        odder, count = sum(self.new.oddness > each.oddness for each in self.label_free), len(self.label_free)
        if odder == count:
            return (
                "odder than every one of your sites was when it was held out: the forecast is for one more of the same "
                "kind, and this may be none"
            )
        if odder == 0:
            return "nearer to the others than any of your sites was when it was held out"
        return f"odder than {odder} of your {count} sites were when they were held out"

    def describe_new(self) -> list[str]:
        """In sentences."""
        best, *others = self.estimates_of_new()
        said = [f"The new site ({self.new_name}, {plural(self.new_images, 'image')}): {best}."]
        said += [f"Otherwise: {'; '.join(map(str, others))}."] if others else []
        said.append(f"Its images are {self.oddness_of_new()}.")
        if self.new_known:
            known = f"{plural(self.new_known, 'image')} of it {'is' if self.new_known == 1 else 'are'}"
            said.append(f"{known} at a known site, too: all this is too good.")
        return said


@dataclass(frozen=True)
class NewEstimate:
    """An estimate of the accuracy on a new site, and by how much it was off on each of the known ones."""

    title: str
    value: float
    errors: tuple[float, ...]

    @property
    def mean_error(self) -> float:
        return fmean(map(abs, self.errors))

    def __str__(self) -> str:
        off = f"{100 * self.mean_error:.1f} points on average on your sites"
        return f"{percent(self.value)} % by {self.title}, off by {off}"


def percent(share: float) -> str:
    """`"83"`, of 0.834."""
    return f"{100 * share:.0f}"


def number(count: int) -> str:
    return NUMBERS[count] if count < len(NUMBERS) else f"{count}"


def errors_without_labels(found: Sequence[LabelFree]) -> dict[str, list[float]]:
    """By how much each estimate was off at each site, and the mean of the other sites, which looks at no image."""
    truths = [each.accuracy for each in found if each.accuracy is not None]
    errors: dict[str, list[float]] = {"confidence": [], "agreement": [], "other sites": []}
    for each in found:
        if each.accuracy is None:
            continue
        errors["confidence"].append(each.confidence - each.accuracy)
        if each.agreement is not None:
            errors["agreement"].append(each.agreement - each.accuracy)
        others = (sum(truths) - each.accuracy) / (len(truths) - 1)
        errors["other sites"].append(others - each.accuracy)
    return {name: values for name, values in errors.items() if values}

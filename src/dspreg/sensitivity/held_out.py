"""Does c of some domains say which parameters change on a domain that is held out?

c is worth something for an unseen domain if the parameters with a large c are those whose sensitivity departs there
from what it is on the sources. The departure of parameter k on images x is its *change*,

    change_x = |log(s_x / s̄)|        s̄ the mean of s over the sources, on the images that c comes from

But c is large where s is noisy, too, and there every new image changes s. So the change on the held-out domain is
compared with that on as many *other images of the sources*. What is due to the domain is the *excess*, parameter by
parameter,

    excess = change²_unseen − change²_sources

Squares, because noise of equal variance cancels in their mean: with log(s_unseen/s̄) = δ + noise the mean of the excess
is δ², however noisy the parameter. (Its median is still lower for noisier parameters, so that ranks are a little, too;
less so than of a difference of absolute values. The null, which knows the noise and nothing else, shows how much.)

A domain with a larger loss has larger sensitivities altogether: its *level*, the median of log(s/s̄), says nothing about
parameters. So all of it is done twice, as above and with the level taken off log(s/s̄).

All of them are correlated by rank with c, and beside c with

- its null (c under random domain labels), c without the estimated noise, and c of domains brought to one level,
- s̄ alone, and the agreement of the sources' gradients, |ḡ|·√D/std_d(g): what else could be known from the sources,
- two that see the held-out domain, on yet other images of it: c with that domain among the others, and the change
  there. No predictor can do much better than the last, for it shares all but the sampling.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from dspreg.errors import ConfigError, DataError
from dspreg.io.text import did_you_mean
from dspreg.precision import full_precision
from dspreg.randomness import Key, generator
from dspreg.sensitivity.correlations import Correlation, RankCorrelations
from dspreg.sensitivity.estimators import Loss, readings
from dspreg.sensitivity.evaluation_mode import evaluation_mode
from dspreg.sensitivity.measure import attach_labels, build_profile, progress_bar
from dspreg.sensitivity.meter import Meter, require_finite
from dspreg.sensitivity.null import FunctionOf, Walk
from dspreg.sensitivity.profile import Profile
from dspreg.sensitivity.samples import Function, Samples, batches_of, concatenate, notice_same_data
from dspreg.sensitivity.statistics import coefficient_of_variation
from dspreg.vectors import ParamVector, Patterns

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PREDICTORS = {
    "c": "c",
    "c_debiased": "c without its noise",
    "c_levelled": "c of equal levels",
    "null": "null: c of random domains",
    "mean": "s̄",
    "agreement": "agreement of gradients",
    "c_with_unseen": "c with {unseen} among the domains",
    "again": "change on other images of {unseen}",
}
CEILINGS = ("c_with_unseen", "again")  # which see the held-out domain
OUTCOMES = ("unseen", "sources", "excess")
LEVEL = "_less_level"  # of outcomes: with the median of log(s/s̄) taken off first
LARGEST = 1e6  # a ratio of sensitivities beyond it counts as it; also s = 0
COMPARED = 500_000  # parameters, at most: accurate to about 0.002, far less than what resampled tensors differ by
PARTS = 10  # of the parameters, by c, in a figure


@dataclass(frozen=True)
class HeldOutComparison:
    """Whether c of some domains says which parameters change on another. Returned by `dspreg.compare_held_out`.

    Rank correlations are over the parameters that some source is sensitive to (a keyed sample of half a million,
    where there are more), with 95 % intervals from resampling tensors.

    Attributes:
        unseen: The domain that was held out.
        sources: The domains c is of.
        images: Of each domain and part: c, held-out images of every source, of all sources mixed, the held-out domain.
        parameters: All, and `compared` those that some source is sensitive to.
        correlations: Of predictor and outcome. Outcomes: "unseen", the change on the held-out domain; "sources", that
            on as many held-out images of all sources mixed; "excess", the first squared less the second squared;
            "one_source", on held-out images of a single source, mean over sources; and "difference" of the correlations
            with the first and the second; of c "excess_less_null", its correlation with the excess less that of its
            null. All of them also with "_less_level": the median of log(s/s̄) is taken off, so
            that a loss that is larger everywhere is no change.
        third: Source → correlation of c of the *other* sources with the change on held-out images of this one, "change"
            and "change_less_level"; empty with two sources.
        medians: Median of log(s/s̄), "level", and of the change, by outcome.
        parts: Outcome → quartiles of the change in each tenth of the parameters by c, lowest first.
        settings: How it was measured.
    """

    unseen: str
    sources: tuple[str, ...]
    images: int
    parameters: int
    compared: int
    correlations: Mapping[str, Mapping[str, Correlation]]
    third: Mapping[str, Mapping[str, Correlation]]
    medians: Mapping[str, Mapping[str, float]]
    parts: Mapping[str, Sequence[tuple[float, float, float]]]
    settings: Mapping[str, Any] = field(default_factory=dict)

    def label(self, predictor: str) -> str:
        """What a predictor is called."""
        return PREDICTORS[predictor].format(unseen=self.unseen)

    @property
    def verdict(self) -> str:
        """One sentence, by the change with the level taken off, over all parameters."""
        found = self.correlations["c"]
        unseen, sources, excess = (found[f"{name}{LEVEL}"].all for name in OUTCOMES)
        if unseen.value is None or sources.value is None or excess.value is None:
            return f"c says nothing about {self.unseen}: it, or the change of sensitivities, is the same everywhere"
        numbers = (
            f"its rank correlation is {unseen.value:+.2f} with the change on {self.unseen}, {sources.value:+.2f} with "
            f"that on held-out images of the sources, and {excess.value:+.2f} with the excess"
        )
        if excess.low is None or excess.high is None:
            return f"of c, {numbers}; a single tensor gives no interval, so no verdict"
        numbers += f" ({excess.low:+.2f} to {excess.high:+.2f})"
        best = self.correlations["again"][f"excess{LEVEL}"].all.value
        if best is not None:
            numbers += f", where other images of {self.unseen} reach {best:+.2f}"
        beyond = found.get(f"excess_less_null{LEVEL}")
        if beyond is not None and beyond.all.value is not None:
            numbers += f", and its null {excess.value - beyond.all.value:+.2f}"
        if excess.low > 0 and (beyond is None or beyond.all.low is None or beyond.all.low > 0):
            start = f"c ranks the parameters whose sensitivity changes on {self.unseen} better than noise would"
        elif excess.high < 0:
            start = f"c ranks the parameters whose sensitivity changes on {self.unseen} the wrong way round"
        else:
            start = f"c ranks the parameters whose sensitivity changes on {self.unseen} no better than noise would"
        return f"{start}: {numbers}"

    def to_json(self) -> dict[str, Any]:
        """Everything, as plain numbers and text."""
        labels = {name: self.label(name) for name in self.correlations}
        return {**asdict(self), "sources": list(self.sources), "labels": labels, "verdict": self.verdict}

    def figure(self) -> Figure:
        """The change in each tenth of the parameters by c, and the correlations of all predictors."""
        from dspreg.sensitivity.plots import draw_held_out

        return draw_held_out(self)


def compare_held_out(
    model: nn.Module,
    domains: Mapping[str, Iterable[Any]],
    held_out: str,
    *,
    images: int = 512,
    batch: int = 32,
    loss: Loss | None = None,
    of: str = "loss",
    estimator: str = "persample",
    eps: float = 0.0,
    only: Patterns = None,
    exclude: Patterns = None,
    draws: int | None = None,
    progress: bool = False,
    null: bool = True,
    key: Key = 0,
) -> HeldOutComparison:
    """Does c of the other domains say which parameters change on the domain `held_out`?

    Every domain is divided at random: c comes from one half of each source, the change on held-out images from the
    other; one half of the held-out domain gives its change, the other shows how well that can be known. All parts have
    the same number of images, since fewer make s noisier and so its change larger.

    Args:
        model: As in `measure`, without side effects.
        domains: By name, at least three. Loaders as in `measure`; of each the first 2 · `images` samples are taken.
        held_out: One of them.
        images: Per domain and part at most; half of the smallest domain if that is less, and a multiple of the number
            of sources.
        batch: Samples at a time.
        loss, of, estimator, eps, only, exclude, draws, progress, null, key: As in `measure`.

    Raises:
        ConfigError: `held_out` is none of the domains.
    """
    names = [str(name) for name in domains]
    if held_out not in names:
        raise ConfigError(
            f"held_out={held_out!r}; wanted one of {', '.join(map(repr, names))}.{did_you_mean(held_out, names)}"
        )
    if images < 1 or batch < 1:
        raise ConfigError(f"images={images}, batch={batch}; wanted at least 1 of each")
    notice_same_data(domains)
    meter = Meter(
        model, of=of, estimator=estimator, draws=draws, loss=loss, only=only, exclude=exclude, key=("held out", key)
    )
    device = next(iter(meter.params.values())).device
    with evaluation_mode(model), full_precision(device.type), progress_bar(progress) as walk:
        halves = {}
        for name, loader in domains.items():
            taken = concatenate(list(_first(batches_of(str(name), loader, None, device), 2 * images)))
            order = torch.randperm(len(taken), generator=generator("held out", key, str(name)))[: 2 * images]
            cut = (len(order) + 1) // 2
            halves[str(name)] = [taken.take(part.to(device)) for part in (order[:cut], order[cut:])]
        return measure_held_out(
            meter, lambda _samples, _domain: model, halves, held_out, images=images, batch=batch, eps=eps, null=null,
            walk=walk,
        )  # fmt: skip


def _first(batches: Iterable[Samples], samples: int) -> Iterator[Samples]:
    """As many batches as have so many samples."""
    for each in batches:
        yield each
        samples -= len(each)
        if samples <= 0:
            return


def measure_held_out(
    meter: Meter,
    f: FunctionOf,
    halves: Mapping[str, Sequence[Samples]],
    held_out: str,
    *,
    images: int,
    batch: int = 32,
    eps: float = 0.0,
    null: bool = True,
    walk: Walk = lambda batches, _what: batches,
) -> HeldOutComparison:
    """The core of `compare_held_out`, of a network in evaluation mode.

    Args:
        meter, f: As in `build_profile`.
        halves: Domain → two parts of its samples, in random order. The first of a source is for c.
        held_out: One of them.
        images: Of each part at most.
        batch, eps, null, walk: As in `compare_held_out` and `build_profile`.
    """
    sources = [name for name in halves if name != held_out]
    number = equal_number(images, {name: min(map(len, parts)) for name, parts in halves.items()}, len(sources))
    place = {name: d for d, name in enumerate([*sources, held_out])}

    def split(samples: Samples, start: int, end: int) -> list[Samples]:
        return [samples.take(slice(i, min(i + batch, end))) for i in range(start, end, batch)]

    measuring = {name: split(halves[name][0], 0, number) for name in sources}
    profile = build_profile(meter, f, measuring, eps=eps, null=null, walk=walk)
    # One share of each source's held-out images makes as many as the held-out domain has, of all sources mixed.
    share = number // len(sources)
    pieces = {(name, part): split(halves[name][1], *at) for name in sources
              for part, at in (("share", (0, share)), ("rest", (share, number)))}  # fmt: skip
    pieces |= {(held_out, part): split(halves[held_out][i], 0, number) for i, part in enumerate(("unseen", "again"))}
    s = {at: _sensitivity(meter, f, at[0], place[at[0]], i, walk(each, f"measuring {at[0]}, held out"))
         for i, (at, each) in enumerate(pieces.items(), len(place))}  # fmt: skip
    one = 1 / len(sources)
    gradients = None
    if meter.of == "loss":
        gradients = [mean_gradient(meter, f, place[name], walk(each, f"gradient on {name}"))
                     for name, each in measuring.items()]  # fmt: skip
    found = correlate_held_out(
        profile,
        unseen=s[held_out, "unseen"],
        again=s[held_out, "again"],
        mixed=_sum(s[name, "share"] * one for name in sources),
        held={name: s[name, "share"] * one + s[name, "rest"] * (1 - one) for name in sources},
        gradients=gradients,
        key=meter.key,
    )
    settings = {**profile.settings, "batch": batch}
    return replace(found, unseen=held_out, images=number, settings=settings)


def equal_number(wanted: int, there: Mapping[str, int], sources: int) -> int:
    """The number of images of every part: as many as the smallest has, and one share of them for each source."""
    if sources < 2:
        raise DataError(f"c compares domains, and there is {sources} beside the held-out one; wanted at least two")
    number = min(wanted, *there.values()) // sources * sources
    if not number:
        name = min(there, key=lambda each: there[each])
        raise DataError(
            f"{min(wanted, there[name])} images of {name!r} to measure on and as many to hold out, at most; wanted at "
            f"least {sources}, one for each source"
        )
    return number


def _sensitivity(meter: Meter, f: FunctionOf, name: str, d: int, piece: int, batches: Iterable[Samples]) -> ParamVector:
    """s of some samples of domain d; `piece`, a number that no domain has, keys what is drawn for them."""
    sums, samples = meter.sums(), 0

    def f_of_domain(each: Samples, _piece: int) -> Function:
        return f(each, d)

    for b, each in enumerate(attach_labels(meter, f_of_domain, name, piece, batches, again=False)):
        meter.add(f(each, d), each, sums, piece, b)
        samples += len(each)
    mean = sums.mean(0, samples)
    return require_finite(ParamVector((name, t / meter.scales.get(name, 1.0) ** 2) for name, t in mean.items()))


def mean_gradient(meter: Meter, f: FunctionOf, d: int, batches: Iterable[Samples]) -> ParamVector:
    """The mean over the samples of domain d of the gradient of the loss, sign and all; 0 where it does not reach."""
    params, samples = list(meter.params.values()), 0
    total = [torch.zeros_like(p, dtype=torch.promote_types(p.dtype, torch.float32)) for p in params]
    for each in batches:
        each = meter.with_labels(f(each, d), each, d)
        loss = readings(f(each, d), meter.of, meter.loss)(each).sum()
        for sum_, g in zip(total, torch.autograd.grad(loss, params, allow_unused=True), strict=True):
            if g is not None:
                sum_ += g
        samples += len(each)
    return ParamVector((name, sum_ / samples) for name, sum_ in zip(meter.params, total, strict=True))


def _sum(vectors: Iterable[ParamVector]) -> ParamVector:
    return sum(vectors, ParamVector())


def gradient_agreement(gradients: Sequence[ParamVector]) -> ParamVector:
    """|ḡ_k| · √D / std_d(g_k): how far the mean over domains is from 0, a t-value. 0 where all gradients are 0."""

    def agreement(*g: Tensor) -> Tensor:
        each = torch.stack([t.double() for t in g])
        t = each.mean(0).abs() * math.sqrt(len(g)) / each.std(0)
        return torch.where(each.abs().amax(0) > 0, t, 0.0)

    return gradients[0].map(agreement, *gradients[1:])


def correlate_held_out(
    profile: Profile,
    *,
    unseen: ParamVector,
    again: ParamVector,
    mixed: ParamVector,
    held: Mapping[str, ParamVector],
    gradients: Sequence[ParamVector] | None = None,
    key: tuple[Key, ...] = (),
) -> HeldOutComparison:
    """All rank correlations, from sensitivities alone.

    Args:
        profile: Of the sources, with c.
        unseen, again: s of two disjoint parts of the held-out domain.
        mixed: s of as many held-out images of all sources together.
        held: s of as many held-out images of every source.
        gradients: Mean gradients of the sources, on the images of the profile.
        key: Of sampled parameters and resampled tensors.
    """
    sample = Sample(profile.mean, *key)
    mean = sample.take(profile.mean)
    logs = {"unseen": log_ratio(sample.take(unseen), mean), "again": log_ratio(sample.take(again), mean)}
    logs |= {"sources": log_ratio(sample.take(mixed), mean)}
    logs |= {f"source {name}": log_ratio(sample.take(s), mean) for name, s in held.items()}
    vectors = {"c": profile.c, "c_debiased": profile.c_debiased, "null": profile.null, "mean": profile.mean}
    vectors |= {"agreement": None if gradients is None else gradient_agreement(gradients)}
    levelled = [sample.level(s, mean) for s in profile.s.values()]
    eps = profile.settings.get("eps", 0.0)
    vectors |= {"c_levelled": coefficient_of_variation(levelled, eps)}
    vectors |= {"c_with_unseen": coefficient_of_variation([*profile.s.values(), again], eps)}
    columns = {name: sample.take(each) for name, each in vectors.items() if each is not None}
    medians: dict[str, dict[str, float]] = {"level": {}, "change": {}}
    for suffix in ("", LEVEL):
        change = {name: (log - log.median() if suffix else log).abs() for name, log in logs.items()}
        change["excess"] = change["unseen"].square() - change["sources"].square()
        columns |= {f"{name}{suffix}": each for name, each in change.items()}
    for name in ("unseen", "sources"):
        medians["level"][name] = float(logs[name].median())
        medians["change"] |= {each: float(columns[each].median()) for each in (name, f"{name}{LEVEL}")}
    ranked = RankCorrelations(columns, mean, sample.sizes, *key)

    def correlations(predictor: str) -> dict[str, Correlation]:
        made: dict[str, Correlation] = {}
        for suffix in ("", LEVEL):
            own = f"{predictor}{suffix}" if predictor == "again" else predictor
            made |= {f"{name}{suffix}": ranked.pair(own, f"{name}{suffix}") for name in OUTCOMES}
            terms = [(1.0, own, f"unseen{suffix}"), (-1.0, own, f"sources{suffix}")]
            made[f"difference{suffix}"] = ranked.combine(terms)
            every = [(1 / len(held), own, f"source {name}{suffix}") for name in held]
            made[f"one_source{suffix}"] = ranked.combine(every)
            if predictor == "c" and "null" in columns:
                terms = [(1.0, "c", f"excess{suffix}"), (-1.0, "null", f"excess{suffix}")]
                made[f"excess_less_null{suffix}"] = ranked.combine(terms)
        return made

    return HeldOutComparison(
        unseen="",
        sources=profile.domains,
        images=0,
        parameters=profile.mean.numel(),
        compared=sample.alive,
        correlations={name: correlations(name) for name in PREDICTORS if name in columns},
        third={name: _third(profile, name, s, key) for name, s in held.items()} if len(held) > 2 else {},
        medians=medians,
        parts={name: quartiles_by(columns["c"], columns[name]) for name in medians["change"]},
    )


def _third(profile: Profile, third: str, held: ParamVector, key: tuple[Key, ...]) -> dict[str, Correlation]:
    """c of all sources but one, with the change on that one."""
    others = [s for name, s in profile.s.items() if name != third]
    mean = _sum(others) / len(others)
    sample = Sample(mean, *key)
    columns = {"c": sample.take(coefficient_of_variation(others, profile.settings.get("eps", 0)))}
    log = log_ratio(sample.take(held), sample.take(mean))
    columns |= {"change": log.abs(), f"change{LEVEL}": (log - log.median()).abs()}
    ranked = RankCorrelations(columns, sample.take(mean), sample.sizes, *key)
    return {name: ranked.pair("c", name) for name in columns if name != "c"}


class Sample:
    """The parameters that are compared: those with s̄ > 0, or a keyed sample of them, tensor after tensor."""

    def __init__(self, mean: ParamVector, *key: Key):
        self.names = list(mean)
        flat = mean.flat().cpu()
        chosen = (flat > 0).nonzero()[:, 0]
        self.alive = len(chosen)
        if not self.alive:
            raise DataError("no source is sensitive to any parameter: there is nothing to compare")
        if self.alive > COMPARED:
            some = torch.randperm(self.alive, generator=generator(*key, "compared"))[:COMPARED]
            chosen = chosen[some.sort().values]
        ends = torch.cumsum(torch.tensor([t.numel() for t in mean.values()]), 0)
        self.chosen = chosen
        self.sizes = torch.bincount(torch.searchsorted(ends, chosen, right=True), minlength=len(ends)).tolist()

    def take(self, vector: ParamVector) -> Tensor:
        """The entries of a vector, float64."""
        return torch.cat([vector[name].reshape(-1).cpu() for name in self.names])[self.chosen].double()

    def level(self, s: ParamVector, mean: Tensor) -> ParamVector:
        """s over its level: the median of s/s̄ is 1."""
        return s / float(log_ratio(self.take(s), mean).median().exp())


def log_ratio(s: Tensor, mean: Tensor) -> Tensor:
    """log(s/s̄), for s̄ > 0."""
    return (s / mean).clamp(1 / LARGEST, LARGEST).log()


def quartiles_by(c: Tensor, change: Tensor) -> list[tuple[float, float, float]]:
    """Lower quartile, median and upper quartile of the change in each tenth of the parameters, by c."""
    at = c.new_tensor([0.25, 0.5, 0.75])
    made = []
    for part in change[c.argsort(stable=True)].tensor_split(min(PARTS, len(c))):
        low, middle, high = torch.quantile(part, at).tolist()
        made.append((low, middle, high))
    return made

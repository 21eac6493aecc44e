"""Which step of which draw is reported, by DomainBed's three rules and two of ours. No torch in here.

A rule looks at all runs of one data set, algorithm and trial that hold a target out, over all draws. It first finds the
best step of every draw, then the best draw, and reports the accuracy on the target's "in" split there.

    training_domains   mean "out" accuracy of the sources, or another metric of them, of the run that holds out the
                       target alone
    leave_one_out      mean over the other domains v of the "in" accuracy on v of the run that holds out both
    oracle             "out" accuracy of the target itself, at the last step; it has seen what it is asked about
    second_half_mean   no step is picked: accuracy and validation are means over the evaluations in the second half of
                       training, to compare methods with less noise; it is not the accuracy of any checkpoint
    last_step          no step is picked: the last one, as for methods that average weights over the training

The first of equal steps wins, and the largest of equal draws. Two things are not DomainBed's: a run that is not
finished never enters, and NaN never wins, not even as the first step.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from dspreg.errors import ConfigError
from dspreg.kinds import CLASSES, figures_of
from dspreg.metrics import ACCURACY, WORST, mean, missing_figures, selection_value
from dspreg.protocol.estimate import seconds_of
from dspreg.runs.folder import RunFolder
from dspreg.runs.status import FINISHED, RunState, RunStatus, describe_state

if TYPE_CHECKING:
    from dspreg.sensitivity.profile import Profile

ELSEWHERE = "run under other conditions: see its other rows"
Record = Mapping[str, Any]  # {"step": 0, "accuracy": {"photo": {"in": 0.5, "out": 0.5}, …}, …}


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """One run as `dspreg.load_runs` finds it: what was trained, and what came of it.

        for run in dspreg.load_runs("runs"):
            print(run.algorithm, run.targets, run.state.status, [record["validation"] for record in run.records])

    Attributes:
        dataset: Its name.
        algorithm: The spec as it was given, without the options that a draw or a short run filled in.
        domains: All domains, in the data set's order.
        targets: Those held out.
        trial: Seed of split, batches and initial weights.
        draw: Number of the draw of hyper-parameters; 0 is the defaults.
        protocol: Whose defaults it has.
        options: What a random search draws: `lr`, `weight_decay`, `batch_size`, `dropout`.
        conditions: Whatever else decides the result: steps, network, weights, threads, …
        settings: Every setting, as in run.json; empty for a run that is not started.
        records: One for each evaluation of a finished run: `step`, `validation`, `accuracy` (domain → `"in"` and
            `"out"`, between 0 and 1; of another kind its own figures instead), `log` (loss, and what the method logs),
            `seconds`.
        state: Status, and the reason of a failure.
        elsewhere: Whether it was run under other conditions than its row, and counts in another one.
        id: Hash of what was trained; empty for a run that is not started.
        folder: Where it lies; empty for a run that is not started.
        plan: In a store, what was asked for besides data set, targets, algorithm, trial and draw.
        made: Versions, weights and fingerprints of images, to be shown.
        kind: Of the task, as in `dspreg.kinds`.
    """

    dataset: str
    algorithm: str
    domains: tuple[str, ...]
    targets: tuple[str, ...]
    trial: int = 0
    draw: int = 0
    protocol: str = "domainbed"
    options: Mapping[str, Any] = field(default_factory=dict)
    conditions: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    records: Sequence[Record] = ()
    state: RunState = FINISHED
    elsewhere: bool = False
    id: str = ""
    folder: str = ""
    plan: str = ""
    made: Mapping[str, Any] = field(default_factory=dict)
    kind: str = CLASSES

    @property
    def finished(self) -> bool:
        """Whether it is finished, and counts in its row."""
        return self.state.status is RunStatus.FINISHED and not self.elsewhere

    @property
    def why(self) -> str:
        """In words, why it does not count."""
        return ELSEWHERE if self.elsewhere else describe_state(self.state)

    @property
    def seconds(self) -> float:
        """Time of all steps and evaluations."""
        return seconds_of(self.records)

    def profile(self, when: str = "end") -> Profile:
        """The profile that training left, verified; needs torch.

        Args:
            when: `"start"` or `"end"` of training.

        Raises:
            ConfigError: There is none. Profiles of an archive can be read inside `with dspreg.open_store(…)` only.
        """
        if not self.folder:
            raise ConfigError(f"{self.algorithm} on {self.dataset} is {self.why}, and has no profile")
        from dspreg.sensitivity.profile import Profile

        return Profile.load(RunFolder(self.folder).profile(when))


class Choice(NamedTuple):
    """What a rule reports for one target and trial: the accuracy there, and what it was selected by, the larger the
    better."""

    accuracy: float
    validation: float
    step: int
    draw: int


# Of one trial and target, by a metric of `SELECT_BY` (None: that of each run); a text says why there is no choice.
Rule = Callable[[Iterable[RunResult], str, "str | None"], "Choice | str"]
BY_METRIC = ("training", "late", "last")  # rules that select by what runs say of their sources; others by accuracy


def training_domains(runs: Iterable[RunResult], target: str, by: str | None = None) -> Choice | str:
    """The step with the highest mean "out" accuracy of the sources, or the best by another metric of theirs."""

    def steps(alone: list[RunResult], _: list[RunResult]) -> list[Choice] | str:
        found = []
        for run in alone:
            for record in run.records:
                found += _choice(run, record, target, _validation(run, record, target, by))
        return found or _why_none(alone, target, by)

    return _best(runs, target, steps)


def leave_one_out(runs: Iterable[RunResult], target: str, by: str | None = None) -> Choice | str:  # noqa: ARG001
    """The step with the highest mean accuracy on domains held out beside the target, each in a run of its own."""

    def steps(alone: list[RunResult], pairs: list[RunResult]) -> list[Choice] | str:
        others = [name for name in alone[0].domains if name != target]
        held: dict[int, dict[str, float | None]] = defaultdict(dict)  # step → second target → accuracy on it
        for run in pairs:
            (second,) = set(run.targets) - {target}
            for record in run.records:
                held[record["step"]][second] = _accuracy(record, second, "in")
        if missing := [v for v in others if not any(v in each for each in held.values())]:
            return f"no finished pair runs of {target} with {', '.join(missing)}"
        times = Counter(record["step"] for run in alone for record in run.records)
        found = []
        for run in alone:
            for record in sorted(run.records, key=lambda r: int(r["step"])):
                if times[record["step"]] == 1:
                    found += _choice(run, record, target, _mean_of([held[record["step"]].get(v) for v in others]))
        return found or "no step is recorded once by the run and by all its pair runs"

    return _best(runs, target, steps)


def oracle(runs: Iterable[RunResult], target: str, by: str | None = None) -> Choice | str:  # noqa: ARG001
    """The last step, whatever it is worth; draws are compared by the target's own "out" accuracy."""

    def steps(alone: list[RunResult], _: list[RunResult]) -> list[Choice] | str:
        records = [(run, record) for run in alone for record in run.records]
        if not records:
            return "no records"
        last = max(record["step"] for _, record in records)
        run, record = [each for each in records if each[1]["step"] == last][-1]
        return _choice(run, record, target, _accuracy(record, target, "out")) or (
            f"the last record, of step {last}, lacks the target's accuracy"
        )

    return _best(runs, target, steps)


def second_half_mean(runs: Iterable[RunResult], target: str, by: str | None = None) -> Choice | str:
    """The mean over the second half of the steps, of the target's accuracy and of what compares draws."""
    return _mean_since(0.5, "a record of the second half", runs, target, by)


def last_step(runs: Iterable[RunResult], target: str, by: str | None = None) -> Choice | str:
    """The last step, whatever it is worth; draws are compared by the sources' validation at it."""
    return _mean_since(1.0, "the last record", runs, target, by)


def _mean_since(share: float, which: str, runs: Iterable[RunResult], target: str, by: str | None) -> Choice | str:
    """The mean over the evaluations after this share of the steps, none selected."""

    def steps(alone: list[RunResult], _: list[RunResult]) -> list[Choice] | str:
        found = []
        for run in alone:
            since = share * max((record["step"] for record in run.records), default=0)
            chosen = [
                _choice(run, record, target, _validation(run, record, target, by))
                for record in run.records
                if record["step"] >= since
            ]
            if all(chosen) and chosen:
                accuracy, validation = (mean([getattr(c, name) for (c,) in chosen]) for name in Choice._fields[:2])
                found.append(Choice(accuracy, validation, max(c.step for (c,) in chosen), run.draw))
        return found or _why_none(alone, target, by, f"{which} lacks the sources' validation or the target's accuracy")

    return _best(runs, target, steps)


RULES: dict[str, Rule] = {
    "training": training_domains,
    "leave-one-out": leave_one_out,
    "oracle": oracle,
    "late": second_half_mean,
    "last": last_step,
}
TITLES = {
    "training": "training-domain validation",
    "leave-one-out": "leave-one-domain-out cross-validation",
    "oracle": "ORACLE: selected on the target itself",
    "late": "second-half mean: over the evaluations in the second half of training, none selected",
    "last": "last step: none selected",
}


def _best(
    runs: Iterable[RunResult], target: str, steps: Callable[[list[RunResult], list[RunResult]], list[Choice] | str]
) -> Choice | str:
    """The best step of each draw, then the best draw."""
    draws: dict[int, tuple[list[RunResult], list[RunResult]]] = defaultdict(lambda: ([], []))
    unfinished = []
    for run in sorted(runs, key=lambda each: each.id):  # the order they are found in decides nothing
        if target in run.targets and len(run.targets) <= 2:
            if run.finished:
                draws[run.draw][len(run.targets) - 1].append(run)
            elif len(run.targets) == 1:
                unfinished.append(run.why)
    choices, reasons = [], []
    for _, (alone, pairs) in sorted(draws.items()):
        found = steps(alone, pairs) if alone else "only pair runs"
        if isinstance(found, str):
            reasons.append(found)
            continue
        choices.append(max(found, key=_rank))  # the first of equal ones
    best = max(reversed(choices), key=_rank, default=None)  # the largest of equal draws
    if best is None:
        return "; ".join(dict.fromkeys([*sorted(unfinished), *reasons])) or RunStatus.NOT_STARTED.value
    if math.isnan(best.validation):
        return "all NaN"
    return best


def _rank(choice: Choice) -> float:
    return -math.inf if math.isnan(choice.validation) else choice.validation


def _validation(run: RunResult, record: Record, target: str, by: str | None) -> float | None:
    """What a record of a run that holds one target out is selected by."""
    return selection_value(record, [name for name in run.domains if name != target], by or _selected_by(run))


def _selected_by(run: RunResult) -> str:
    return str(run.conditions.get("select_by", ACCURACY))


def _why_none(alone: Sequence[RunResult], target: str, by: str | None, otherwise: str = "") -> str:
    """Why no record of these runs, of which there is one at least, can be selected."""
    if all(run.conditions.get("holdout") == 0 for run in alone):
        return "trained on all images of the sources (holdout=0): nothing validates it"
    if by in (None, ACCURACY, WORST) or not any(_accuracy(each, target, "in") is not None for each in alone[0].records):
        return otherwise or missing_figures(ACCURACY)
    return missing_figures(str(by))


def _mean_of(values: Sequence[float | None]) -> float | None:
    return None if None in values or not values else mean(cast(Sequence[float], values))


def _choice(run: RunResult, record: Record, target: str, validation: float | None) -> list[Choice]:
    """Nothing where the record lacks a number that the rule needs."""
    reported = _accuracy(record, target, "in")
    if reported is None or validation is None:
        return []
    return [Choice(reported, validation, record["step"], run.draw)]


def _accuracy(record: Record, domain: str, split: str) -> float | None:
    splits = figures_of(record).get(domain)
    found = splits.get(split) if splits else None
    return None if found is None else float(found)

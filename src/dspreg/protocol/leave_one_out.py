"""All runs of a sweep, in DomainBed's order: leave one domain out, for every trial and every random draw."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from dspreg.config.dataset_ref import DatasetRef
from dspreg.config.options import MOST, format_limit, reason_against
from dspreg.config.trained_part import files_of
from dspreg.errors import ConfigError
from dspreg.io.text import did_you_mean, shorten
from dspreg.runs.run import Run
from dspreg.specs import shortest_spec

ONLY = ("training",)


def leave_one_out(
    datasets: Mapping[str, Sequence[str]],
    algorithms: Sequence[str],
    *,
    trials: int = 3,
    draws: int = 20,
    targets: Sequence[str] | None = None,
    only: str | None = None,
    same_draws: bool = False,
    options: Mapping[str, Any] | None = None,
    name: str | None = None,
) -> Iterator[Run]:
    """Every domain held out in turn, and for leave-one-domain-out selection every pair of domains.

    The order is that of DomainBed: trials, data sets, algorithms, domains held out, draws.

    Args:
        datasets: What stands after `--dataset`, and the domains of each in its own order: `{"PACS": PACS.domains}`.
        algorithms: Specs.
        trials: Number of them, from 0.
        draws: Number of configurations, the defaults (draw 0) among them.
        targets: Names of the domains to be held out; all unless given. Of pairs, those with one of them.
        only: `"training"` leaves out the pairs, which only leave-one-domain-out selection needs.
        same_draws: Draw n is the same in all trials. DomainBed draws anew in each.
        options: Further settings of all runs, `protocol` too.
        name: Of a `folder:` or `index:` data set.
    """
    _check_numbers(trials, draws, only)
    further = dict(options or {})
    protocol = further.pop("protocol", "domainbed")
    if same_draws:
        further["same_draws"] = True
    held_out = {data: list(_chosen(data, domains, targets, only)) for data, domains in datasets.items()}
    _check_targets(datasets, targets)
    names = {data: name if DatasetRef.parse(data).is_path else None for data in datasets}
    for trial in range(trials):
        for data in datasets:
            for algorithm in algorithms:
                for each in held_out[data]:
                    for draw in range(draws):
                        yield Run(
                            dataset=data, targets=each, algorithm=algorithm, protocol=protocol,
                            trial=trial, draw=draw, options=further, name=names[data],
                        )  # fmt: skip


def count_runs(
    datasets: Mapping[str, Sequence[str]],
    algorithms: Sequence[str],
    *,
    trials: int = 3,
    draws: int = 20,
    targets: Sequence[str] | None = None,
    only: str | None = None,
) -> dict[tuple[str, str], int]:
    """How many runs `leave_one_out` makes of each data set and algorithm, each run once, without making them.

    Returns:
        (data set, shortest spec) → runs. Of arguments that `leave_one_out` refuses, the same error.
    """
    _check_numbers(trials, draws, only)
    for data, domains in datasets.items():
        _check_domains(data, domains, only)
    _check_targets(datasets, targets)
    each = trials * draws
    specs = dict.fromkeys(map(shortest_spec, algorithms))
    return {
        (data, spec): each * _count_target_sets(domains, targets, only)
        for data, domains in datasets.items()
        for spec in specs
    }


def _count_target_sets(domains: Sequence[str], targets: Sequence[str] | None, only: str | None) -> int:
    chosen = len(domains) if targets is None else len(set(targets) & set(domains))
    pairs = 0 if only == "training" else chosen * (len(domains) - chosen) + chosen * (chosen - 1) // 2
    return chosen + pairs


def target_sets(domains: Sequence[str], pairs: bool = True) -> Iterator[tuple[str, ...]]:
    """Each domain alone, followed by its pairs with later ones: (a), (a, b), (a, c), (b), (b, c), (c)."""
    for i, first in enumerate(domains):
        yield (first,)
        if pairs:
            yield from ((first, second) for second in domains[i + 1 :])


def _chosen(
    data: str, domains: Sequence[str], targets: Sequence[str] | None, only: str | None
) -> Iterator[tuple[str, ...]]:
    _check_domains(data, domains, only)
    for each in target_sets(domains, pairs=only != "training"):
        if targets is None or set(targets) & set(each):
            yield each


def _check_numbers(trials: int, draws: int, only: str | None) -> None:
    if only is not None and only not in ONLY:
        raise ConfigError(f"only={only!r}; wanted 'training', or nothing for the pairs of leave-one-out, too")
    for name, number in (("trials", trials), ("draws", draws)):
        if type(number) is not int or not 1 <= number <= MOST[name][0]:
            raise ConfigError(
                f"{name}={shorten(number)}; wanted a whole number at least 1 (draw 0 has the default options) and at "
                f"most {format_limit(MOST[name][0])}{reason_against(name, number)}"
            )


def _check_domains(data: str, domains: Sequence[str], only: str | None) -> None:
    least = 2 if only == "training" else 3
    if len(domains) < least:
        way = ". Add only: training, which needs two" if len(domains) == 2 else ""
        raise ConfigError(
            f"{data} has {len(domains)} domain{'s' * (len(domains) > 1)} ({', '.join(domains)}); "
            f"holding out {least - 1} of them leaves none to train on{way}"
        )


def _check_targets(datasets: Mapping[str, Sequence[str]], targets: Sequence[str] | None) -> None:
    for target in targets or ():
        known = [name for domains in datasets.values() for name in domains]
        if target not in known:
            raise ConfigError(f"target {target!r} is a domain of none of {', '.join(datasets)}."
                              f"{did_you_mean(target, known)} Known: {', '.join(known)}")  # fmt: skip
    for data, domains in datasets.items():
        if targets is not None and not set(targets) & set(domains):
            raise ConfigError(f"none of the targets {', '.join(targets)} is a domain of {data}: {', '.join(domains)}")


def distinct(runs: Iterable[Run]) -> list[Run]:
    """Every run once, in the order of their first mention.

    Raises:
        ConfigError: Two runs that differ only in where their files lie, which no id tells from each other.
    """
    found: dict[str, Run] = {}
    for run in runs:
        there = found.setdefault(run.id, run)
        files, others = ((each.dataset, *files_of(each.options).values()) for each in (run, there))
        if files != others:
            raise ConfigError(
                f"two runs can't be told from each other, {files} and {others}: no id depends on where files lie. "
                f"Give data sets different names, and different weights, heads or profiles a store each"
            )
    return list(found.values())

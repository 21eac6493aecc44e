"""Averages of the weights of finished runs, each a run of its own: model soups, DiWA, WiSE-FT.

    average_runs          the mean of several runs, all of them or those that source validation accepts
    interpolate_to_start  between what a run started from and what it was trained to

The folder that is written is read by everything that reads a run. Its run.json names the members with the SHA-256 of
their models; records.jsonl has one line per candidate that was recorded, numbered so that the last is the last step of
the members. All is computed before the first file is written, and result.json comes last: a soup that was killed is
unfinished, and the same command finishes it with the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from dspreg.config.train_config import Execution
from dspreg.errors import ConfigError
from dspreg.inference.soup_candidates import Candidates
from dspreg.inference.soup_folder import Candidate, Plan, write_soup
from dspreg.inference.soup_members import (
    average_tensors,
    common_network,
    interpolate_tensors,
    read_member,
    require_alike,
    tensors_at_start,
)

Progress = Callable[[int, int], None]


def average_runs(
    runs: Sequence[str | Path],
    out: str | Path,
    *,
    greedy: bool = False,
    which: str = "selected",
    dataset: str | None = None,
    root: str | None = None,
    name: str | None = None,
    execution: Execution | None = None,
    progress: Progress | None = None,
    trust: Sequence[str] = (),
) -> dict[str, Any]:
    """Write a run whose weights are the mean of those of finished runs; returns the contents of its result.json.

        dspreg.average_runs(["runs/a", "runs/b", "runs/c"], "runs/soup", greedy=True)

    Members are runs on the same images with the same network; they may differ in what search draws, and in their
    method. Where they are of several trials, and held out different images, only a uniform average is possible; it is
    scored on the images that all of them held out. The target decides nothing.

    Args:
        runs: The folders of the members.
        out: The folder to write.
        greedy: Take members in the order of their source-validation accuracy, and keep each that does not lower that of
            the average (Wortsman et al., ICML 2022; Ramé et al., NeurIPS 2022). Otherwise all count.
        which: Which model of every member: `"selected"` or `"last"`, or an evaluated step, as in `load`.
        dataset: As in `--dataset`; the first member's own if it is left out.
        root: Of `dataset`, as in `--root`.
        name: Of `dataset`, as in `--name`.
        execution: Device, threads and processes that read images.
        progress: Called with the number of candidates scored, and the most there can be.
        trust: Modules of methods and data sets of your own, as in `load`.

    Raises:
        ConfigError: The runs are not alike, or one is not finished.
        DataError: The data set has other images by now.
    """
    if not runs:
        raise ConfigError("no runs are given to average")
    members = [read_member(run, which, trust) for run in runs]
    require_alike(members, one_split=greedy)
    how, tensors = common_network(members)
    kind = "greedy" if greedy else "uniform"
    total = 2 * len(members) if greedy else 1
    plan = Plan(kind, members, how, {}, execution or Execution(), dataset, root, name, trust)

    def make(candidates: Candidates, step: int) -> tuple[list[Candidate], dict[str, Any]]:
        if greedy:
            chosen, notes = choose_greedily(tensors, candidates, step, Counter(progress, total))
        else:
            chosen, notes = list(range(len(members))), [{} for _ in members]
        mean = average(tensors, chosen, candidates)
        return [Candidate(mean, {"members": len(chosen)})], {
            "members": [{**note, "accepted": i in chosen} for i, note in enumerate(notes)]
        }

    return write_soup(plan, out, make, records=1)


def interpolate_to_start(
    run: str | Path,
    out: str | Path,
    alphas: Sequence[float] = (0.5,),
    *,
    which: str = "selected",
    weights: str | None = None,
    dataset: str | None = None,
    root: str | None = None,
    name: str | None = None,
    execution: Execution | None = None,
    progress: Progress | None = None,
    trust: Sequence[str] = (),
) -> dict[str, Any]:
    """Write a run whose weights are between those a run started from and those it was trained to.

        θ = (1 − alpha) · θ_start + alpha · θ_trained

    as WiSE-FT has it (Wortsman et al., CVPR 2022): alpha = 1 is the run, alpha = 0 its start. Of several alphas, the
    one with the best source validation is selected, and all models are kept. The start is made again to the bit, from
    the run's keys and the weights that it names. Its classifier is random, unless the weights have one.

    Args:
        run: The folder of a finished run.
        out: The folder to write.
        alphas: From 0 to 1.
        weights: The file of weights that the run started from, if it is elsewhere by now.
        which, dataset, root, name, execution, progress, trust: As in `average_runs`.

    Raises:
        IntegrityError: The weights are not those that the run started from.
    """
    if not alphas:
        raise ConfigError("no alpha is given; give at least one number from 0 to 1")
    for alpha in alphas:
        if not 0 <= alpha <= 1:
            raise ConfigError(f"alpha={alpha}; wanted a number from 0 (the start) to 1 (the run)")
    if len(set(alphas)) < len(alphas):
        raise ConfigError(f"the same alpha is given twice: {', '.join(f'{a:g}' for a in alphas)}")
    member = read_member(run, which, trust)
    start = tensors_at_start(member, weights, trust)
    count = Counter(progress, len(alphas))
    about = {"alphas": [float(alpha) for alpha in alphas]}
    plan = Plan("toward start", [member], dict(member.how), about, execution or Execution(), dataset, root, name, trust)

    def make(candidates: Candidates, step: int) -> tuple[list[Candidate], dict[str, Any]]:  # noqa: ARG001
        made = []
        for alpha in alphas:
            mixed = interpolate_tensors(start, member.tensors, alpha)
            if 0 < alpha < 1:  # at its ends the statistics of batch norm are those there
                mixed = candidates.prepare(mixed)
            made.append(Candidate(mixed, {"alpha": float(alpha)}))
            count()
        return made, {"members": [{"accepted": True}]}

    return write_soup(plan, out, make, records=len(alphas))


def choose_greedily(
    tensors: Sequence[Mapping[str, Tensor]], candidates: Candidates, step: int, count: Callable[[], None]
) -> tuple[list[int], list[dict[str, Any]]]:
    """Which members are averaged, the best first; and of each its validation, and that of the average with it."""
    alone = []
    for each in tensors:
        alone.append(candidates.validation(each, step))
        count()
    order = sorted(range(len(tensors)), key=lambda i: -alone[i])
    chosen, best = order[:1], alone[order[0]]
    notes: list[dict[str, Any]] = [{"validation": value} for value in alone]
    notes[order[0]]["average"] = best
    for i in order[1:]:
        value = candidates.validation(average(tensors, [*chosen, i], candidates), step)
        count()
        notes[i]["average"] = value
        if value >= best:
            chosen, best = [*chosen, i], value
    return chosen, notes


def average(
    tensors: Sequence[Mapping[str, Tensor]], chosen: Sequence[int], candidates: Candidates
) -> Mapping[str, Tensor]:
    """The mean of these members, ready to be scored and saved; one alone stays as it is."""
    mean = average_tensors([tensors[i] for i in chosen])
    return candidates.prepare(mean) if len(chosen) > 1 else mean


class Counter:
    """Calls `progress` with a number that goes up."""

    def __init__(self, progress: Progress | None, total: int):
        self.progress, self.total, self.done = progress, total, 0

    def __call__(self) -> None:
        self.done += 1
        if self.progress is not None:
            self.progress(self.done, self.total)

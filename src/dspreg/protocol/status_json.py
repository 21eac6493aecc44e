"""The status of a store for programs: of `dspreg status --json`, and of the page of `dspreg watch`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from dspreg.protocol.run_times import StoreTimeLeft
from dspreg.runs.leases import LeaseInfo
from dspreg.runs.process_id import machine_and_pid
from dspreg.runs.status import SUMMARIES, StoreStatus, group_of


def status_json(found: StoreStatus, left: StoreTimeLeft | None = None) -> dict[str, Any]:
    """For programs: counts, every run's state, and details of the runs that are in training or failed."""
    groups = summaries_by_group(found)
    return {
        "all": count_summaries(found.summaries.values()),
        "groups": [{"dataset": d, "algorithm": a, **count_summaries(some)} for (d, a), some in groups.items()],
        "runs": [{"id": run, "state": found.summaries[run], **entry} for run, entry in found.runs.items()],
        "being trained": [_lease_json(run, each, found.states[run].steps) for run, each in found.leases.items()],
        "failed": [{"id": run, "reason": s.reason, "attempts": s.attempts, "state": found.summaries[run]}
                   for run, s in found.failures.items()],
        "time left": left and _time_json(left),
    }  # fmt: skip


def _time_json(left: StoreTimeLeft) -> dict[str, Any]:
    unknown = [{"dataset": d, "algorithm": a, "runs": count} for (d, a), count in left.unknown.items()]
    seconds = None if left.seconds is None else round(left.seconds, 1)
    return {"seconds": seconds, "runs": left.left, "at a time": left.jobs, "not counted": unknown}


def summaries_by_group(found: StoreStatus) -> Mapping[tuple[str, str], list[str]]:
    """Of the runs of each data set and algorithm."""
    groups = defaultdict(list)
    for run, entry in found.runs.items():
        groups[group_of(entry)].append(found.summaries[run])
    return groups


def count_summaries(summaries: Iterable[str]) -> dict[str, int]:
    counts = Counter(summaries)
    return {"runs": counts.total(), **{summary: counts[summary] for summary in SUMMARIES}}


def _lease_json(run: str, each: LeaseInfo, steps: int | None) -> dict[str, Any]:
    machine, number = machine_and_pid(each.process)
    seconds = {"lease ends in": round(each.left, 1)}
    return {"id": run, "alive": each.alive, "step": each.step, "steps": steps, "machine": machine, "process": number,
            "seconds": seconds}  # fmt: skip

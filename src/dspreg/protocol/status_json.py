"""The status of a store for programs: of `dspreg status --json`, and of the page of `dspreg watch`."""

from __future__ import annotations

from typing import Any

from dspreg.protocol.run_times import StoreTimeLeft
from dspreg.runs.leases import LeaseInfo
from dspreg.runs.process_id import machine_and_pid
from dspreg.runs.status import StoreStatus


def status_json(found: StoreStatus, left: StoreTimeLeft | None = None) -> dict[str, Any]:
    """For programs: counts, every run's state, and details of the runs that are in training or failed."""
    return {
        "all": found.counts(),
        "groups": [{"dataset": d, "algorithm": a, **counts} for (d, a), counts in found.counts_by_group().items()],
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


def _lease_json(run: str, each: LeaseInfo, steps: int | None) -> dict[str, Any]:
    machine, number = machine_and_pid(each.process)
    seconds = {"lease ends in": round(each.left, 1)}
    return {"id": run, "alive": each.alive, "step": each.step, "steps": steps, "machine": machine, "process": number,
            "seconds": seconds}  # fmt: skip

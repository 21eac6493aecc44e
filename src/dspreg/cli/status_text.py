"""What `dspreg status` prints, for people and for programs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from dspreg.columns import aligned
from dspreg.names import shown
from dspreg.overview import STATES, Overview, group
from dspreg.runs.leases import LEASE_SECONDS, LeaseInfo
from dspreg.runs.process_id import machine_and_pid

LISTED = 20  # failures, where there is room for all lines
BAR = 12
NOTE = "finished: its result is there; sweep and report verify the files, status does not"
RENEWALS = "steps as of the last heartbeat, twice a minute"


def status_text(found: Overview, attempts: int, height: int | None = None) -> str:
    """All of it, or what fits into so many lines: then each part is cut, and says how much is missing."""
    if not found.runs:
        return "nothing is planned here yet"
    head, *rows, total = aligned(list(_rows(found)), 2)
    held, failed = list(found.held), _failed(found)
    room = len(rows), len(held), LISTED
    if height is not None:
        room = _rooms(height, len(rows), len(held), len(failed))
    lines = [head, *_cut(rows, room[0], lambda some: some), total, NOTE]
    if held:
        lines += ["", "being trained:", *_cut(held, room[1], lambda some: _running(found, some)), RENEWALS]
    if failed:
        lines += ["", "failed:", *_cut(failed, room[2], lambda some: _reasons(found, attempts, some))]
    return "\n".join(lines)


def _rooms(height: int, rows: int, held: int, failed: int) -> tuple[int, int, int]:
    """Lines for each part: what is being trained matters most, and all have one."""
    spare = height - 3 - 1 - (4 if held else 0) - (3 if failed else 0)  # headings, and a line that says what is missing
    some = max(1, min(held, spare // 2))
    few = max(1, min(failed, LISTED, (spare - some) // 2))
    return max(1, min(rows, spare - some * bool(held) - few * bool(failed))), some, few


def status_json(found: Overview) -> dict[str, Any]:
    """For programs: counts, every run's state, and what is known of those that are being trained or failed."""
    parts = _parts(found)
    return {
        "all": _counted(found.states.values()),
        "groups": [{"dataset": d, "algorithm": a, **_counted(states)} for (d, a), states in parts.items()],
        "runs": [{"id": run, "state": found.states[run], **value} for run, value in found.runs.items()],
        "being trained": [_held(run, each, found.steps.get(run)) for run, each in found.held.items()],
        "failed": [{"id": run, "reason": s.reason, "attempts": s.attempts, "state": found.states[run]}
                   for run, s in found.failures.items()],
    }  # fmt: skip


def _parts(found: Overview) -> Mapping[tuple[str, str], list[str]]:
    """The states of the runs of each data set and algorithm."""
    parts = defaultdict(list)
    for run, value in found.runs.items():
        parts[group(value)].append(found.states[run])
    return parts


def _counted(states: Iterable[str]) -> dict[str, int]:
    counts = Counter(states)
    return {"runs": counts.total(), **{state: counts[state] for state in STATES}}


def _rows(found: Overview) -> Iterator[Sequence[str]]:
    yield "data set", "algorithm", "runs", *STATES
    for (data, algorithm), states in _parts(found).items():
        yield shown(data), shown(algorithm), *(f"{n:,}" for n in _counted(states).values())
    yield "all", "", *(f"{n:,}" for n in _counted(found.states.values()).values())


def _running(found: Overview, runs: Sequence[str]) -> Iterator[str]:
    rows = []
    for run in runs:
        each, steps = found.held[run], found.steps.get(run)
        begun = (f"{each.step:,} of {steps:,}", _bar(each.step / steps)) if steps else ("starting", "")
        rows.append((run, *begun, _since(each), _who(each)))
    for run, line in zip(runs, aligned(rows), strict=True):
        yield f"{line}  {shown(str(found.run(run)))}"


def _since(each: LeaseInfo) -> str:
    if each.left <= 0:
        return "no progress, its lease is over"
    return f"progress {max(0.0, LEASE_SECONDS - each.left):.0f} s ago" if each.alive else "its process is gone"


def _who(each: LeaseInfo) -> str:
    machine, number = machine_and_pid(each.process)
    return shown(machine) if number is None else f"{shown(machine)}, process {number}"


def _held(run: str, each: LeaseInfo, steps: int | None) -> dict[str, Any]:
    machine, number = machine_and_pid(each.process)
    seconds = {"lease ends in": round(each.left, 1)}
    return {"id": run, "alive": each.alive, "step": each.step, "steps": steps, "machine": machine, "process": number,
            "seconds": seconds}  # fmt: skip


def _failed(found: Overview) -> list[str]:
    """Those that nobody tries again first."""
    return sorted(found.failures, key=lambda run: found.states[run] != "failed")


def _reasons(found: Overview, attempts: int, runs: Sequence[str]) -> Iterator[str]:
    again = {"running": "; being tried again", "waiting": "; to be tried again"}
    for run in runs:
        failure = found.failures[run]
        tried = f"attempt {failure.attempts} of {attempts}: " if failure.attempts else ""
        title = shown(str(found.run(run)))
        yield f"{run}  {title}: {tried}{shown(failure.reason)}{again.get(found.states[run], '')}"


def _bar(share: float) -> str:
    full = round(BAR * min(1.0, max(0.0, share)))
    return "█" * full + "░" * (BAR - full)


def _cut(items: Sequence[str], room: int, lines: Callable[[Sequence[str]], Iterable[str]]) -> list[str]:
    """The lines of the first items, and how many more there are."""
    more = [f"and {len(items) - room:,} more"] if len(items) > room else []
    return [*lines(items[:room]), *more]

"""The output of `dspreg status` as text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from dspreg.io.text import align_columns, escape_terminal
from dspreg.protocol.run_times import StoreTimeLeft
from dspreg.runs.leases import LEASE_SECONDS, LeaseInfo
from dspreg.runs.process_id import machine_and_pid
from dspreg.runs.status import SUMMARIES, StoreStatus

LISTED = 20  # failures, where there is room for all lines
BAR = 12
NOTE = "finished: its result is there; sweep and report verify the files, status does not"
RENEWALS = "steps as of the last heartbeat, twice a minute"


def status_text(found: StoreStatus, height: int | None = None, left: StoreTimeLeft | None = None) -> str:
    """The whole status, or what fits into `height` lines: then each part is cut, with the number of missing lines.

    Args:
        found: All runs.
        height: Of a terminal.
        left: When the last run will have ended.
    """
    if not found.runs:
        return "nothing is planned here yet"
    head, *rows, total = align_columns(list(_rows(found)), 2)
    held, failed = list(found.leases), _sort_failures(found)
    room = len(rows), len(held), LISTED
    if height is not None:
        room = _rooms(height, len(rows), len(held), len(failed))
    lines = [head, *_cut(rows, room[0], lambda some: some), total, NOTE]
    if left is not None and left.left:
        lines.append(escape_terminal(str(left)))
    if held:
        lines += ["", "being trained:", *_cut(held, room[1], lambda some: _running(found, some)), RENEWALS]
    if failed:
        lines += ["", "failed:", *_cut(failed, room[2], lambda some: _reasons(found, some))]
    return "\n".join(lines)


def _rooms(height: int, rows: int, held: int, failed: int) -> tuple[int, int, int]:
    """Lines for each part: at least one, and most for the runs in training."""
    spare = height - 3 - 2 - (4 if held else 0) - (3 if failed else 0)  # headings, and a line for what is missing
    some = max(1, min(held, spare // 2))
    few = max(1, min(failed, LISTED, (spare - some) // 2))
    return max(1, min(rows, spare - some * bool(held) - few * bool(failed))), some, few


def _rows(found: StoreStatus) -> Iterator[Sequence[str]]:
    yield "data set", "algorithm", "runs", *SUMMARIES
    for (data, algorithm), counts in found.counts_by_group().items():
        yield escape_terminal(data), escape_terminal(algorithm), *(f"{n:,}" for n in counts.values())
    yield "all", "", *(f"{n:,}" for n in found.counts().values())


def _running(found: StoreStatus, runs: Sequence[str]) -> Iterator[str]:
    rows, leases = [], found.leases
    for run in runs:
        each, steps = leases[run], found.states[run].steps
        begun = (f"{each.step:,} of {steps:,}", _bar(each.step / steps)) if steps else ("starting", "")
        rows.append((run, *begun, _last_progress(each), _process(each)))
    for run, line in zip(runs, align_columns(rows), strict=True):
        yield f"{line}  {escape_terminal(str(found.run(run)))}"


def _last_progress(each: LeaseInfo) -> str:
    if each.left <= 0:
        return "no progress, its lease has expired"
    return f"progress {max(0.0, LEASE_SECONDS - each.left):.0f} s ago" if each.alive else "its process died"


def _process(each: LeaseInfo) -> str:
    machine, number = machine_and_pid(each.process)
    return escape_terminal(machine) if number is None else f"{escape_terminal(machine)}, process {number}"


def _sort_failures(found: StoreStatus) -> list[str]:
    """Failures that no sweep will retry come first."""
    return sorted(found.failures, key=lambda run: found.summaries[run] != "failed")


def _reasons(found: StoreStatus, runs: Sequence[str]) -> Iterator[str]:
    again = {"running": "; being tried again", "waiting": "; to be tried again"}
    for run in runs:
        state = found.states[run]
        tried = f"attempt {state.attempts} of {found.attempts}: " if state.attempts else ""
        title = escape_terminal(str(found.run(run)))
        yield f"{run}  {title}: {tried}{escape_terminal(state.reason)}{again.get(found.summaries[run], '')}"


def _bar(share: float) -> str:
    full = round(BAR * min(1.0, max(0.0, share)))
    return "█" * full + "░" * (BAR - full)


def _cut(items: Sequence[str], room: int, lines: Callable[[Sequence[str]], Iterable[str]]) -> list[str]:
    """The lines of the first items, and how many more there are."""
    more = [f"and {len(items) - room:,} more"] if len(items) > room else []
    return [*lines(items[:room]), *more]

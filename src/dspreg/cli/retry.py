"""`dspreg retry`: failed and cancelled runs get their attempts again."""

from __future__ import annotations

from typing import Any

from dspreg.cli.named_runs import find_runs
from dspreg.cli.parser import Commands, add_command
from dspreg.errors import ConfigError
from dspreg.io.text import escape_terminal
from dspreg.runs.status import ATTEMPTS, RunState, RunStatus, StoreStatus, describe_state, scan_store
from dspreg.runs.store import RunStore

EXAMPLES = """examples:
  dspreg retry runs/pacs                     all that failed or were cancelled
  dspreg retry runs/pacs 3f2a90c41b7d5e68    one of them; status and sweep print these ids
  dspreg retry runs/pacs 3f2a 77             the first letters will do

nothing is trained here: the next dspreg sweep resumes them from their last checkpoints. A run that diverged would
diverge again, with bitwise identical results; it is retried only if you name it."""

DIVERGED = "it diverged, and would again with bitwise identical results; name it to retry it nevertheless"


def add(commands: Commands) -> None:
    parser = add_command(commands, "retry", "give failed and cancelled runs their attempts again", EXAMPLES)
    parser.add_argument("store", metavar="STORE", help="the --store of a sweep")
    parser.add_argument("runs", metavar="RUN", nargs="*", help="plan ids, or the beginning of them (default: all)")
    parser.set_defaults(run=run)


def run(given: Any) -> int:
    store = RunStore(given.store)
    store.check()
    found = scan_store(store, ATTEMPTS)
    ids = find_runs(given.runs, found.runs, given.store)
    chosen = check_retryable(ids, found, store) if ids else choose_all(found, store)
    for each, state in chosen.items():
        store.retry(found.run(each))
        print(f"{title(each, found)}: to be tried again; it was {escape_terminal(describe_state(state))}")
    if chosen:
        print(f"{len(chosen):,} to be tried again; the next dspreg sweep takes them up")
    else:
        print("nothing to retry")
    return 0


def check_retryable(ids: list[str], found: StoreStatus, store: RunStore) -> dict[str, RunState]:
    """The named runs, if all of them can be retried."""
    states = {each: store.status(found.run(each)) for each in ids}
    refused = [
        f"  {title(each, found)}: {why}" for each, state in states.items()
        if (why := refusal(state, found.states[each].status is RunStatus.RUNNING, store.path / "runs" / each))
    ]  # fmt: skip
    if refused:
        raise ConfigError("\n".join(["nothing is retried, since these can't be:", *refused]))
    return states


def refusal(state: RunState, running: bool, folder: object) -> str:
    """Why a run can't be retried; empty where it can."""
    if state.status is RunStatus.FINISHED:
        return f"it is finished; to train it anew, remove {folder}"
    if state.status is RunStatus.DAMAGED:
        return f"it is damaged ({state.reason}); remove {folder}, and the next sweep trains it anew"
    if running:
        return "it is being trained"
    failed = state.status in (RunStatus.FAILED, RunStatus.CANCELLED)
    return "" if failed else "it did not fail; the next sweep takes it up anyway"


def choose_all(found: StoreStatus, store: RunStore) -> dict[str, RunState]:
    """Failed and cancelled runs; those for which another attempt makes no sense are reported and left out."""
    chosen = {}
    for each, scanned in found.states.items():
        if scanned.status not in (RunStatus.FAILED, RunStatus.CANCELLED, RunStatus.DAMAGED):
            continue
        state = store.status(found.run(each), weights=False)
        if state.status is RunStatus.DAMAGED:
            print(f"{title(each, found)}: left out: {refusal(state, False, store.path / 'runs' / each)}")
        elif state.status is RunStatus.FAILED and not state.attempts:
            print(f"{title(each, found)}: left out: {DIVERGED}")
        elif state.status in (RunStatus.FAILED, RunStatus.CANCELLED):
            chosen[each] = state
    return chosen


def title(run: str, found: StoreStatus) -> str:
    return f"{run}  {escape_terminal(str(found.run(run)))}"

"""`dspreg cancel`: stop runs, and keep sweeps from starting them again."""

from __future__ import annotations

from typing import Any

from dspreg.cli.named_runs import find_runs
from dspreg.cli.parser import Commands, add_command
from dspreg.errors import ConfigError
from dspreg.io.text import escape_terminal
from dspreg.runs.status import ATTEMPTS, RunStatus, scan_store
from dspreg.runs.store import RunStore

EXAMPLES = """examples:
  dspreg cancel runs/pacs 3f2a90c41b7d5e68    one run; status prints the ids of those that are being trained
  dspreg cancel runs/pacs 3f2a 77             the first letters will do
  dspreg cancel runs/pacs --all               all that are not finished

running sweeps stop training them within half a minute and continue with the others. Finished runs stay as they are.
Cancelled runs keep their files: dspreg retry and the next dspreg sweep resume them."""

KEPT = {
    RunStatus.FINISHED: "it is finished, and stays",
    RunStatus.FAILED: "it diverged; no sweep would try it again",
    RunStatus.CANCELLED: "it was cancelled before",
    RunStatus.DAMAGED: "it is damaged; no sweep would resume it",
}


def add(commands: Commands) -> None:
    parser = add_command(commands, "cancel", "stop runs, and keep sweeps from taking them up", EXAMPLES)
    parser.add_argument("store", metavar="STORE", help="the --store of a sweep")
    parser.add_argument("runs", metavar="RUN", nargs="*", help="plan ids, or the beginning of them")
    parser.add_argument("--all", action="store_true", help="all runs that are not finished")
    parser.set_defaults(run=run)


def run(given: Any) -> int:
    store = RunStore(given.store)
    store.check()
    if bool(given.runs) == given.all:
        raise ConfigError("which runs? Name them, or give --all for all that are not finished, and not both")
    found = scan_store(store, ATTEMPTS)
    chosen = list(found.runs) if given.all else find_runs(given.runs, found.runs, given.store)
    # running ones last: a worker that becomes free would start another one
    chosen.sort(key=lambda each: found.states[each].status is RunStatus.RUNNING)
    cancelled = running = 0
    leases = store.leases()
    try:
        for each in chosen:
            state = found.states[each]
            kept = state.status in KEPT and not state.attempts  # a diverged run has no attempts to count
            if kept and given.all:
                continue
            title = f"{each}  {escape_terminal(str(found.run(each)))}"
            if kept:
                print(f"{title}: {KEPT[state.status]}")
                continue
            with leases.revoking(each) as held:  # the worker writes nothing after the marker, nor over it
                if (store.folder(found.run(each)) / "result.json").exists():  # by now
                    print(f"{title}: {KEPT[RunStatus.FINISHED]}")
                    continue
                store.cancel(found.run(each))
            trained = held and (state.lease is None or state.lease.alive)
            cancelled, running = cancelled + 1, running + trained
            print(f"{title}: cancelled{', while it was being trained' if trained else ''}")
    finally:
        leases.close()
    were = "was being trained, and stops" if running == 1 else "were being trained, and stop"
    stop = f"; {running:,} of them {were} within half a minute" if running else ""
    print(f"{cancelled:,} cancelled{stop}. dspreg retry {given.store} takes them up again")
    return 0

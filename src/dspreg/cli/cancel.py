"""`dspreg cancel`: nobody is to work on these runs any more."""

from __future__ import annotations

from typing import Any

from dspreg.cli.named_runs import named
from dspreg.cli.parser import Commands, described
from dspreg.errors import ConfigError
from dspreg.launch.queue import ATTEMPTS
from dspreg.names import shown
from dspreg.overview import Looker
from dspreg.runs.store import RunStore

EXAMPLES = """examples:
  dspreg cancel runs/pacs 3f2a90c41b7d5e68    one run; status prints the ids of those that are being trained
  dspreg cancel runs/pacs 3f2a 77             the first letters will do
  dspreg cancel runs/pacs --all               all that are not finished

sweeps that are going on stop training them within half a minute and go on with the others. Finished runs stay as they
are, and what the others have so far is kept: dspreg retry and the next dspreg sweep go on with them."""

KEPT = {
    "finished": "it is finished, and stays",
    "failed": "it diverged; nobody would try it again",
    "cancelled": "it was cancelled before",
}


def add(commands: Commands) -> None:
    parser = described(commands, "cancel", "stop runs, and keep sweeps from taking them up", EXAMPLES)
    parser.add_argument("store", metavar="STORE", help="the --store of a sweep")
    parser.add_argument("runs", metavar="RUN", nargs="*", help="plan ids, or the beginning of them")
    parser.add_argument("--all", action="store_true", help="all runs that are not finished")
    parser.set_defaults(run=run)


def run(given: Any) -> int:
    store = RunStore(given.store)
    store.check()
    if bool(given.runs) == given.all:
        raise ConfigError("which runs? Name them, or give --all for all that are not finished, and not both")
    found = Looker(store, ATTEMPTS).look()
    chosen = list(found.runs) if given.all else named(given.runs, found.runs, given.store)
    chosen.sort(key=lambda each: found.states[each] == "running")  # last: a worker that is free takes up another
    cancelled = running = 0
    leases = store.leases()
    try:
        for each in chosen:
            state = found.states[each]
            kept = state in ("finished", "cancelled") or (state == "failed" and not found.failures[each].attempts)
            if kept and given.all:
                continue
            title = f"{each}  {shown(str(found.run(each)))}"
            if kept:
                print(f"{title}: {KEPT[state]}")
                continue
            with leases.revoking(each) as held:  # its holder writes nothing after the marker, nor over it
                if (store.folder(found.run(each)) / "result.json").exists():  # by now
                    print(f"{title}: {KEPT['finished']}")
                    continue
                store.cancel(found.run(each))
            trained = held and (each not in found.held or found.held[each].alive)
            cancelled, running = cancelled + 1, running + trained
            print(f"{title}: cancelled{', while it was being trained' if trained else ''}")
    finally:
        leases.close()
    were = "was being trained, and stops" if running == 1 else "were being trained, and stop"
    stop = f"; {running:,} of them {were} within half a minute" if running else ""
    print(f"{cancelled:,} cancelled{stop}. dspreg retry {given.store} takes them up again")
    return 0

"""`dspreg status`: the progress of a sweep."""

from __future__ import annotations

import json
import sys
import time
from contextlib import suppress
from typing import Any

from dspreg.cli.options import integer
from dspreg.cli.parser import Commands, add_command
from dspreg.cli.status_text import status_text
from dspreg.protocol.run_times import RunTimes, estimate_time_left
from dspreg.protocol.status_json import status_json
from dspreg.runs.archive import is_archive, open_store
from dspreg.runs.status import ATTEMPTS, StoreStatus, scan_store
from dspreg.runs.store import RunStore

EVERY = 2.0  # seconds between updates

EXAMPLES = """examples:
  dspreg status runs/pacs            on a terminal: updated until nothing is left to do; Ctrl-C leaves the sweep running
  dspreg status runs/pacs --once     the status now
  dspreg status runs/pacs --json     for programs, with the status of every run

it writes nothing and needs only permission to read the store. A run counts as finished when its result is there: sweep
and report verify the files, status does not. The time left is that of finished runs of the same data set and algorithm.
exit codes: 0; 5 if nothing is left to do and a run failed; 2 if STORE is not a store."""


def add(commands: Commands) -> None:
    parser = add_command(commands, "status", "show the status of the runs of a store", EXAMPLES)
    parser.add_argument("store", metavar="STORE", help="the --store of a sweep, or an archive of one, *.tar.xz")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--once", action="store_true", help="print the status once; the default without a terminal")
    how.add_argument("--json", action="store_true", help="print the status once, as JSON")
    says = f"how often a run may fail, as given to sweep (default: {ATTEMPTS})"
    parser.add_argument("--attempts", metavar="N", type=integer("attempts"), default=ATTEMPTS, help=says)
    parser.set_defaults(run=run)


def run(given: Any) -> int:
    with open_store(given.store) as folder:
        store = RunStore(folder)
        store.check()
        if given.json or given.once or is_archive(given.store) or not sys.stdout.isatty():
            found = scan_store(store, given.attempts)
            left = estimate_time_left(found, RunTimes(store))
            print(json.dumps(status_json(found, left), indent=1) if given.json else status_text(found, left=left))
        else:
            found = watch(store, given.attempts)
    return 5 if found.is_final and "failed" in found.summaries.values() else 0


def watch(store: RunStore, attempts: int) -> StoreStatus:
    """Update the terminal until nothing is left to do, or until Ctrl-C."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console, found, times = Console(), scan_store(store, attempts), RunTimes(store)
    with suppress(KeyboardInterrupt), Live(console=console, auto_refresh=False) as live:
        while True:
            text = status_text(found, console.height - 1, estimate_time_left(found, times))
            live.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True)
            if found.is_final or getattr(sys.stdout, "failure", None):  # nobody looks any more
                break
            time.sleep(EVERY)
            found = scan_store(store, attempts)
    return found

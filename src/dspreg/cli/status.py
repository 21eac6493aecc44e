"""`dspreg status`: how a sweep stands, now."""

from __future__ import annotations

import json
import sys
import time
from contextlib import suppress
from typing import Any

from dspreg.cli.options import natural
from dspreg.cli.parser import Commands, described
from dspreg.cli.status_text import status_json, status_text
from dspreg.launch.queue import ATTEMPTS
from dspreg.overview import Looker, Overview
from dspreg.runs.archive import is_archive, open_store
from dspreg.runs.store import RunStore

EVERY = 2.0  # seconds between looks

EXAMPLES = """examples:
  dspreg status runs/pacs            on a terminal, until all is settled; Ctrl-C leaves it, and the sweep goes on
  dspreg status runs/pacs --once     as it is now
  dspreg status runs/pacs --json     for programs, with the state of every run

it reads, writes nothing, and may be run by whoever may read the store. A run counts as finished when its result is
there: sweep and report verify the files, status does not.
exit codes: 0; 5 if nothing is left to do and something failed; 2 if STORE is none."""


def add(commands: Commands) -> None:
    parser = described(commands, "status", "show how the runs of a store stand", EXAMPLES)
    parser.add_argument("store", metavar="STORE", help="the --store of a sweep, or an archive of one, *.tar.xz")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--once", action="store_true", help="print it once, as where there is no terminal")
    how.add_argument("--json", action="store_true", help="print it once, for programs")
    says = f"how often a run may fail, as given to sweep (default: {ATTEMPTS})"
    parser.add_argument("--attempts", metavar="N", type=natural, default=ATTEMPTS, help=says)
    parser.set_defaults(run=run)


def run(given: Any) -> int:
    with open_store(given.store) as folder:
        store = RunStore(folder)
        store.check()
        looker = Looker(store, given.attempts)
        if given.json:
            found = looker.look()
            print(json.dumps(status_json(found), indent=1))
        elif given.once or is_archive(given.store) or not sys.stdout.isatty():
            found = looker.look()
            print(status_text(found, given.attempts))
        else:
            found = watched(looker, given.attempts)
    return 5 if found.settled and "failed" in found.states.values() else 0


def watched(looker: Looker, attempts: int) -> Overview:
    """Shown anew until nothing is left to do, or the user has seen enough."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console, found = Console(), looker.look()
    with suppress(KeyboardInterrupt), Live(console=console, auto_refresh=False) as live:
        while True:
            text = status_text(found, attempts, console.height - 1)
            live.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True)
            if found.settled:
                break
            time.sleep(EVERY)
            found = looker.look()
    return found

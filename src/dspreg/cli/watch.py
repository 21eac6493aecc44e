"""`dspreg watch`: a page of a running sweep."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from dspreg.cli.options import integer
from dspreg.cli.parser import Commands, add_command
from dspreg.runs.status import ATTEMPTS
from dspreg.runs.store import RunStore

EXAMPLES = """examples:
  dspreg watch runs/pacs               prints an address to open; Ctrl-C ends the page, and not the sweep
  dspreg watch runs/pacs --port 8123
  dspreg watch runs/pacs --attempts 5  as given to sweep

the page is for this machine alone, refreshes itself and changes nothing: reading the store is enough for it. From
another machine: ssh -L 8123:127.0.0.1:8123 HOST, and open the same address there."""


def add(commands: Commands) -> None:
    parser = add_command(commands, "watch", "show a running sweep as a page on this machine", EXAMPLES)
    parser.add_argument("store", metavar="STORE", help="the --store of a sweep")
    says = "of the page, 1024 to 65535 (default: any that is free)"
    parser.add_argument("--port", metavar="N", type=integer("port", 1024), default=0, help=says)
    says = f"how often a run may fail, as given to sweep (default: {ATTEMPTS})"
    parser.add_argument("--attempts", metavar="N", type=integer("attempts"), default=ATTEMPTS, help=says)
    parser.set_defaults(run=run)


def run(given: Any) -> int:
    from dspreg.watch.answer import StoreWatcher
    from dspreg.watch.server import WatchServer

    store = RunStore(given.store)
    store.check()
    with WatchServer(StoreWatcher(store, given.attempts), given.port) as server:
        print(f"{server.url}\nCtrl-C ends the page; the sweep goes on", flush=True)
        with suppress(KeyboardInterrupt):
            server.serve_forever()
    return 0

"""`dspreg import`: a sweep of DomainBed's as a store of runs."""

from __future__ import annotations

import sys
from typing import Any

from dspreg.cli.parser import Commands, add_command
from dspreg.io.text import escape_terminal, plural

SHOWN = 20  # jobs that are left out, by name

EXAMPLES = """examples:
  dspreg import DomainBed/sweep --store runs/from-domainbed
  dspreg report runs/from-domainbed --contrast "DomainBed(name='CORAL')" "DomainBed(name='ERM')"

the folder is the --output_dir of DomainBed's sweep. Finished jobs are read, others are named and left out. An imported
run has results and no model: it can be reported, not resumed or evaluated."""


def add(commands: Commands) -> None:
    parser = add_command(commands, "import", "read a finished sweep of DomainBed's into a store", EXAMPLES)
    parser.add_argument("sweep", metavar="SWEEP", help="the --output_dir of DomainBed's sweep")
    parser.add_argument("--store", metavar="DIR", required=True, help="a new folder, or a store of runs")
    parser.set_defaults(run=run)


def run(given: Any) -> int:
    from dspreg.domainbed.import_sweep import import_sweep

    found = import_sweep(given.sweep, given.store)
    for name, why in list(found.left_out.items())[:SHOWN]:
        print(f"left out: {escape_terminal(name)}: {escape_terminal(why)}", file=sys.stderr)
    if len(found.left_out) > SHOWN:
        print(f"left out: {len(found.left_out) - SHOWN:,} more", file=sys.stderr)
    print(f"{plural(len(found.runs), 'run')} in {escape_terminal(given.store)}; next: dspreg report {given.store}")
    return 0

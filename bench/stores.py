"""Seconds and memory of `dspreg report` and `dspreg status` for stores of 100 to 10,000 runs of 18 records.

    python bench/stores.py

Each is a process of its own on one core, so that its start counts; the files have just been written, so that no disk
does. `report` verifies every file but the weights of runs that are all finished. `status` looks at three stores: that
one; one in which a fifth of the runs wait, failed, were cancelled or are being trained; one in which all were
cancelled, so that there is a file to read for every run.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median

from clock import ProcessCost, measure_process
from many_runs import make, runs

SIZES, TRAINED = (100, 1_000, 10_000), 20
MIXED = ("finished",) * 8 + ("started", "failed") + ("finished",) * 8 + ("new", "cancelled")
STORES: dict[str, Callable[[int], str]] = {
    "all finished": lambda _: "finished",
    "most finished": lambda n: MIXED[n % len(MIXED)],
    "all cancelled": lambda _: "cancelled",
}
COMMANDS = {"all finished": ("report", "status"), "most finished": ("status",), "all cancelled": ("status",)}


def measure_command(command: str, store: Path) -> ProcessCost:
    """Of `dspreg status` or `dspreg report`, the start of Python included."""
    words = [sys.executable, "-m", "dspreg.cli", command, store]
    return measure_process(words, ends_with=(0, 5))  # 5: some runs failed, as they should


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, nargs="+", default=SIZES)
    parser.add_argument("--rounds", type=int, default=5, help="the median of so many is printed")
    given = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    print(f"{'runs':>7}  {'store':13}  {'command':7}  {'seconds':>7}  {'of the processor':>16}  {'MB':>5}")
    for count in given.runs:
        for name, state in STORES.items():
            with tempfile.TemporaryDirectory() as folder:
                planned = runs(count)
                store = make(Path(folder) / "store", planned, state)
                leases = store.leases()  # held while it is looked at
                started = [run.id for n, run in enumerate(planned) if state(n) == "started"]
                for _ in range(TRAINED):
                    leases.acquire(started)
                for command in COMMANDS[name]:
                    found = [measure_command(command, store.path) for _ in range(given.rounds)]
                    clock, processor, high = (median(each) for each in zip(*found, strict=True))
                    cost = f"{clock:>7.2f}  {processor:>16.2f}  {high:>5.0f}"
                    print(f"{count:>7,}  {name:13}  {command:7}  {cost}", flush=True)
                leases.close()


if __name__ == "__main__":
    main()

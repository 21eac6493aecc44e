"""Seconds of `dspreg status --once` for stores of 100 to 10,000 runs of 18 records: the whole process, on one core.

    python bench/status.py

Two stores of each size. In the first, four of five runs are finished, and the others wait, failed or were cancelled;
twenty are being trained. In the second all were cancelled, so that there is a file to read for every run. The files
have just been written, so no disk is waited for.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from many_runs import make, runs

SIZES, TIMES, TRAINED = (100, 1_000, 10_000), 5, 20
MIXED = ("finished",) * 8 + ("started", "failed") + ("finished",) * 8 + ("new", "cancelled")
STORES: dict[str, Callable[[int], str]] = {
    "most finished": lambda n: MIXED[n % len(MIXED)],
    "all cancelled": lambda _: "cancelled",
}


def timed(store: Path) -> tuple[float, float]:
    """Seconds on the clock and of the processor."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [sys.executable, "-m", "dspreg.cli", "status", str(store), "--once"]
    subprocess.run(command, check=False, stdout=subprocess.DEVNULL)
    took, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return took, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, nargs="+", default=SIZES)
    sizes = parser.parse_args().runs
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    print(f"{'runs':>7}  {'store':13}  {'seconds':>7}  {'of the processor':>16}")
    for count in sizes:
        for name, state in STORES.items():
            with tempfile.TemporaryDirectory() as folder:
                planned = runs(count)
                store = make(Path(folder) / "store", planned, state)
                claims = store.claims()  # held while it is looked at
                started = [run.id for n, run in enumerate(planned) if state(n) == "started"]
                for _ in range(TRAINED):
                    claims.claim(started)
                found = [timed(store.path) for _ in range(TIMES)]
                claims.close()
            clock, processor = (median(each) for each in zip(*found, strict=True))
            print(f"{count:>7,}  {name:13}  {clock:>7.2f}  {processor:>16.2f}", flush=True)


if __name__ == "__main__":
    main()

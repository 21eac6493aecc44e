"""Leases per second in sweeps of 100 to 1,000,000 runs: one atomic statement each, so the rate should not fall.

    python bench/leases.py

Two thousand leases in every sweep (all of the smallest, again and again), spread over its length: those before are
finished, as they are for a sweep that goes on. Each is acquired, renewed once and released. After every message of a
worker a sweep looks for runs of its own that stall; `looks` are these. Seconds are the process's own CPU time.
"""

from __future__ import annotations

import argparse
import hashlib
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median

from dspreg import Run
from dspreg.launch.queue import RunQueue
from dspreg.runs.leases import Leases
from dspreg.runs.store import RunStore

SIZES = (100, 1_000, 10_000, 100_000, 1_000_000)
LEASES, LOOKS, ROUNDS = 2_000, 20, 5


def rate(runs: Sequence[str], leases: Leases) -> float:
    """Leases per second, with all runs of the sweep in the table."""
    size, started = len(runs), time.process_time()
    for n in range(LEASES):
        lease = leases.acquire(runs[i] for i in range(n * size // LEASES, size))
        assert lease is not None
        leases.renew(lease, 1)
        leases.release(lease)
    return LEASES / (time.process_time() - started)


def rate_of_looks(folder: Path) -> float:
    """How often per second a sweep can ask whether the one run it has at work stalls."""
    planned = [Run(dataset="digits", targets=("print",), algorithm="ERM")]
    with RunQueue(planned, RunStore(folder)) as queue:
        assert queue.claim() is not None
        assert not queue.stalled()
        queue._patient_until = 0.0  # after a pause, such as the one before this, it lets messages come first
        started = time.process_time()
        for _ in range(LOOKS):
            assert not queue.stalled()
        return LOOKS / (time.process_time() - started)


def fill(runs: Iterable[str], leases: Leases) -> None:
    """Every run had a lease once before."""
    connection = leases._ours()
    connection.execute("BEGIN")
    row = "INSERT INTO claims VALUES (?, 1, NULL, ?, 0, 0, 0)"
    connection.executemany(row, ((run, leases.boot) for run in sorted(runs)))
    connection.execute("COMMIT")


def measure_rates(size: int) -> tuple[float, float, float, float]:
    """Leases per second in a sweep of this size: median, lowest and highest; and looks per second."""
    with tempfile.TemporaryDirectory() as folder:
        runs = [hashlib.sha256(b"%d" % n).hexdigest()[:16] for n in range(size)]  # ids are hashes: in no order
        leases = Leases(Path(folder, "claims.db"))
        fill(runs, leases)
        found = [rate(runs, leases) for _ in range(ROUNDS)]
        leases.close()
        return median(found), min(found), max(found), median(rate_of_looks(Path(folder)) for _ in range(ROUNDS))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, nargs="+", default=SIZES)
    print(f"{'runs':>9}  {'leases/s':>9}  {'lowest':>7}  {'highest':>7}  {'looks/s':>9}")
    for size in parser.parse_args().runs:
        usual, low, high, looks = measure_rates(size)
        print(f"{size:>9,}  {usual:>9,.0f}  {low:>7,.0f}  {high:>7,.0f}  {looks:>9,.0f}", flush=True)


if __name__ == "__main__":
    main()

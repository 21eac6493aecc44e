"""Leases per second in sweeps of 100 to 100,000 runs: one atomic statement each, so the rate should not fall.

    python bench/leases.py

Two thousand leases in every sweep (all of the smallest, again and again), spread over its length: those before are
finished, as they are for a sweep that goes on. Each is acquired, renewed once and released.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from statistics import median

from dspreg.runs.leases import Leases

SIZES = (100, 1_000, 10_000, 100_000)
LEASES, ROUNDS = 2_000, 5


def rate(size: int, leases: Leases) -> float:
    """Leases per second, with all runs of the sweep in the table."""
    runs = [f"{n:016x}" for n in range(size)]
    started = time.perf_counter()
    for n in range(LEASES):
        lease = leases.acquire(runs[i] for i in range(n * size // LEASES, size))
        assert lease is not None
        leases.renew(lease, 1)
        leases.release(lease)
    return LEASES / (time.perf_counter() - started)


def fill(size: int, leases: Leases) -> None:
    """Every run had a lease once before."""
    leases._do(
        "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < :size) "
        "INSERT INTO claims SELECT printf('%016x', i), 1, NULL, :boot, 0, 0, 0 FROM n",
        {"size": size, "boot": leases.boot},
    )


def main() -> None:
    print(f"{'runs':>9}  {'leases/s':>9}  {'lowest':>7}  {'highest':>7}")
    with tempfile.TemporaryDirectory() as folder:
        for size in SIZES:
            leases = Leases(Path(folder) / f"{size}.db")
            fill(size, leases)
            found = [rate(size, leases) for _ in range(ROUNDS)]
            print(f"{size:>9,}  {median(found):>9,.0f}  {min(found):>7,.0f}  {max(found):>7,.0f}")
            leases.close()


if __name__ == "__main__":
    main()

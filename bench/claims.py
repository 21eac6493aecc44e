"""Claims per second in sweeps of 100 to 100,000 runs: one atomic statement each, so the rate should not fall.

    python bench/claims.py

Two thousand claims in every sweep (all of the smallest, again and again), spread over its length: those before are
finished, as they are for a sweeper that goes on. Each is claimed, beaten once and released.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from statistics import median

from dspreg.runs.leases import Claims

SIZES = (100, 1_000, 10_000, 100_000)
CLAIMS, ROUNDS = 2_000, 5


def rate(size: int, claims: Claims) -> float:
    """Claims per second, with all runs of the sweep in the table."""
    runs = [f"{n:016x}" for n in range(size)]
    started = time.perf_counter()
    for n in range(CLAIMS):
        claim = claims.claim(runs[i] for i in range(n * size // CLAIMS, size))
        assert claim is not None
        claims.beat(claim, 1)
        claims.release(claim)
    return CLAIMS / (time.perf_counter() - started)


def fill(size: int, claims: Claims) -> None:
    """Every run was claimed once before."""
    claims._do(
        "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < :size) "
        "INSERT INTO claims SELECT printf('%016x', i), 1, NULL, :boot, 0, 0, 0 FROM n",
        {"size": size, "boot": claims.boot},
    )


def main() -> None:
    print(f"{'runs':>9}  {'claims/s':>9}  {'lowest':>7}  {'highest':>7}")
    with tempfile.TemporaryDirectory() as folder:
        for size in SIZES:
            claims = Claims(Path(folder) / f"{size}.db")
            fill(size, claims)
            found = [rate(size, claims) for _ in range(ROUNDS)]
            print(f"{size:>9,}  {median(found):>9,.0f}  {min(found):>7,.0f}  {max(found):>7,.0f}")
            claims.close()


if __name__ == "__main__":
    main()

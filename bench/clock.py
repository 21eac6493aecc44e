"""Times and memory of several ways to do one thing, set side by side in one run.

Sides alternate, round by round, on one thread; each round's ratio is to the first side of the same round, so that what
else the machine does falls on all sides. Times are the process's own CPU time.
"""

from __future__ import annotations

import gc
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import NamedTuple


@dataclass(frozen=True)
class Timing:
    """Of one side: seconds of every round, and the ratios to the first side in the same rounds."""

    seconds: list[float]
    ratios: list[float]

    @property
    def cells(self) -> list[str]:
        low, high = interval(self.ratios)
        return [
            f"{median(self.seconds):.3f}",
            f"{median(self.ratios):.3f}×",
            f"{low:.3f}–{high:.3f}",
            str(len(self.ratios)),
        ]


def alternate(
    sides: Mapping[str, Callable[[], object]], rounds: int, few: Mapping[str, int] | None = None
) -> dict[str, Timing]:
    """Each side once to warm up, then `rounds` times in turn (fewer for those in `few`)."""
    first = next(iter(sides))
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    ratios: dict[str, list[float]] = {name: [] for name in sides}
    for side in sides.values():
        side()
    for r in range(rounds):
        for name, side in sides.items():
            if r < (few or {}).get(name, rounds):
                gc.collect()
                started = time.process_time()
                side()
                seconds[name].append(time.process_time() - started)
        for name in sides:
            if len(seconds[name]) == r + 1:
                ratios[name].append(seconds[name][r] / seconds[first][r])
    return {name: Timing(seconds[name], ratios[name]) for name in sides}


def interval(values: list[float]) -> tuple[float, float]:
    """Of the median, 95 %, by order statistics; the extremes where there are too few values for it."""
    ordered, n = sorted(values), len(values)
    reach = max(0, math.floor((n - 1.96 * math.sqrt(n)) / 2)) if n > 5 else 0
    return ordered[reach], ordered[n - 1 - reach]


class ProcessCost(NamedTuple):
    """Of one process from its start to its end."""

    clock: float  # seconds
    processor: float  # seconds
    megabytes: float  # at the peak


def measure_process(words: Sequence[str | Path], ends_with: Sequence[int] = (0,)) -> ProcessCost:
    """Run a command, without its output."""
    started = time.perf_counter()
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in ends_with:
        raise SystemExit(f"{' '.join(map(str, words))} ended with exit code {process.returncode}")
    return ProcessCost(time.perf_counter() - started, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)


def peak(script: Path, *arguments: str) -> tuple[float, float]:
    """Gigabytes at the peak, and before the work began, of a fresh process that ends by calling `report_peak`."""
    done = subprocess.run([sys.executable, script, *arguments], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    return found["peak"], found["before"]


def report_peak(work: Callable[[], object]) -> None:
    """Print the peak of `work` for the process that asked."""
    gc.collect()
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
    work()
    print(json.dumps({"before": before, "peak": _status("VmHWM")}))


def _status(field: str) -> float:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field + ":"))
    return int(line.split()[1]) / 2**20

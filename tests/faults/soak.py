"""Thousands of short runs in one store, read all the time: does anything grow that should not?

    python tests/faults/soak.py --runs 3000 --picture build/soak.png

One process trains run after run, as `dspreg sweep` does; another calls `status` and `report` on the same store in
turns, without a pause. Memory and descriptors of both, the bytes on disk and the seconds of each read are sampled as
the store fills, and drawn. Flat means: no descriptor more than in the first fifth; memory of both no more than 5 %
above what it was at half time, but for what the runs themselves need (2 kB each); as many bytes per run at the end as
at half time; reads that take no longer per run. Every read must succeed, and the number of finished runs never falls.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import time
import warnings
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

from dspreg.cli import main as command_line
from dspreg.protocol.leave_one_out import leave_one_out
from dspreg.runs.store import RunStore
from faults import small
from faults.every_operation import Sweep
from faults.results import Part
from helpers import tiny
from helpers.sweeps import alone

PER_RUN = 2048  # bytes of memory: the process that sweeps keeps the result of each run, the one that reads its plan
GROWTH, SLOWER = 0.05, 2.0  # memory; seconds of a read per run, on a machine that others use too

Sample = dict[str, float]


def memory(process: int) -> float:
    """Resident, in bytes.

    Raises:
        ProcessLookupError: It has ended, and is only waited for.
    """
    pages = float(Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()[1])
    if not pages:
        raise ProcessLookupError(process)
    return pages * os.sysconf("SC_PAGE_SIZE")


def descriptors(process: int) -> int:
    return len(os.listdir(f"/proc/{process}/fd"))


def bytes_below(folder: Path) -> float:
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # it was half-made
                total += os.stat(os.path.join(place, name)).st_size
    return float(total)


def read(*words: str) -> tuple[float, str]:
    """Seconds, and what a command printed.

    Raises:
        AssertionError: It failed.
    """
    printed, said = io.StringIO(), io.StringIO()
    started = time.perf_counter()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(said):
        code = command_line(list(words))
    assert code == 0, f"{' '.join(words)} ended with {code}: {said.getvalue()[-300:]}"
    return time.perf_counter() - started, printed.getvalue()


def soak(folder: Path, runs: int) -> list[Sample]:
    """Sweep in another process, and read until it is done."""
    domains = {f"folder:{small.make_images(folder)}": tiny.DOMAINS[:3]}
    trials = -(-runs // 3)
    options = Sweep.options | {"evaluate_every": 2}
    planned = list(leave_one_out(domains, ["ERM"], trials=trials, draws=1, only="training", options=options))[:runs]
    store = RunStore(folder / "store")
    store.make()
    store.plan(planned)
    (folder / "first").mkdir()
    Sweep(folder / "first").act(folder / "first")  # what is loaded late
    child = os.fork()
    if child == 0:
        code = 1
        try:
            warnings.simplefilter("ignore")
            alone(planned, store, tiny.execution(save_every=None, keep="none"))
            code = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(code)
    samples: list[Sample] = []
    try:
        while os.waitpid(child, os.WNOHANG) == (0, 0):
            if (store.path / "claims.db").exists() and list_finished(store):
                with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
                    samples.append(take_sample(store, child))
    except BaseException:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    assert list_finished(store) == len(planned), "the sweep ended early"
    return samples


def list_finished(store: RunStore) -> int:
    return sum(1 for each in os.scandir(store.path / "runs") if os.path.exists(f"{each.path}/result.json"))


def take_sample(store: RunStore, child: int) -> Sample:
    before = list_finished(store)
    status, _ = read("status", str(store.path))
    report, _ = read("report", str(store.path), "--format", "text")
    size = bytes_below(store.path / "runs")  # the journal of claims.db goes up and down
    after = list_finished(store)
    return {
        "runs": (before + after) / 2,
        "sweeper's memory": memory(child),
        "reader's memory": memory(os.getpid()),
        "sweeper's descriptors": descriptors(child),
        "reader's descriptors": descriptors(os.getpid()),
        "bytes": size,
        "seconds of status": status,
        "seconds of report": report,
    }


def judge(samples: list[Sample]) -> tuple[dict[str, Any], bool]:
    """Figures and whether all is flat."""
    total = max(each["runs"] for each in samples)
    first, half, end = (
        [each for each in samples if low * total <= each["runs"] <= high * total]
        for low, high in ((0, 0.2), (0.4, 0.6), (0.8, 1))
    )

    def at(part: list[Sample], name: str) -> float:
        return median(each[name] for each in part)

    flat = {"runs grow": all(a["runs"] <= b["runs"] for a, b in pairwise(samples))}
    more = at(end, "runs") - at(half, "runs")
    slopes = {}
    for who in ("sweeper", "reader"):
        name = f"{who}'s memory"
        flat[name] = at(end, name) - at(half, name) <= GROWTH * at(half, name) + PER_RUN * more
        fitted = np.polyfit([each["runs"] for each in half + end], [each[name] for each in half + end], 1)[0]
        slopes[who] = f"{fitted:+,.0f} bytes a run"
        name = f"{who}'s descriptors"
        flat[name] = at(end, name) <= max(each[name] for each in first)
    rate = {part: at(samples_, "bytes") / at(samples_, "runs") for part, samples_ in (("half", half), ("end", end))}
    flat["bytes per run"] = abs(rate["end"] / rate["half"] - 1) < GROWTH
    for command in ("status", "report"):
        name = f"seconds of {command}"
        flat[name] = at(end, name) / at(end, "runs") < SLOWER * at(half, name) / at(half, "runs")
    opened = at(end, "sweeper's descriptors") - at(first, "sweeper's descriptors")
    figures = {
        "reads": 2 * len(samples),
        "memory slope": f"{slopes['sweeper']} (sweep), {slopes['reader']} (reader)",
        "descriptor slope": f"{opened:+.0f}",
        "bytes per run": f"{rate['half']:,.0f} at half time, {rate['end']:,.0f} at the end",
        "seconds of status": f"{at(half, 'seconds of status'):.3f} at half time, {at(end, 'seconds of status'):.3f}",
        "seconds of report": f"{at(half, 'seconds of report'):.3f} at half time, {at(end, 'seconds of report'):.3f}",
        "not flat": [name for name, good in flat.items() if not good],
    }
    return figures, all(flat.values())


def draw(samples: list[Sample], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6), layout="constrained")
    axes = figure.subplots(2, 2)
    runs = [each["runs"] for each in samples]
    panels = (
        ("resident memory, MB", ("sweeper's memory", "reader's memory"), 1e6),
        ("open descriptors", ("sweeper's descriptors", "reader's descriptors"), 1),
        ("runs on disk, MB", ("bytes",), 1e6),
        ("one read, seconds", ("seconds of status", "seconds of report"), 1),
    )
    for at, (title, names, scale) in zip(axes.flat, panels, strict=True):
        for name in names:
            at.plot(runs, [each[name] / scale for each in samples], label=name, linewidth=1)
        at.set_title(title, loc="left", fontsize=10)
        at.set_ylim(bottom=0)
        at.set_xlabel("runs finished")
        if len(names) > 1:
            at.legend(frameon=False, fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def main(words: list[str] | None = None) -> int:
    part = Part("soak", __doc__)
    part.parser.add_argument("--runs", type=int, default=60)
    part.parser.add_argument("--picture", type=Path)
    options = part.parse(words)
    with small.make_place() as place:
        samples = soak(Path(place), options.runs)
    figures, passed = judge(samples)
    if options.picture:
        draw(samples, options.picture)
    return part.finish({"runs": options.runs} | figures, passed=passed)


if __name__ == "__main__":
    sys.exit(main())

"""Launching a sweep: the interface of launchers, their registry, and `sweep`, which works without the command line."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Protocol, cast

from dspreg.config.dataset_ref import DatasetRef
from dspreg.config.options import MOST, format_limit, reason_against
from dspreg.config.train_config import AUTO, CHANNELS_FIRST, Execution, TrainConfig, resolve_config
from dspreg.errors import ConfigError, DspregError, Notice
from dspreg.io.importing import import_object
from dspreg.io.progress_bars import make_console
from dspreg.io.text import did_you_mean, shorten
from dspreg.launch.progress import SweepClock, SweepProgress, SweepProgressBars
from dspreg.launch.queue import OnRun, RunQueue
from dspreg.protocol.leave_one_out import distinct
from dspreg.protocol.sweep_file import Sweep
from dspreg.runs.run import Run
from dspreg.runs.status import ATTEMPTS, RunState
from dspreg.runs.store import RunStore

LOOKED_AT = 100  # runs of a store, for how those of earlier sweeps were begun


class Launcher(Protocol):
    """Executes the runs of a sweep. The process that attempts a run records the outcome in the store.

    Register a class of this kind in `LAUNCHERS`. Its constructor takes `jobs`, the number of parallel runs (None: as
    many as there is room for). A launcher with workers can use the loop of `dspreg.launch.dispatcher.Dispatcher`.
    """

    def setup(self, execution: Execution) -> Execution:
        """Refuse options that can't be executed, and fill in defaults. Called before anything is written."""

    def launch(
        self, queue: RunQueue, execution: Execution, *, progress: SweepProgress, pause: Callable[[], None]
    ) -> None:
        """Attempt runs of `queue` until it is done.

        Args:
            queue: The runs of the sweep that are left.
            execution: As returned by `setup`.
            progress: Progress display.
            pause: Call it often, wherever the sweep can stop without loss; it raises `Preempted` to stop the sweep.
        """


LAUNCHERS = {  # import paths: most of them load torch
    "serial": "dspreg.launch.serial.SerialLauncher",
    "pool": "dspreg.launch.pool.PoolLauncher",
    "ray": "dspreg.launch.ray_launcher.RayLauncher",
}


def make_launcher(name: str, *, jobs: int | None = None) -> Launcher:
    """One of `LAUNCHERS`."""
    if name not in LAUNCHERS:
        raise ConfigError(f"no launcher {name!r}.{did_you_mean(name, LAUNCHERS)} There are: {', '.join(LAUNCHERS)}")
    return cast(Launcher, import_object(LAUNCHERS[name])(jobs=jobs))


def sweep(
    runs: Iterable[Run] | Sweep,
    store: RunStore | str | Path,
    *,
    launcher: str | Launcher = "serial",
    jobs: int | None = None,
    execution: Execution | None = None,
    attempts: int = ATTEMPTS,
    on_run: OnRun = lambda *_: None,
    progress: SweepProgress | bool = False,
    pause: Callable[[], None] = lambda: None,
) -> dict[str, RunState]:
    """Train all runs of a sweep that are not finished in its store.

    Several sweeps may share a store: no run is trained twice. Interrupted runs resume from their last checkpoint.

    Args:
        runs: As from `dspreg.leave_one_out`, or the contents of a sweep file.
        store: Folder of the runs: new, or of earlier sweeps.
        launcher: `"serial"`: one after the other, in this process; `"pool"`: in several processes (the calling script
            needs an `if __name__ == "__main__":` guard); `"ray"`: on a cluster; or a `Launcher`.
        jobs: Parallel runs, for a launcher given by name; None: as many as there is room for.
        execution: How each run is executed; by default as the sweep defines, with one thread each.
        attempts: How often a run may fail.
        on_run: Called with a run, its status, and whether that status is old: when the run ends, and after every
            failed attempt that will be repeated.
        progress: Whether to show progress bars, on stderr or in a notebook; or a display, closed at the end.
        pause: Called wherever the sweep can stop without loss; raises `Preempted` to stop it.

    Returns:
        The status of every run, by its id.

    Raises:
        ConfigError: The options can't be executed; nothing was written.
        ResourceError: The disk is full or not writable, or the cluster can't be reached.
    """
    with ExitStack() as stack:
        if isinstance(progress, SweepProgress):
            stack.enter_context(closing(progress))
        if isinstance(runs, Sweep):
            execution = execution or Execution(**runs.execution)
            runs = list_runs(runs, execution)
        every = distinct(runs)
        check_specs(run.algorithm for run in every)
        if not 1 <= attempts <= MOST["attempts"][0]:
            most = f"{format_limit(MOST['attempts'][0])}{reason_against('attempts', attempts)}"
            raise ConfigError(f"attempts={shorten(attempts)}; wanted at least 1 and at most {most}")
        if isinstance(launcher, str):
            launcher = make_launcher(launcher, jobs=jobs)
        elif jobs is not None:
            raise ConfigError(f"jobs={jobs} is for a launcher given by name; give it to {type(launcher).__name__}")
        store = store if isinstance(store, RunStore) else RunStore(store)
        execution = keep_layout(execution or Execution(), every, store)
        execution = probe_layout(launcher.setup(resolve_sweep(execution, every)), every)
        store.make()
        store.plan(every)
        if not isinstance(progress, SweepProgress):
            clock = SweepClock(store, every, jobs or 1, attempts)
            shown = SweepProgressBars(make_console(), len(every), clock) if progress else SweepProgress()
            progress = stack.enter_context(closing(shown))
        display = progress

        def report(run: Run, state: RunState, already: bool) -> None:
            display.set_done(len(queue.ended))
            on_run(run, state, already)

        with RunQueue(every, store, attempts=attempts, on_run=report) as queue:
            launcher.launch(queue, execution, progress=display, pause=pause)
        return {run.id: queue.ended[run.id] for run in every}


def resolve_sweep(execution: Execution, runs: Iterable[Run]) -> Execution:
    """Where what is here has no double precision: a device on which all runs of the sweep can be trained. With
    `compile`, that all of them can be.

    Elsewhere `auto` is left to the launcher, since a cluster may have what this machine has not.
    """
    from dspreg.devices import lacks_float64
    from dspreg.training.execution import resolve_execution

    if not lacks_float64(execution.device) and not execution.compile:
        return execution
    return resolve_execution(execution, *(run.algorithm for run in runs))


def keep_layout(execution: Execution, runs: Sequence[Run], store: RunStore) -> Execution:
    """With the memory layout of runs begun before, if it is `auto`, so that all of the sweep can be compared."""
    found = set()
    for run in runs[:LOOKED_AT] if execution.layout == AUTO else ():
        with suppress(DspregError):
            found.add(store.folder(run).description()["environment"].get("layout", CHANNELS_FIRST))
    return replace(execution, layout=found.pop()) if len(found) == 1 else execution


def probe_layout(execution: Execution, runs: Sequence[Run]) -> Execution:
    """With one memory layout for all runs, if it is still `auto`: what a probe of the first run's network finds."""
    if execution.layout != AUTO or not runs:
        return execution
    from dspreg.data.registry import open_dataset
    from dspreg.training.execution import threads
    from dspreg.training.fastest import choose_layout

    try:
        data = open_dataset(runs[0].dataset, execution.root, runs[0].name)
    except DspregError:  # as every run will say
        return execution
    return choose_layout(execution, resolve_config(TrainConfig.of(runs[0].settings()), data), threads(execution))


def list_runs(plan: Sweep, execution: Execution) -> list[Run]:
    """All runs of a sweep, each once."""
    return plan.runs(lambda data: domains_of(data, execution))


def domains_of(data: str, execution: Execution) -> Sequence[str]:
    """Known for benchmarks; read from the files for other data sets."""
    from dspreg.data.registry import dataset_class, open_dataset

    known = dataset_class(data)
    if known is not None:
        return known.domains
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)  # training issues them again
        name = execution.name if DatasetRef.parse(data).is_path else None
        return open_dataset(data, execution.root, name).domains


def check_specs(specs: Iterable[str]) -> None:
    """Check that the algorithms exist and have these options, before the first run starts."""
    from dspreg.algorithms.registry import parse

    for spec in dict.fromkeys(specs):
        parse(spec)

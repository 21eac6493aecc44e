"""Runs of a sweep in several processes of this machine."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING

from dspreg.config.train_config import Execution
from dspreg.devices import resolve_device
from dspreg.errors import ConfigError
from dspreg.launch.dispatcher import Dispatcher
from dspreg.launch.messages import Event, Outcome, Stopped, WorkerDied
from dspreg.launch.pool_worker import main
from dspreg.launch.progress import SweepProgress
from dspreg.launch.queue import LeasedRun, RunQueue
from dspreg.launch.resources import Slot, assign_slots, default_jobs, fill_execution
from dspreg.precision import check_precision

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext, SpawnContext

PRELOAD = ["dspreg.launch.preload"]  # what every process needs, loaded once
GRACE = 60.0  # seconds for a last checkpoint


def worker_context() -> ForkServerContext | SpawnContext:
    """What starts processes: forks of one that has torch loaded, or new ones where the system has no forks."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    return context


class PoolLauncher:
    """Runs in worker processes, forked from one that has torch loaded, so that they start fast.

    A worker that dies, or makes no progress for the duration of a lease, costs its run an attempt and is replaced.

    Args:
        jobs: Parallel runs; None: one per GPU, or as many as the cores have room for.
    """

    def __init__(self, jobs: int | None = None):
        if jobs is not None and jobs < 1:
            raise ConfigError(f"jobs={jobs}; wanted at least 1")
        self.jobs = jobs

    def setup(self, execution: Execution) -> Execution:
        # once, here: otherwise each run would use up its attempts on it, and how many there is room for depends on it
        execution = replace(execution, device=resolve_device(execution.device))
        check_precision(execution.precision, execution.device)
        return fill_execution(execution, self.jobs or default_jobs(execution))

    def launch(
        self, queue: RunQueue, execution: Execution, *, progress: SweepProgress, pause: Callable[[], None]
    ) -> None:
        """Execute the queue. When `pause` raises, every worker writes a checkpoint before it ends.

        Raises:
            ResourceError: The disk is full or not writable. The other runs would fail in the same way.
        """
        slots = assign_slots(self.jobs or default_jobs(execution), execution)
        transport = PoolTransport(queue, execution, slots[: len(queue.waiting)])
        Dispatcher(queue, transport, progress, pause).run()


@dataclass
class Worker:
    """A worker process and the run it works on."""

    slot: Slot
    process: BaseProcess
    pipe: Connection
    leased: LeasedRun | None = None
    leaving: bool = False  # it is ending, and must not get another run


class PoolTransport:
    """A pipe to each worker process."""

    def __init__(self, queue: RunQueue, execution: Execution, slots: Sequence[Slot]):
        self.store, self.attempts, self.execution = queue.store.path.absolute(), queue.attempts, execution
        self.context = worker_context()
        self.workers = [self.start_worker(slot) for slot in slots]

    def start_worker(self, slot: Slot) -> Worker:
        ours, theirs = self.context.Pipe()
        arguments = (theirs, slot, self.store, self.execution, self.attempts)
        process = self.context.Process(target=main, args=arguments)
        process.start()
        theirs.close()
        return Worker(slot, process, ours)

    def has_room(self) -> bool:
        return any(True for _ in self._idle())

    def _idle(self) -> Iterator[Worker]:
        return (each for each in self.workers if each.leased is None and not each.leaving)

    def start(self, leased: LeasedRun) -> Event | None:
        worker = next(self._idle())
        try:
            worker.pipe.send(leased)
        except OSError:  # it died before it started the run
            worker.leaving = True
            return Stopped()
        worker.leased = leased
        return None

    def receive(self, seconds: float) -> Iterator[tuple[LeasedRun | None, Event]]:
        by_pipe = {each.pipe: each for each in self.workers}
        for pipe in wait(list(by_pipe), seconds):
            yield from self._read(by_pipe[pipe])  # type: ignore[index]
        for each in list(self.workers):
            if not each.process.is_alive():
                yield from self._read(each)  # its last messages
                leased = each.leased
                self._replace(each)
                if leased is not None:
                    yield leased, WorkerDied(describe_exit(each.process))

    def _read(self, worker: Worker) -> Iterator[tuple[LeasedRun | None, Event]]:
        """All messages that have arrived."""
        try:
            while worker.pipe.poll():
                event: Event = worker.pipe.recv()
                leased = worker.leased
                if isinstance(event, Outcome | Stopped):
                    worker.leased = None
                worker.leaving |= isinstance(event, Stopped)
                yield leased, event
        except (EOFError, OSError):  # it is ending, and will be replaced
            worker.leaving = True
            worker.process.join(GRACE)

    def _replace(self, worker: Worker) -> None:
        worker.pipe.close()
        self.workers[self.workers.index(worker)] = self.start_worker(worker.slot)

    def kill(self, leased: LeasedRun) -> bool:
        worker = next(each for each in self.workers if each.leased is leased)
        worker.process.kill()
        worker.process.join(GRACE)  # a process stuck in a driver can't be killed, but it has lost its lease
        self._replace(worker)
        return True

    def close(self) -> None:
        """Stop all workers: idle ones immediately, the others after a checkpoint."""
        for each in self.workers:
            with suppress(OSError):  # it has ended
                each.pipe.send(None)  # and no signal: Windows knows only those that kill
        until = time.monotonic() + GRACE
        for each in self.workers:
            each.process.join(max(0.0, until - time.monotonic()))
            if each.process.is_alive():
                each.process.kill()
                each.process.join(GRACE)
            each.pipe.close()


def describe_exit(process: BaseProcess) -> str:
    code = process.exitcode
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        memory = "; was there enough memory?" if name == "SIGKILL" else ""
        return f"the process that trained it was killed by {name}{memory}"
    return f"the process that trained it ended with exit code {code}"

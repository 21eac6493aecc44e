"""Runs of a sweep in several processes of this machine."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from typing import Any

from dspreg.errors import ConfigError, Notice, ResourceError
from dspreg.launch.board import Board
from dspreg.launch.work import POLL, Outcome, Taken, Work
from dspreg.launch.worker import Progress, Refused, Slot, Stopped, main
from dspreg.protocol.settings import Execution
from dspreg.runs.store import Standing

TICK = 0.5  # seconds until a signal is noticed
WARM = ["timm", "torchvision", "dspreg.launch.worker"]  # what every process needs, loaded once
GRACE = 60.0  # seconds for a last checkpoint


def pool(
    work: Work,
    execution: Execution,
    *,
    jobs: int,
    pause: Callable[[], None] = lambda: None,
    board: Board | None = None,
) -> None:
    """Do all of it in `jobs` processes.

    They are forked from one that has torch loaded, so a new one is there at once. One that dies, or that makes no
    progress for a lease, costs its run an attempt and is replaced.

    Args:
        work: What is to be done.
        execution: How each is run; `threads` is set, so that the bits do not depend on `jobs`.
        jobs: At least 1.
        pause: Raises `Preempted` to stop the sweep; every process makes a checkpoint first.
        board: Shown to people.

    Raises:
        ResourceError: The disk is full or can't be written. The other runs would meet the same.
    """
    pool = Pool(work, execution, places(jobs, execution), board or Board())
    try:
        pool.go(pause)
    finally:
        pool.stop()


@dataclass
class Worker:
    """A process, and what it works on."""

    slot: Slot
    process: BaseProcess
    pipe: Connection
    taken: Taken | None = None
    leaving: bool = False  # it ends, and must be given nothing


class Pool:
    def __init__(self, work: Work, execution: Execution, slots: Sequence[Slot], board: Board):
        self.work, self.execution, self.board = work, execution, board
        self.context: ForkServerContext = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(WARM)
        self.notices: set[str] = set()
        self.workers = [self.started(slot) for slot in slots[: len(work.left)]]
        self.look = 0.0  # when to look again at what others work on

    def started(self, slot: Slot) -> Worker:
        mine, theirs = self.context.Pipe()
        how = (theirs, slot, self.work.store.path.absolute(), self.execution, self.work.attempts)
        process = self.context.Process(target=main, args=how)
        process.start()
        theirs.close()
        return Worker(slot, process, mine)

    def go(self, pause: Callable[[], None]) -> None:
        while not self.work.done:
            pause()
            self.hand_out()
            self.listen(TICK)
            self.replace()

    def hand_out(self) -> None:
        """Runs for those that have none."""
        if time.monotonic() < self.look:
            return
        for each in self.workers:
            if each.taken is None and not each.leaving:
                each.taken = self.work.take()
                if each.taken is None:  # others have all that is left
                    self.look = time.monotonic() + POLL
                    return
                self.board.began(each.taken.run)
                try:
                    each.pipe.send(each.taken)
                except OSError:  # it is gone, and has not begun
                    each.leaving = True
                    self.back(each, Outcome(Standing("new")))

    def listen(self, seconds: float) -> None:
        """Hear what there is to hear; at most so long for the first word."""
        by_pipe = {each.pipe: each for each in self.workers}
        for pipe in wait(list(by_pipe), seconds):
            self.hear_out(by_pipe[pipe])  # type: ignore[index]

    def hear_out(self, each: Worker) -> None:
        """All that it has said so far."""
        try:
            while each.pipe.poll():
                self.hear(each, each.pipe.recv())
        except (EOFError, OSError):  # it is ending: `replace` sees to it
            each.leaving = True
            each.process.join(GRACE)

    def hear(self, each: Worker, said: Any) -> None:
        if isinstance(said, Notice):
            if str(said) not in self.notices:
                self.notices.add(str(said))
                warnings.warn(said, stacklevel=2)
        elif isinstance(said, Progress):
            if each.taken:
                self.board.moved(each.taken.run, said.step, said.steps, said.doing)
        elif isinstance(said, Refused):
            raise ResourceError(said.why)
        elif isinstance(said, Stopped):
            each.leaving = True
            self.back(each, Outcome(Standing("started")))
        else:
            self.back(each, said)

    def back(self, each: Worker, outcome: Outcome) -> None:
        taken, each.taken = each.taken, None
        if taken is not None:
            self.board.ended(taken.run)
            self.work.give_back(taken, outcome)
            if outcome.standing is not None:
                self.look = 0.0
            else:
                self.look = time.monotonic() + POLL

    def replace(self) -> None:
        """New processes for those that are gone or hang."""
        for taken in self.work.hung():
            each = next(each for each in self.workers if each.taken is taken)
            each.process.kill()
            each.process.join(GRACE)  # one that can't be ended, in a driver's hands, holds nothing any more
            why = f"it made no progress for {self.work.claims.lease:g} s and was ended"
            self.buried(each, why)
        for each in self.workers:
            if not each.process.is_alive():
                self.hear_out(each)  # its last words
                self.buried(each, ending(each.process))

    def buried(self, each: Worker, why: str) -> None:
        taken, each.taken = each.taken, None
        each.pipe.close()
        if taken is not None:
            self.board.ended(taken.run)
            self.work.died(taken, why)
        self.workers[self.workers.index(each)] = self.started(each.slot)

    def stop(self) -> None:
        """All processes end: at once if they are idle, after a checkpoint if not."""
        for each in self.workers:
            if each.taken is None:
                with suppress(OSError):  # it is gone
                    each.pipe.send(None)
            else:
                each.process.terminate()
        until = time.monotonic() + GRACE
        for each in self.workers:
            each.process.join(max(0.0, until - time.monotonic()))
            if each.process.is_alive():
                each.process.kill()
                each.process.join(GRACE)
            each.pipe.close()
        self.board.close()


def ending(process: BaseProcess) -> str:
    code = process.exitcode
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        memory = "; was there enough memory?" if name == "SIGKILL" else ""
        return f"the process that trained it was ended by {name}{memory}"
    return f"the process that trained it ended with exit code {code}"


def usable_cores() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def gpus(execution: Execution) -> list[str]:
    """Those that this process may use, by the names that CUDA_VISIBLE_DEVICES takes."""
    if execution.device != "cuda":
        return []
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return [name for name in given.split(",") if name]
    import torch

    return [str(number) for number in range(torch.cuda.device_count())]


def places(jobs: int, execution: Execution) -> list[Slot]:
    """Where each process has its place. Cores are pinned only where all are in use: another sweep may have the rest."""
    cores, cards, each = usable_cores(), gpus(execution), execution.threads or 1
    if jobs < 1:
        raise ConfigError(f"--jobs {jobs}; wanted at least 1")
    full = jobs * each == len(cores) and hasattr(os, "sched_setaffinity")
    return [
        Slot(
            tuple(cores[n * each : (n + 1) * each]) if full else None,
            cards[n % len(cards)] if cards else None,
        )
        for n in range(jobs)
    ]


def settled(execution: Execution, jobs: int | None) -> tuple[Execution, int]:
    """How runs are run where the user left it open: one thread each, as many at once as there are GPUs or cores."""
    threads = execution.threads or 1
    cores, cards = len(usable_cores()), len(gpus(execution))
    jobs = jobs if jobs is not None else cards or max(1, cores // threads)
    readers = min(4, cores // max(1, jobs)) if cards else 0  # the cores are busy training
    workers = execution.workers if execution.workers is not None else readers
    return replace(execution, threads=threads, workers=workers), jobs

"""A process of the pool. It has torch loaded before it starts, attempts the runs it is sent, and says how it goes.

It stops, with a checkpoint, on SIGTERM and when the sweeper is gone; Ctrl-C, which a terminal sends to everybody, is
for the sweeper to understand.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from dspreg.errors import Notice, Preempted, ResourceError
from dspreg.launch.attempt import attempt
from dspreg.launch.work import Outcome
from dspreg.protocol.settings import Execution
from dspreg.runs.store import RunStore
from dspreg.training.display import Display

OFTEN = 0.2  # seconds between two words about progress


@dataclass(frozen=True)
class Slot:
    """A place on this machine: the cores a process may use (None: any) and its GPU (None: none)."""

    cores: tuple[int, ...] | None = None
    gpu: str | None = None


@dataclass(frozen=True)
class Progress:
    """Where a run is."""

    step: int
    steps: int
    doing: str = ""


@dataclass(frozen=True)
class Refused:
    """The disk is full or can't be written, and would be for others."""

    why: str


class Stopped:
    """The process ends; the run it had can be gone on with."""


def main(pipe: Connection, slot: Slot, store: Path, execution: Execution, attempts: int) -> None:
    """What the process does, from start to end."""
    signals: list[int] = []
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, _: signals.append(number))
    sweeper = multiprocessing.parent_process()
    assert sweeper is not None
    if slot.cores is not None:
        os.sched_setaffinity(0, slot.cores)
    if slot.gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = slot.gpu  # before CUDA is first used
    warnings.simplefilter("always", Notice)
    warnings.showwarning = telling(pipe)

    def pause() -> None:
        if signals or not sweeper.is_alive():
            raise Preempted("stopped; run the same command again to go on")

    with suppress(EOFError, BrokenPipeError):  # nobody is there to be told
        serve(pipe, RunStore(store), execution, attempts, pause)


def serve(pipe: Connection, store: RunStore, execution: Execution, attempts: int, pause: Callable[[], None]) -> None:
    claims = store.claims()
    try:
        while True:
            while not pipe.poll(1.0):
                pause()
            taken = pipe.recv()
            if taken is None:
                return
            outcome: Outcome = attempt(
                taken, store, claims, execution,
                attempts=attempts, display=lambda: Telling(pipe), pause=pause,
            )  # fmt: skip
            pipe.send(outcome)
    except Preempted:
        pipe.send(Stopped())
    except ResourceError as error:
        pipe.send(Refused(str(error)))
    finally:
        claims.close()


class Telling(Display):
    """Tells the sweeper, not too often."""

    def __init__(self, pipe: Connection):
        self.pipe, self.last = pipe, 0.0
        self.step = self.steps = 0

    def _tell(self, doing: str = "") -> None:
        self.last = time.monotonic()
        with suppress(BrokenPipeError):  # `pause` notices that nobody is there
            self.pipe.send(Progress(self.step, self.steps, doing))

    def checking(self, done: int, total: int) -> None:
        if time.monotonic() - self.last > OFTEN:
            self._tell(f"looking at image {done:,} of {total:,}")

    def started(self, experiment: Any, t: int) -> None:
        self.step, self.steps = t, experiment.settings.steps
        self._tell()

    def doing(self, what: str) -> None:
        self._tell(what)

    def stepped(self, t: int, log: dict[str, float]) -> None:
        self.step = t + 1
        if time.monotonic() - self.last > OFTEN:
            self._tell(f"loss {log['loss']:.2f}")


def telling(pipe: Connection) -> Callable[..., None]:
    """Notices go where people look."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        with suppress(BrokenPipeError):
            pipe.send(Notice(str(message)))

    return show

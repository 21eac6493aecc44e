"""A worker process of the pool. It attempts the runs it receives, and reports progress.

It stops, with a checkpoint, when it is told to, on SIGTERM, and when the process of the sweep has ended. It ignores
Ctrl-C and SIGHUP, which a terminal sends to the whole group: the process of the sweep handles them.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import warnings
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from dspreg.config.train_config import Execution
from dspreg.errors import Notice, Preempted, ResourceError
from dspreg.launch.attempt import attempt
from dspreg.launch.messages import NoticeIssued, Progress, Refused, Stopped
from dspreg.launch.reporter import ProgressReporter
from dspreg.launch.resources import Slot
from dspreg.runs.store import RunStore

REPORT_EVERY = 0.2  # seconds


def main(pipe: Connection, slot: Slot, store: Path, execution: Execution, attempts: int) -> None:
    """Main function of the process."""
    signals: list[int] = []
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, _: signals.append(number))
    sweep = multiprocessing.parent_process()
    assert sweep is not None
    if slot.cores is not None:
        os.sched_setaffinity(0, slot.cores)
    if slot.gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = slot.gpu  # before CUDA is first used
    warnings.simplefilter("always", Notice)
    warnings.showwarning = notice_sender(pipe)

    def pause() -> None:
        if signals or not sweep.is_alive():
            raise Preempted("stopped; run the same command again to resume")

    with suppress(EOFError, BrokenPipeError):  # the process of the sweep has ended
        serve(pipe, RunStore(store), execution, attempts, pause)


def serve(pipe: Connection, store: RunStore, execution: Execution, attempts: int, pause: Callable[[], None]) -> None:
    """Attempt the runs received, until None arrives; a run that is under way then is stopped."""

    def pause_or_stop() -> None:
        pause()
        if pipe.poll():
            raise Preempted("stopped; run the same command again to resume")

    def report(progress: Progress) -> None:
        with suppress(BrokenPipeError):  # `pause` notices that the process of the sweep has ended
            pipe.send(progress)

    leases = store.leases()
    try:
        while True:
            while not pipe.poll(1.0):
                pause()
            leased = pipe.recv()
            if leased is None:
                return
            outcome = attempt(
                leased, store, leases, execution,
                attempts=attempts, callbacks=[ProgressReporter(report, REPORT_EVERY)], pause=pause_or_stop,
            )  # fmt: skip
            pipe.send(outcome)
    except Preempted:
        pipe.send(Stopped())
    except ResourceError as error:
        pipe.send(Refused(str(error)))
    finally:
        leases.close()


def notice_sender(pipe: Connection) -> Callable[..., None]:
    """For `warnings.showwarning`: sends notices to the launcher, which prints them."""

    def send(message: Warning | str, *_: Any, **__: Any) -> None:
        with suppress(BrokenPipeError):
            pipe.send(NoticeIssued(str(message)))

    return send

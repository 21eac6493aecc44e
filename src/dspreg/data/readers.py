"""Processes that read images ahead of the training, and how what they make comes to it.

Unlike a `DataLoader` of torch, they need no room in /dev/shm, of which a container has 64 MB; one that dies, is stopped
or makes no progress is named and not waited for without end; and they end as soon as nobody reads them.
"""

from __future__ import annotations

import atexit
import math
import multiprocessing
import os
import signal
import socket
import struct
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from dspreg.data import reader_messages
from dspreg.data.reader_messages import Failure, pack_request, send_batch, unpack_request
from dspreg.errors import ConfigError, Notice, ResourceError
from dspreg.io.text import plural

AHEAD = 2  # batches of a pass that a process makes before the first of them is asked for
PATIENCE = 300.0  # seconds without a batch, unless $DSPREG_READER_PATIENCE says otherwise
NOTICE_AFTER = 30.0  # seconds
TICK = 0.5  # seconds between two looks at whether to go on waiting
HALF_SENT = 20  # seconds that the rest of a message may take once its first bytes are there
GRACE = 0.5  # seconds in which a process may end by itself
ORPHANED = 5.0  # seconds between two looks at whether the trainer is there
WANT_OF_MEMORY = [-getattr(signal, name) for name in ("SIGKILL", "SIGBUS") if hasattr(signal, name)]  # exit codes

READERS: weakref.WeakSet[Reader] = weakref.WeakSet()  # all that were started and not ended


def iterate_batches(
    source: Any, order: Iterable[Any], workers: int | ReaderPool, on_wait: Callable[[], None] = lambda: None
) -> Generator[Any, None, None]:
    """Yield source[i] for every i in `order`, in that order, made by `workers` processes (0: here).

    The processes end with the last batch, with an error, or when the generator is closed: use `contextlib.closing`
    where an error of the caller's own may be kept.

    Args:
        source: Has `__getitem__`; tensors in what it returns must be on the CPU.
        order: What to ask it for.
        workers: Where so many can't be started there are fewer, with a notice. The processes of a pool do not end.
        on_wait: Called every half second while a batch is waited for; may raise.
    """
    which = order if isinstance(order, (range, list)) else list(order)
    patience = reader_patience()
    if isinstance(workers, ReaderPool):
        yield from workers.iterate(source, which, patience, on_wait)
        return
    with ReaderPool(min(workers, len(which)), [source]) as own:
        yield from own.iterate(source, which, patience, on_wait)


class ReaderPool:
    """Processes for many passes over images, which may take turns: each has its own batches read ahead.

    They are started when the first batch is asked for, and end with the `with` statement. Batches that are asked for
    after that are made here, and so are all where no process can be started.

    Args:
        count: At most so many.
        shared: What sources consist of, such as parts of a data set. The processes have it from their start, so that
            it is never sent; what else a source consists of is sent with each request.
    """

    def __init__(self, count: int, shared: Iterable[Any]) -> None:
        self.count, self.shared = count, list(shared)
        self.places = {id(each): place for place, each in enumerate(self.shared)}
        self.readers: list[Reader] | None = None  # None: not started yet

    def __enter__(self) -> ReaderPool:
        return self

    def __exit__(self, *_: object) -> None:
        readers, self.readers = self.readers, []
        end_readers(readers or [])

    def iterate(
        self, source: Any, which: Sequence[Any], patience: float, on_wait: Callable[[], None]
    ) -> Generator[Any, None, None]:
        """Yield source[i] for every i in `which`, as `iterate_batches` does."""
        if self.readers is None:
            self.readers = start_readers(self.shared, self.count)
        readers = self.readers
        if not readers:
            for i in which:
                yield source[i]
            return
        made: dict[int, Any] = {}  # the n-th batch, or its error, from its arrival until it is asked for

        def ask(n: int) -> None:
            if n < len(which):
                readers[n % len(readers)].ask(pack_request(source, which[n], self.places), made, n)

        ahead = AHEAD * len(readers)
        for n in range(ahead):
            ask(n)
        for n in range(len(which)):
            while n not in made:
                readers[n % len(readers)].receive(patience, on_wait)
            if isinstance(made[n], Failure):
                made[n].reraise()
            ask(n + ahead)
            yield made.pop(n)


def start_readers(shared: Sequence[Any], count: int) -> list[Reader]:
    """So many; fewer or none where the system refuses."""
    while count:
        readers: list[Reader] = []
        try:
            readers.extend(Reader(shared) for _ in range(count))  # those before an error are kept
            return readers
        except OSError as error:  # of processes, memory or file descriptors
            end_readers(readers)
            fewer = len(readers) // 2  # the training needs some itself
            instead = f"{plural(fewer, 'process', 'processes')} of {count}" if fewer else "the training's own process"
            text = f"no more than {len(readers)} processes that read images could be started ({error.strerror})"
            warnings.warn(f"{text}; they are read in {instead}, more slowly", Notice, stacklevel=5)
            count = fewer
    return []


def reader_patience() -> float:
    """Seconds after which a reader that sends nothing is given up."""
    text = os.environ.get("DSPREG_READER_PATIENCE", "")
    try:
        seconds = float(text) if text else PATIENCE
    except ValueError:
        seconds = math.nan
    if not seconds > 0:
        raise ConfigError(f"DSPREG_READER_PATIENCE={text!r}; wanted a number of seconds above 0")
    return seconds


class Reader:
    """One process that makes batches, in the order in which they are asked for."""

    def __init__(self, shared: Sequence[Any]) -> None:
        self.connection, theirs = multiprocessing.Pipe()
        self.asked: deque[tuple[dict[int, Any], int]] = deque()  # where to put what comes; after its pass nobody looks
        READERS.add(self)
        with theirs:
            arguments = (shared, theirs)
            self.process = multiprocessing.Process(target=make_batches, args=arguments, daemon=True)
            try:
                limit_waiting(self.connection, HALF_SENT)
                self.process.start()
            except BaseException:
                READERS.discard(self)
                self.connection.close()
                raise
        self.pid = self.process.pid

    def ask(self, request: bytes, made: dict[int, Any], n: int) -> None:
        """For a batch, which `receive` will put into made[n]."""
        self.asked.append((made, n))
        try:
            self.connection.send_bytes(request)
        except BlockingIOError:  # there was room for part of it only
            raise ResourceError(self._stalled(HALF_SENT)) from None
        except ConnectionError:  # it is gone: there may still be batches of it to receive, and then we hear of it
            pass

    def receive(self, patience: float, on_wait: Callable[[], None]) -> None:
        """Put its next batch, or the error instead of it, where it was asked for."""
        self._wait(patience, on_wait)
        try:
            sent = self.connection.recv()
            batch = sent if isinstance(sent, Failure) else sent.unpack(self.connection)
        except BlockingIOError:  # part of it came, and then nothing
            raise ResourceError(self._stalled(HALF_SENT)) from None
        except (EOFError, ConnectionError):
            raise ResourceError(self._obituary()) from None
        made, n = self.asked.popleft()
        made[n] = batch

    def end(self, within: float) -> None:
        """Wait for its end, and then no longer. It has no pipe any more, or ignores that."""
        READERS.discard(self)
        self.process.join(within)
        if self.process.is_alive():
            self.process.kill()
            self.process.join(GRACE)
        if not self.process.is_alive():  # where even a kill has to wait for the disk, the system will end it
            self.process.close()

    def _wait(self, patience: float, on_wait: Callable[[], None]) -> None:
        started, noticed = time.monotonic(), False
        while not wait([self.connection, self.process.sentinel], TICK):
            on_wait()
            seconds = time.monotonic() - started
            if seconds > patience:
                raise ResourceError(self._stalled(seconds))
            if seconds > NOTICE_AFTER and not noticed:
                noticed = True
                text = f"waited for {seconds:.0f} s for the process that reads images ({self.pid})"
                warnings.warn(
                    f"{text}: {describe_process(self.pid)}. It is given up after {patience:.0f} s, which "
                    "DSPREG_READER_PATIENCE changes",
                    Notice,
                    stacklevel=4,
                )

    def _stalled(self, seconds: float) -> str:
        return (
            f"the process that reads images ({self.pid}) has sent nothing for {seconds:.0f} s: "
            f"{describe_process(self.pid)}. Run the same command again to resume from the last checkpoint, perhaps "
            "with --workers 0; where a disk is so slow, set DSPREG_READER_PATIENCE to more seconds"
        )

    def _obituary(self) -> str:
        self.process.join(GRACE)
        code = self.process.exitcode
        how = "" if code is None else f", {signal.Signals(-code).name}" if code < 0 else f", exit code {code}"
        why = ", perhaps for want of memory" if code in (None, *WANT_OF_MEMORY) else ""
        return (
            f"a process that reads images died (process {self.pid}{how}){why}. Run the same command again to "
            "resume from the last checkpoint; fewer --workers need less memory"
        )


def limit_waiting(connection: Connection, seconds: int) -> None:
    """Let a message that stops halfway raise a `BlockingIOError`; it has begun, so that no disk is waited for."""
    if os.name == "posix":
        with socket.socket(fileno=os.dup(connection.fileno())) as end:
            for direction in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                end.setsockopt(socket.SOL_SOCKET, direction, struct.pack("ll", seconds, 0))


def end_readers(readers: Iterable[Reader]) -> None:
    """End them all at once: those that are between two batches by themselves, the others by force."""
    every = list(readers)
    for each in every:
        each.connection.close()
    until = time.monotonic() + GRACE
    for each in every:
        each.end(max(0.0, until - time.monotonic()))


STATES = {
    "T": "it is stopped, by SIGSTOP or a debugger (kill -CONT lets it go on)",
    "D": "it waits for a disk or a network file system",
    "R": "it is computing",
    "S": "it sleeps",
}


def describe_process(pid: int | None) -> str:
    """What a process of ours is doing, as far as Linux says it: its state, and the file it has open."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state = file.read().rpartition(b")")[2].split()[0].decode()
        said = STATES.get(state.upper(), f"it is in state {state}")
    except OSError:
        return "what it does is not known"
    opened = []
    with suppress(OSError):
        for fd in sorted(map(int, os.listdir(f"/proc/{pid}/fd"))):
            with suppress(OSError):
                path = os.readlink(f"/proc/{pid}/fd/{fd}")
                if path.startswith("/") and not path.startswith(("/dev/", "/proc/", "/memfd:")):
                    opened.append(path)
    return said + (f", with {opened[-1]} open" if opened else "")  # the last that it opened


# In the process.


def make_batches(shared: Sequence[Any], connection: Connection) -> None:
    """Make a batch whenever one is asked for, until nobody is there."""
    trainer, parent = multiprocessing.parent_process(), os.getppid()
    assert trainer is not None
    # A terminal or a scheduler signals the whole group; the trainer finishes its step first and needs the next batch.
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    for reader in list(READERS):  # a fork has the trainer's ends of all pipes: no reader would see them close
        reader.connection.close()
    torch.set_num_threads(1)
    reader_messages.SHARED[:] = shared
    with suppress(EOFError, ConnectionError):
        while True:
            while not connection.poll(ORPHANED):
                # Forks have each other's signs of life of the trainer, which outlast it; a process that was not forked
                # by the trainer has no parent that ends with it.
                if os.getppid() != parent or not trainer.is_alive():
                    return
            request = connection.recv_bytes()
            try:
                source, key = unpack_request(request)
                batch = source[key]
            except Exception as error:
                connection.send(Failure.of(error))
            else:
                send_batch(connection, batch)
                del batch  # not kept while the next request is waited for


@atexit.register
def _end_all() -> None:
    # those whose batches were not used up: Python sends them SIGTERM at exit, and would wait for them without end
    if not READERS:
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C in between would leave some of them
    end_readers(READERS)
    signal.signal(signal.SIGINT, before)

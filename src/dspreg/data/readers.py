"""Processes that read images ahead of the training, and how what they make comes to it.

Unlike a `DataLoader` of torch, they need no room in /dev/shm, of which a container has 64 MB; one that dies, is stopped
or makes no progress is named and not waited for without end; and they end as soon as nobody reads them.
"""

from __future__ import annotations

import atexit
import math
import mmap
import multiprocessing
import os
import signal
import socket
import struct
import time
import traceback
import warnings
import weakref
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler, recv_handle, send_handle
from typing import Any

import torch
from torch import Tensor

from dspreg.errors import ConfigError, DspregError, Notice, ResourceError
from dspreg.io.text import plural

AHEAD = 2  # batches that a process makes before the first of them is asked for
LARGE = 65_536  # bytes; smaller tensors go through the pipe, so that labels that are kept keep no images
PATIENCE = 300.0  # seconds without a batch, unless $DSPREG_READER_PATIENCE says otherwise
NOTICE_AFTER = 30.0  # seconds
TICK = 0.5  # seconds between two looks at whether to go on waiting
HALF_SENT = 20  # seconds that the rest of a batch may take once its first bytes are there
GRACE = 0.5  # seconds in which a process may end by itself
ORPHANED = 5.0  # seconds between two looks at whether the trainer is there

READERS: weakref.WeakSet[Reader] = weakref.WeakSet()  # all that were started and not ended


def iterate_batches(
    source: Any, order: Iterable[Any], workers: int, on_wait: Callable[[], None] = lambda: None
) -> Generator[Any, None, None]:
    """Yield source[i] for every i in `order`, in that order, made by `workers` processes (0: here).

    The processes end with the last batch, with an error, or when the generator is closed: use `contextlib.closing`
    where an error of the caller's own may be kept.

    Args:
        source: Has `__getitem__`; tensors in what it returns must be on the CPU.
        order: What to ask it for.
        workers: Where so many can't be started there are fewer, with a notice.
        on_wait: Called every half second while a batch is waited for; may raise.
    """
    which = order if isinstance(order, (range, list)) else list(order)
    patience = reader_patience()
    readers = start_readers(source, which, min(workers, len(which)))
    if not readers:
        for i in which:
            yield source[i]
        return
    try:
        for n in range(len(which)):
            yield readers[n % len(readers)].receive(patience, on_wait)
    finally:
        end_readers(readers)


def start_readers(source: Any, which: Sequence[Any], count: int) -> list[Reader]:
    """So many, each with its share of the work; fewer or none where the system refuses."""
    while count:
        readers: list[Reader] = []
        try:
            readers.extend(Reader(source, which[n::count]) for n in range(count))  # those before an error are kept
            return readers
        except OSError as error:  # of processes, memory or file descriptors
            end_readers(readers)
            fewer = len(readers) // 2  # the training needs some itself
            instead = f"{plural(fewer, 'process', 'processes')} of {count}" if fewer else "the training's own process"
            text = f"no more than {len(readers)} processes that read images could be started ({error.strerror})"
            warnings.warn(f"{text}; they are read in {instead}, more slowly", Notice, stacklevel=4)
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
    """One process that makes its share of the batches, in order, as they are asked for."""

    def __init__(self, source: Any, share: Sequence[Any]) -> None:
        self.connection, theirs = multiprocessing.Pipe()
        self.asked, self.share = 0, len(share)
        READERS.add(self)
        with theirs:
            arguments = (source, share, theirs, os.getpid())
            self.process = multiprocessing.Process(target=make_batches, args=arguments, daemon=True)
            try:
                limit_receiving(self.connection, HALF_SENT)
                self.process.start()
            except BaseException:
                READERS.discard(self)
                self.connection.close()
                raise
        self.pid = self.process.pid
        for _ in range(AHEAD):
            self._ask()

    def receive(self, patience: float, on_wait: Callable[[], None]) -> Any:
        """Its next batch, or the error that it ended in."""
        self._wait(patience, on_wait)
        try:
            sent = self.connection.recv()
            if isinstance(sent, Failure):
                sent.reraise()
            batch = sent.unpack(self.connection)
        except BlockingIOError:  # part of it came, and then nothing
            raise ResourceError(self._stalled(HALF_SENT)) from None
        except (EOFError, ConnectionError):
            raise ResourceError(self._obituary()) from None
        self._ask()
        return batch

    def end(self, within: float) -> None:
        """Wait for its end, and then no longer. It has no pipe any more, or ignores that."""
        READERS.discard(self)
        self.process.join(within)
        if self.process.is_alive():
            self.process.kill()
            self.process.join(GRACE)
        if not self.process.is_alive():  # where even a kill has to wait for the disk, the system will end it
            self.process.close()

    def _ask(self) -> None:
        if self.asked < self.share:
            self.asked += 1
            with suppress(OSError):  # it is gone: there may still be batches of it to receive, and then we hear of it
                self.connection.send_bytes(b"1")

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
        why = ", perhaps for want of memory" if code in (None, -signal.SIGKILL, -signal.SIGBUS) else ""
        return (
            f"a process that reads images died (process {self.pid}{how}){why}. Run the same command again to "
            "resume from the last checkpoint; fewer --workers need less memory"
        )


def limit_receiving(connection: Connection, seconds: int) -> None:
    """Let a message that stops halfway raise a `BlockingIOError`; it has begun, so that no disk is waited for."""
    if os.name == "posix":
        with socket.socket(fileno=os.dup(connection.fileno())) as end:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", seconds, 0))


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


def make_batches(source: Any, share: Sequence[Any], connection: Connection, trainer: int) -> None:
    """Make a batch whenever one is asked for, until there are no more or nobody is there."""
    # A terminal or a scheduler signals the whole group; the trainer finishes its step first and needs the next batch.
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    for reader in list(READERS):  # a fork has the trainer's ends of all pipes: no reader would see them close
        reader.connection.close()
    torch.set_num_threads(1)
    with suppress(EOFError, ConnectionError):
        for i in share:
            while not connection.poll(ORPHANED):
                if os.getppid() != trainer:
                    return
            connection.recv_bytes()
            try:
                batch = source[i]
            except Exception as error:
                connection.send(Failure.of(error))
                return
            send_batch(connection, batch)


@dataclass(frozen=True)
class Failure:
    """An error on its way to the trainer."""

    error: Exception
    where: str  # its traceback

    @classmethod
    def of(cls, error: Exception) -> Failure:
        where = "".join(traceback.format_exception(error))
        try:
            ForkingPickler.loads(ForkingPickler.dumps(error))
        except Exception:  # of a class that only its own process can make
            error = RuntimeError(f"{type(error).__name__}: {error}")
        return cls(error, where)

    def reraise(self) -> None:
        if isinstance(self.error, DspregError):  # says all itself
            raise self.error from None
        raise self.error from ReaderTraceback(f"\n\nin a process that reads images:\n{self.where}")


class ReaderTraceback(Exception):
    """Where an error of a reader came from."""


@dataclass(frozen=True)
class SentTensor:
    """A tensor without its numbers, or with few of them."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    content: bytes | None  # None: of a large one, at `start` of what follows
    start: int = 0

    def unpack(self, following: Any) -> Tensor:
        if 0 in self.shape:
            return torch.empty(self.shape, dtype=self.dtype)
        buffer = following if self.content is None else bytearray(self.content)
        flat = torch.frombuffer(buffer, dtype=self.dtype, count=math.prod(self.shape), offset=self.start)
        return flat.as_strided(self.shape, self.stride)


@dataclass(frozen=True)
class SentBatch:
    """A batch with its large tensors apart, which come after it: as a file in memory, or through the pipe."""

    value: Any
    size: int  # bytes of all large tensors
    in_memory: bool

    def unpack(self, connection: Connection) -> Any:
        following = self._following(connection)
        return replace_leaves(self.value, SentTensor, lambda sent: sent.unpack(following))

    def _following(self, connection: Connection) -> Any:
        if not self.size:
            return None
        if not self.in_memory:
            return bytearray(connection.recv_bytes())
        handle = recv_handle(connection)
        try:
            return mmap.mmap(handle, self.size)
        finally:
            os.close(handle)


def send_batch(connection: Connection, batch: Any) -> None:
    large: list[memoryview] = []
    size = 0

    def pack(tensor: Tensor) -> SentTensor:
        nonlocal size
        dense = tensor.is_contiguous() or tensor.is_contiguous(memory_format=torch.channels_last)
        tensor = tensor.detach() if dense else tensor.detach().contiguous()
        flat = tensor.as_strided((tensor.numel(),), (1,))
        content = flat.view(torch.uint8).numpy().data
        about = (tensor.dtype, tuple(tensor.shape), tensor.stride())
        if content.nbytes < LARGE:
            return SentTensor(*about, content.tobytes())
        start = size
        size += -(-content.nbytes // 64) * 64  # every tensor starts where its numbers may lie
        large.extend((content, memoryview(bytes(size - start - content.nbytes))))
        return SentTensor(*about, None, start)

    value = replace_leaves(batch, Tensor, pack)
    memory = write_to_memory(large) if large else None
    connection.send(SentBatch(value, size, memory is not None))
    if memory is not None:
        send_handle(connection, memory, None)
        os.close(memory)
    elif large:
        connection.send_bytes(b"".join(large))


def write_to_memory(parts: Sequence[memoryview]) -> int | None:
    """A file descriptor of nameless memory with these bytes, which no /dev/shm limits; None where there is none."""
    if not hasattr(os, "memfd_create"):
        return None
    try:
        memory = os.memfd_create("batch")
    except OSError:
        return None
    try:
        for part in parts:
            while len(part):
                part = part[os.write(memory, part) :]
    except OSError:
        os.close(memory)
        return None
    return memory


def replace_leaves(value: Any, kind: type, make: Callable[[Any], Any]) -> Any:
    """The same lists, tuples and dictionaries with everything of a kind replaced."""
    if isinstance(value, kind):
        return make(value)
    if isinstance(value, dict):
        return {key: replace_leaves(each, kind, make) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(replace_leaves(each, kind, make) for each in value)
    return value


@atexit.register
def _end_all() -> None:
    # those whose batches were not used up: Python sends them SIGTERM at exit, and would wait for them without end
    if not READERS:
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C in between would leave some of them
    end_readers(READERS)
    signal.signal(signal.SIGINT, before)

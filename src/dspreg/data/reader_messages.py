"""What travels between the trainer and the processes that read: requests there, batches and errors back."""

from __future__ import annotations

import io
import math
import mmap
import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler, recv_handle, send_handle
from typing import Any

import torch
from torch import Tensor

from dspreg.errors import DspregError, ResourceError

LARGE = 65_536  # bytes; smaller tensors go through the pipe, so that labels that are kept keep no images

SHARED: list[Any] = []  # in a process that reads: what it has had since it was started


def pack_request(source: Any, key: Any, places: Mapping[int, int]) -> bytes:
    """A request for source[key], for `unpack_request` in the process.

    Args:
        source: It and its parts may be among what the process has; that is not sent.
        key: What to ask it for.
        places: id of what the process has → its position in `SHARED` there.
    """
    buffer = io.BytesIO()
    RequestPickler(buffer, places).dump((source, key))
    return buffer.getvalue()


def unpack_request(request: bytes) -> tuple[Any, Any]:
    source, key = ForkingPickler.loads(request)
    return source, key


class RequestPickler(ForkingPickler):
    """Writes only the position of what the process has."""

    def __init__(self, file: io.BytesIO, places: Mapping[int, int]) -> None:
        super().__init__(file)
        self.places = places

    def reducer_override(self, value: Any) -> Any:
        place = self.places.get(id(value))
        return NotImplemented if place is None else (shared_object, (place,))


def shared_object(place: int) -> Any:
    return SHARED[place]


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
        try:
            handle = recv_handle(connection)
        except RuntimeError as error:  # the system drops a descriptor that this process has no number left for
            raise ResourceError(
                "no file descriptor is left to receive images with; fewer --workers, or more of ulimit -n"
            ) from error
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

"""stdout and stderr as commands see them: a closed pipe or a full disk stops no command halfway."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from typing import Any, TextIO


class Output(io.TextIOBase):
    """A stream that takes everything and remembers what went wrong.

    A command that cancels a hundred runs must not stop at the tenth because nobody reads what it prints.

    Args:
        stream: Where the text goes; None: it was closed before we were started.

    Attributes:
        failure: Why text was lost, from then on.
    """

    def __init__(self, stream: TextIO | None):
        self.stream = stream
        self.failure: OSError | None = None
        if isinstance(stream, io.TextIOWrapper):  # print a table even if the terminal lacks √ or →
            stream.reconfigure(errors="backslashreplace")

    def write(self, text: str) -> int:
        with self._remembering():
            if self.stream is None:
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))
            self.stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._remembering():
            if self.stream is not None:
                self.stream.flush()

    @contextmanager
    def _remembering(self) -> Iterator[None]:
        if self.failure is None:
            try:
                yield
            except OSError as error:
                self.failure = error
        else:
            with suppress(OSError):
                yield

    # What programs ask a stream for.

    def isatty(self) -> bool:
        return self.stream is not None and self.stream.isatty()

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        if self.stream is None:
            raise io.UnsupportedOperation("fileno")
        return self.stream.fileno()

    def __getattr__(self, name: str) -> Any:  # encoding, buffer and whatever else the stream has
        if self.stream is None:
            raise AttributeError(name)
        return getattr(self.stream, name)


@contextmanager
def protected_output() -> Iterator[tuple[Output, Output]]:
    """stdout and stderr are streams that don't fail, for as long as a command runs."""
    keep_standard_handles()
    with redirect_stdout(Output(sys.stdout)) as out, redirect_stderr(Output(sys.stderr)) as err:
        yield out, err


def keep_standard_handles() -> None:
    """A handle that was closed before us is opened on nothing: else the next file would get its number, and what a
    library prints."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            with suppress(OSError):
                os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this one


def failure_reason(out: Output) -> str:
    """Why output was lost, for a message; nothing if it was not, or if its reader left on purpose, as `head` does."""
    out.flush()
    if out.failure is None:
        return ""
    with suppress(OSError, ValueError, io.UnsupportedOperation):  # or Python would try again, and complain, at its end
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, out.fileno())
        os.close(nothing)
    return "" if isinstance(out.failure, BrokenPipeError) else out.failure.strerror or str(out.failure)

"""Process names that are never reused, and whether such a process has ended."""

from __future__ import annotations

import os
import socket
from pathlib import Path


def this_process() -> str:
    """Machine, namespace, number and start of this process."""
    return f"{_place()} {os.getpid()} {_start(os.getpid()) or 0}"


def is_gone(name: str) -> bool:
    """Whether the process of that name has certainly ended; False if this machine can't know."""
    place, number, start, *_ = [*name.rsplit(" ", 2), "", ""]
    if place != _place() or not number.isdecimal() or len(number) > 10 or start == "0":
        return False
    return _start(int(number)) != start


def machine_and_pid(name: str) -> tuple[str, int | None]:
    """Machine and number of a process, for display; (name, None) if it is no such name."""
    place, number, _, *_ = [*name.rsplit(" ", 2), "", ""]
    return (place.partition(" ")[0], int(number)) if number.isdecimal() and len(number) <= 10 else (name, None)


def _place() -> str:
    """Machine and process namespace: a container numbers its processes separately."""
    try:
        return f"{socket.gethostname()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def _start(number: int) -> str | None:
    """Start time of a process, since numbers are reused. None: there is no such process, or it is a zombie."""
    try:
        text = Path(f"/proc/{number}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    state, *rest = text.rpartition(")")[2].split()  # the program's name, in brackets, may contain anything
    return None if state in "ZX" else rest[18]

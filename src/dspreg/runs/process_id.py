"""Names of processes that no later process has, and whether one of them is gone."""

from __future__ import annotations

import os
import socket
from pathlib import Path


def this_process() -> str:
    """Machine, namespace, number and start of this process."""
    return f"{_place()} {os.getpid()} {_start(os.getpid()) or 0}"


def is_gone(name: str) -> bool:
    """Whether the process of that name has ended, for certain; False where it can't be told from here."""
    place, number, start, *_ = [*name.rsplit(" ", 2), "", ""]
    if place != _place() or not number.isdecimal() or len(number) > 10 or start == "0":
        return False
    return _start(int(number)) != start


def machine_and_pid(name: str) -> tuple[str, int | None]:
    """Machine and number of a process, for people; the name as it is, and None, where it is no such name."""
    place, number, _, *_ = [*name.rsplit(" ", 2), "", ""]
    return (place.partition(" ")[0], int(number)) if number.isdecimal() and len(number) <= 10 else (name, None)


def _place() -> str:
    """Where the number of a process means that process: a container has numbers of its own."""
    try:
        return f"{socket.gethostname()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def _start(number: int) -> str | None:
    """When it was started, by the machine's clock: numbers are used again. None: it is not there, or a zombie."""
    try:
        text = Path(f"/proc/{number}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    state, *rest = text.rpartition(")")[2].split()  # its own name, in brackets, may hold anything
    return None if state in "ZX" else rest[18]

"""Children that may harm themselves: their limits, mounts and signals end with them."""

import ctypes
import json
import os
import resource
import select
import signal
import traceback
from pathlib import Path

import pytest

CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x20000, 0x4000, 1 << 18


def in_child(act, timeout=60):
    """What `act()` returns, as JSON, from a fork of this process."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            said = {"result": act()}
        except BaseException as error:
            said = {"error": "".join(traceback.format_exception(error))}
        try:
            with os.fdopen(writing, "w") as file:
                json.dump(said, file)
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        ready, _, _ = select.select([file], [], [], timeout)
        if not ready:
            os.kill(child, signal.SIGKILL)
        text = file.read() if ready else ""
    os.waitpid(child, 0)
    assert text, f"no answer within {timeout} s"
    said = json.loads(text)
    assert "error" not in said, said["error"]
    return said["result"]


def limit_memory(more):
    """Let this process have so many bytes more than it has."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + more, resource.RLIM_INFINITY))


def limit_descriptors(more):
    """Let this process open so many files more than it has open; numbers that are free in between are taken first."""
    highest = max(map(int, os.listdir("/proc/self/fd")))
    while (taken := os.open(os.devnull, os.O_RDONLY)) < highest:
        pass
    os.close(taken)
    resource.setrlimit(resource.RLIMIT_NOFILE, (taken + more, taken + more))


def limit_shared_memory(size):
    """Give this process a /dev/shm of its own, of so many bytes. False where that is not permitted."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS) or libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None):
        return False
    return libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, f"size={size}".encode()) == 0


def require_mounts():
    """Skip a test where a process can't mount."""
    if not hasattr(os, "fork") or not in_child(lambda: limit_shared_memory(2**20)):
        pytest.skip("a mount of one's own is not permitted here: run as root, or with CAP_SYS_ADMIN")

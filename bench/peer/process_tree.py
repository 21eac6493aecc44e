"""What a command costs with all processes that it starts: CPU seconds, wall time, processes, and memory if asked.

Linux only. CPU seconds are those that the kernel counts for processes that were waited for. Who loses its parent on
the way is adopted here and waited for, so that nobody's work is missing.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ADOPT = 36  # PR_SET_CHILD_SUBREAPER
LOOK_EVERY = 0.1  # seconds between two looks at which processes there are
WEIGH_EVERY = 1.0  # seconds between two looks at their memory, which takes milliseconds for each of them


@dataclass(frozen=True)
class Cost:
    """Of one command.

    Attributes:
        cpu: Seconds of all its processes, user and system.
        wall: Seconds until it ended.
        processes: That were seen, itself included; those that live for less than a tenth of a second may be missing.
        together: Of them at the same time.
        memory: Gigabytes at the peak: the sum of PSS, in which shared pages count once. None unless asked for.
    """

    cpu: float
    wall: float
    processes: int
    together: int
    memory: float | None


def measure_command(
    command: Sequence[str], environment: Mapping[str, str], folder: Path, *, weigh: bool = False, ends: int = 0
) -> Cost:
    """Run a command to its end.

    Args:
        command: And its arguments.
        environment: All variables that it sees.
        folder: Where it runs.
        weigh: Also look at the memory, which disturbs the times a little.
        ends: The exit code to expect; another one ends the benchmark with what the command printed.
    """
    adopt(True)
    before, started = _used_by_children(), time.perf_counter()
    with tempfile.TemporaryFile() as printed:
        process = subprocess.Popen(
            command, env=dict(environment), cwd=folder, stdin=subprocess.DEVNULL, stdout=printed, stderr=printed,
            start_new_session=True,
        )  # fmt: skip
        watch = _Watch(process.pid, weigh)
        watch.start()
        try:
            code = process.wait()
        finally:
            wall = time.perf_counter() - started
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # our own session: what the command left behind
            watch.stop()
            wait_for_group(process.pid)
            adopt(False)
        if code != ends:
            printed.seek(0)
            said = printed.read().decode(errors="replace")
            raise SystemExit(f"{' '.join(command)}\nended with exit code {code}:\n{said[-4000:]}")
    cpu = _used_by_children() - before
    return Cost(cpu, wall, len(watch.seen), watch.together, watch.memory if weigh else None)


def _used_by_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def adopt(orphans: bool) -> None:
    """Whether processes whose parent has ended become children of this one."""
    ctypes.CDLL(None).prctl(ADOPT, int(orphans), 0, 0, 0)


def wait_for_group(leader: int) -> None:
    """Wait for what is left of a process group. Other children of this process are not waited for."""
    with suppress(ChildProcessError):
        while True:
            os.waitpid(-leader, 0)


class _Watch(threading.Thread):
    """Looks at a process and its descendants until told to stop."""

    def __init__(self, root: int, weigh: bool) -> None:
        super().__init__(daemon=True)
        self.root, self.weigh = root, weigh
        self.seen: set[int] = {root}
        self.together, self.memory = 1, 0.0
        self._over = threading.Event()

    def run(self) -> None:
        weighed = 0.0
        while not self._over.wait(LOOK_EVERY):
            there = list(descendants(self.root))
            self.seen.update(there)
            self.together = max(self.together, len(there))
            if self.weigh and time.perf_counter() - weighed > WEIGH_EVERY:
                self.memory = max(self.memory, sum(map(proportional_size, there)))
                weighed = time.perf_counter()

    def stop(self) -> None:
        self._over.set()
        self.join()


def descendants(root: int) -> Iterator[int]:
    """A process and all that it and its children started, as far as they are there."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with suppress(OSError, IndexError):
                fields = Path("/proc", name, "stat").read_bytes().rpartition(b")")[2].split()
                if fields[0] != b"Z":  # it has ended, and its parent has not looked yet
                    children.setdefault(int(fields[1]), []).append(int(name))
    waiting = [root] if Path("/proc", str(root)).exists() else []
    while waiting:
        pid = waiting.pop()
        yield pid
        waiting += children.get(pid, ())


def proportional_size(pid: int) -> float:
    """Gigabytes of a process; a page that n processes share counts 1/n in each."""
    with suppress(OSError):
        for line in Path("/proc", str(pid), "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024 / 1e9
    return 0.0

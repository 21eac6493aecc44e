"""The command, killed or refused by the system itself at chosen system calls, resumed and compared.

    python tests/faults/strace_check.py --points 60

A cross-check of `every_operation.py`, which sees Python's calls and not the system's. strace, attached to a process
that has torch loaded and is about to run the command, counts the calls of an undisturbed training that touch its folder
(fsync, rename, unlink, write, mkdir, ftruncate). The command is then run again for points spread over all of them:
SIGKILL at that call, or the call fails with ENOSPC, EIO, EDQUOT or EINTR. It must be killed, or end with exit code 6,
or go on as if nothing had been (EINTR); resumed, it ends in the same bits. A point at which nothing came is wrong, too.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from faults import small
from faults.environment import Environment
from faults.results import Part

CALLS = ("fsync", "rename", "unlink", "write", "mkdir", "ftruncate")
HOW = ("signal=SIGKILL", "signal=SIGKILL", "error=ENOSPC", "error=EIO", "signal=SIGKILL", "error=EDQUOT", "error=EINTR")
PTRACER = 0x59616D61  # PR_SET_PTRACER: strace is no parent of what it traces
LINE = re.compile(r"^(?:\d+ +)?(\w+)\((.*)")


def traced(environment: Environment, out: Path, log: Path, *options: str) -> tuple[int, str]:
    """The command in a forked process under strace; its exit code, negative for a signal, and what it said."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            ctypes.CDLL(None).prctl(PTRACER, ctypes.c_ulong(-1))
            said = os.open(log.with_suffix(".said"), os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
            os.dup2(said, 1)
            os.dup2(said, 2)
            sys.stdout, sys.stderr = (os.fdopen(fd, "w", closefd=False) for fd in (1, 2))
            os.close(writing)
            os.read(reading, 1)  # until strace is there
            code = environment.command(out)
            sys.stderr.flush()
        finally:
            os._exit(code)
    os.close(reading)
    trace = ["strace", "-f", "-y", "-qq", "-e", f"trace={','.join(CALLS)}", *options, "-o", str(log), "-p", str(child)]
    tracer = subprocess.Popen(trace, stderr=subprocess.PIPE, text=True)
    while "TracerPid:\t0" in Path(f"/proc/{child}/status").read_text(encoding="ascii", errors="replace"):
        if tracer.poll() is not None:
            raise RuntimeError(f"strace: {tracer.stderr.read() if tracer.stderr else ''}")
        time.sleep(0.002)
    os.close(writing)
    _, status = os.waitpid(child, 0)
    tracer.communicate()
    return os.waitstatus_to_exitcode(status), log.with_suffix(".said").read_text(encoding="utf-8", errors="replace")


def count_calls(log: Path, out: Path) -> list[tuple[str, int]]:
    """The calls that touch the folder: which one, and the how-many-th of its name."""
    seen: Counter[str] = Counter()
    found = []
    for line in log.read_text(errors="replace").splitlines():
        match = LINE.match(line)
        if match and match[1] in CALLS:
            seen[match[1]] += 1
            if str(out) in match[2]:
                found.append((match[1], seen[match[1]]))
    return found


def check_points(points: int) -> tuple[dict[str, Any], bool]:
    wrong: list[str] = []
    by_kind: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="faults-") as place:
        folder = Path(place)
        environment = Environment(folder)
        out = folder / "traced" / "run"
        out.parent.mkdir()
        code, said = traced(environment, out, folder / "log")
        if code:
            raise RuntimeError(f"the command failed under strace: {said[-500:]}")
        calls = count_calls(folder / "log", out)
        shutil.rmtree(out)
        chosen = [calls[n * len(calls) // points] for n in range(points)] if points < len(calls) else calls
        for n, (call, number) in enumerate(chosen):
            how = HOW[n % len(HOW)]
            code, said = traced(environment, out, folder / "log", "-e", f"inject={call}:{how}:when={number}")
            came = code == -signal.SIGKILL or "(INJECTED)" in (folder / "log").read_text(errors="replace")
            by_kind[how] += came
            verdict = "" if came else "it never came"
            if came and code not in ((-signal.SIGKILL,) if "SIGKILL" in how else (0, 6)):
                verdict = f"exit code {code}: {said[-200:]}"
            elif "Traceback" in said:
                verdict = f"a traceback: {said[-200:]}"
            elif environment.command(out) or small.ending(out) != environment.ending:
                verdict = "another ending"
            if verdict:
                wrong.append(f"{call} {number}, {how}: {verdict}")
                print(wrong[-1], flush=True)
            shutil.rmtree(out, ignore_errors=True)
    figures = {"calls": len(calls), "points": len(chosen), "same": len(chosen) - len(wrong), "by kind": dict(by_kind)}
    return figures | ({"wrong": wrong[:5]} if wrong else {}), not wrong


def main(words: list[str] | None = None) -> int:
    part = Part("strace_check", __doc__)
    part.parser.add_argument("--points", type=int, default=10)
    options = part.parse(words)
    if not shutil.which("strace"):
        part.parser.exit(2, "strace is not installed\n")
    figures, passed = check_points(options.points)
    return part.finish(figures, passed=passed)


if __name__ == "__main__":
    sys.exit(main())

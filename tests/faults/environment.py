"""The real command in places and under limits that do not suit it: said, with its exit code, and nothing is lost.

    python tests/faults/environment.py --sizes 30

Disks that are full at every stage (a tmpfs of a stepped size, in a mount namespace of its own), places that may only be
read (as a user who isn't root, and by a read-only mount), no shared memory, few file descriptors, little memory, files
that may not grow; SIGSTOP and SIGCONT, SIGHUP, SIGTERM, SIGINT, and storms of them. Every case has exit codes that are
expected, no traceback, and, once the hindrance is gone, the ending of a run left alone to the last bit. Each is a
process forked from one that has torch loaded. Cases that need root are left out, and named, where there is none.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import random
import resource
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from dspreg.cli import main as command_line
from faults import small
from faults.results import Part
from helpers import tiny

NOBODY = 65534
TIMEOUT = 60.0  # seconds that no case may take
NEW_NAMESPACE = 0x20000  # CLONE_NEWNS
READ_ONLY, REMOUNT, BIND, RECURSIVE, PRIVATE = 1, 32, 4096, 16384, 1 << 18  # of mount(2)
OK, RESOURCE, PREEMPTED, INTERRUPTED = 0, 6, 75, 130


@dataclass(frozen=True)
class Case:
    """One hindrance.

    Attributes:
        name: For the table.
        codes: Exit codes that are right while it is there.
        hinder: Called in the process before the command; returns what removes the hindrance.
        words: Further words of the command.
        signals: Sent to it by its parent: seconds since it was started, and which.
    """

    name: str
    codes: tuple[int, ...]
    hinder: Callable[[Path], Callable[[], None]] = lambda folder: lambda: None
    words: tuple[str, ...] = ()
    signals: tuple[tuple[float, int], ...] = ()
    needs_root: bool = False


def mount(kind: str, place: Path | str, flags: int = 0, options: str = "", source: Path | str = "none") -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    given = [str(text).encode() for text in (source, place, kind)]
    if libc.mount(*given, ctypes.c_ulong(flags), options.encode()):
        raise OSError(ctypes.get_errno(), f"mount {kind} {place}: {os.strerror(ctypes.get_errno())}")


def unmount(place: str) -> None:
    if ctypes.CDLL(None, use_errno=True).umount2(place.encode(), 2):  # though somebody may have it open
        raise OSError(ctypes.get_errno(), f"unmount {place}")


def own_namespace() -> None:
    """What is mounted from now on is seen by this process alone."""
    if ctypes.CDLL(None, use_errno=True).unshare(NEW_NAMESPACE):
        raise OSError(ctypes.get_errno(), "unshare")
    mount("", "/", RECURSIVE | PRIVATE)


def full_disk(kilobytes: int) -> Callable[[Path], Callable[[], None]]:
    def hinder(folder: Path) -> Callable[[], None]:
        own_namespace()
        mount("tmpfs", folder, 0, f"size={kilobytes}k")
        return lambda: mount("tmpfs", folder, REMOUNT, "size=64m")

    return hinder


def read_only_mount(folder: Path) -> Callable[[], None]:
    own_namespace()
    mount("", folder, BIND, source=folder)
    mount("", folder, BIND | REMOUNT | READ_ONLY)
    return lambda: mount("", folder, BIND | REMOUNT)


def read_only_images(folder: Path) -> Callable[[], None]:
    return read_only_mount(folder.parent / "images" / "woods")


def nobody(mode: int) -> Callable[[Path], Callable[[], None]]:
    def hinder(folder: Path) -> Callable[[], None]:
        folder.chmod(mode)
        for parent in (folder.parent, folder.parent.parent):
            if parent.stat().st_uid == 0 and parent.name.startswith(("faults-", "case-")):
                parent.chmod(0o755)
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, 0)
        os.setresuid(NOBODY, NOBODY, 0)  # root is kept for later

        def remove() -> None:
            os.setresuid(0, 0, 0)
            os.setresgid(0, 0, 0)

        return remove

    return hinder


def shared_memory(options: str | None) -> Callable[[Path], Callable[[], None]]:
    def hinder(folder: Path) -> Callable[[], None]:
        own_namespace()
        if options is None:
            mount("tmpfs", "/dev/shm", READ_ONLY)
        else:
            mount("tmpfs", "/dev/shm", 0, options)
        return lambda: unmount("/dev/shm")

    return hinder


def limit(which: int, value: Callable[[], int]) -> Callable[[Path], Callable[[], None]]:
    def hinder(folder: Path) -> Callable[[], None]:
        before = resource.getrlimit(which)
        resource.setrlimit(which, (value(), before[1]))
        return lambda: resource.setrlimit(which, before)

    return hinder


def open_now() -> int:
    """The lowest number that a new descriptor would have."""
    free = os.dup(0)
    os.close(free)
    return free


def memory_now() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()


def small_files(folder: Path) -> Callable[[], None]:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # as Python has it
    return limit(resource.RLIMIT_FSIZE, lambda: 200_000)(folder)


def cases(sizes: int, chance: random.Random) -> list[Case]:
    # smaller than run.json up to nearly all that a run needs
    steps = [int(8 * (4000 / 8) ** (n / max(1, sizes - 1))) for n in range(sizes)]
    found = [Case(f"a disk of {k} kB", (OK, RESOURCE), full_disk(k), needs_root=True) for k in steps]
    found += [
        Case("--out on a read-only mount", (RESOURCE,), read_only_mount, needs_root=True),
        Case("images on a read-only mount", (OK,), read_only_images, needs_root=True),
        Case("--out in a folder of another user", (RESOURCE,), nobody(0o555), needs_root=True),
        Case("a user who may write there", (OK,), nobody(0o777), needs_root=True),
        Case("/dev/shm that can't be written, a reader", (OK, RESOURCE), shared_memory(None), ("--workers", "1"),
             needs_root=True),
        Case("/dev/shm of 4 kB, two readers", (OK, RESOURCE), shared_memory("size=4k"), ("--workers", "2"),
             needs_root=True),
        Case("64 file descriptors", (OK,), limit(resource.RLIMIT_NOFILE, lambda: 64)),
        Case("64 file descriptors, two readers", (OK, RESOURCE), limit(resource.RLIMIT_NOFILE, lambda: 64),
             ("--workers", "2")),
        Case("files of at most 200 kB", (RESOURCE,), small_files),
    ]  # fmt: skip
    for more in range(13):
        few = limit(resource.RLIMIT_NOFILE, lambda more=more: open_now() + more)
        found.append(Case(f"{more} file descriptors more", (OK, RESOURCE), few))
    for room in (1, 4, 16, 64):
        more = limit(resource.RLIMIT_AS, lambda room=room: memory_now() + room * 2**20)
        found.append(Case(f"memory for {room} MB more", (OK, RESOURCE), more))
    moments = [chance.uniform(0, 0.3) for _ in range(12)]
    stops = tuple((t + late, s) for t in sorted(moments) for late, s in ((0, signal.SIGSTOP), (0.02, signal.SIGCONT)))
    found.append(Case("SIGSTOP and SIGCONT, twelve times", (OK,), signals=stops))
    for number in range(4):
        at = chance.uniform(0.005, 0.15)
        found += [
            Case(f"SIGTERM after {1000 * at:.0f} ms", (OK, PREEMPTED), signals=((at, signal.SIGTERM),)),
            Case(f"SIGHUP after {1000 * at:.0f} ms", (OK, PREEMPTED), signals=((at, signal.SIGHUP),)),
            Case(f"SIGINT after {1000 * at:.0f} ms", (OK, INTERRUPTED), signals=((at, signal.SIGINT),)),
        ]
        storm = tuple((at + chance.uniform(0, 0.05), signal.SIGTERM) for _ in range(30))
        found.append(Case(f"a storm of SIGTERM, {number + 1}", (OK, PREEMPTED), signals=tuple(sorted(storm))))
    mixed = [(chance.uniform(0.01, 0.1), chance.choice((signal.SIGTERM, signal.SIGHUP))) for _ in range(30)]
    found.append(Case("SIGTERM and SIGHUP by turns", (OK, PREEMPTED), signals=tuple(sorted(mixed))))
    return found


class Environment:
    """Runs cases, each in a folder and a process of its own.

    Args:
        folder: To work in; not on /dev/shm, which some of the cases replace.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        (folder / "images").mkdir()
        self.root = small.make_images(folder / "images")
        folder.chmod(0o755)
        self.command(folder / "warm" / "run")
        self.ending = small.ending(folder / "warm" / "run")
        self.expected = json.dumps(self.ending, sort_keys=True)

    def words(self, out: Path) -> list[str]:
        settings = tiny.settings(self.root, **small.SMALL)
        targets = settings.pop("targets")
        texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in settings.items()}
        flags = [word for name, text in texts.items() for word in ("--set", f"{name}={text}")]
        how = ["--threads", "1", "--workers", "0", "--save-every", "2", "--keep", "all", "--check-images", "never"]
        return ["train", *flags, "--target", *targets, *how, "--out", str(out)]

    def command(self, out: Path, words: tuple[str, ...] = ()) -> int:
        try:
            return command_line([*self.words(out), *words])
        except SystemExit as ending:
            return int(ending.code or 0)

    def run(self, number: int, case: Case) -> str:
        """Empty where all was as expected."""
        place = self.folder / f"case-{number}"
        (place / "out").mkdir(parents=True)
        (place / "images").symlink_to(self.folder / "images")
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            self._child(case, place, writing)
        os.close(writing)
        started = time.monotonic()
        os.read(reading, 1)  # the command begins
        begun = time.monotonic()
        for at, which in case.signals:
            time.sleep(max(0.0, begun + at - time.monotonic()))
            if select.select([reading], [], [], 0)[0]:  # it is over: what comes now is for nobody
                break
            os.kill(child, which)
        if case.signals:
            os.kill(child, signal.SIGCONT)
        text = b""
        while True:
            left = started + TIMEOUT - time.monotonic()
            if left <= 0 or not select.select([reading], [], [], left)[0]:
                os.kill(child, signal.SIGUSR1)  # it says where it hangs
                time.sleep(1)
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return f"no end after {TIMEOUT:.0f} s: {(place / 'log').read_text(errors='replace')[-1500:]}"
            said = os.read(reading, 65536)
            if not said:
                break
            text += said
        os.close(reading)
        _, status = os.waitpid(child, 0)
        return self._judge(case, text, status)

    def _judge(self, case: Case, text: bytes, status: int) -> str:
        if not text.endswith(b"}"):
            how = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"code {status >> 8}"
            return f"the process itself ended, by {how}: {text[-300:]!r}"
        told = json.loads(text[text.index(b"{") :])
        if told["error"]:
            return str(told["error"])
        if told["code"] not in case.codes:
            return f"exit code {told['code']}, wanted {case.codes}: {told['said'][-300:]}"
        if "Traceback" in told["said"] or "this is a bug" in told["said"]:
            return f"a traceback: {told['said'][-300:]}"
        if told["code"] and not told["said"].strip():
            return "not a word"
        if told["resumed"] != 0 or told["ending"] != self.expected:
            return f"resumed with exit code {told['resumed']}, another ending: {told['said'][-300:]}"
        return ""

    def _child(self, case: Case, place: Path, writing: int) -> None:
        told: dict[str, Any] = {"error": "", "said": ""}
        log = os.open(place / "log", os.O_CREAT | os.O_RDWR)
        try:
            os.setpgid(0, 0)
            os.dup2(log, 1)
            os.dup2(log, 2)
            sys.stdout, sys.stderr = (os.fdopen(fd, "w", closefd=False) for fd in (1, 2))
            faulthandler.register(signal.SIGUSR1, file=log)
            remove = case.hinder(place / "out")
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
            os.write(writing, b"x")
            told["code"] = self.command(place / "out" / "run", case.words)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            os.write(writing, b" ")
            sys.stderr.flush()
            told["said"] = os.pread(log, 100_000, 0).decode(errors="replace")
            remove()
            told["resumed"] = self.command(place / "out" / "run", case.words)
            told["ending"] = json.dumps(small.ending(place / "out" / "run"), sort_keys=True)
        except BaseException:
            told["error"] = traceback.format_exc()[-600:]
            told["error"] += told["said"][-300:]
        finally:
            os.write(writing, json.dumps(told).encode())
            os._exit(0)


def run_cases(sizes: int, seed: int, only: str = "") -> tuple[dict[str, Any], bool]:
    wrong, left_out, done = [], [], 0
    with tempfile.TemporaryDirectory(prefix="faults-") as place:
        environment = Environment(Path(place))
        for number, case in enumerate(cases(sizes, random.Random(seed))):
            if only not in case.name:
                continue
            if case.needs_root and os.getuid():
                left_out.append(case.name)
                continue
            done += 1
            said = environment.run(number, case)
            if said:
                wrong.append(f"{case.name}: {said}")
                print(f"NOT AS EXPECTED  {wrong[-1]}", flush=True)
    figures: dict[str, Any] = {"cases": done, "as expected": done - len(wrong)}
    figures |= {"not as expected": [text[:1500] for text in wrong[:10]]} if wrong else {}
    figures |= {"left out, they need root": left_out} if left_out else {}
    return figures, not wrong


def main(words: list[str] | None = None) -> int:
    part = Part("environment", __doc__)
    part.parser.add_argument("--sizes", type=int, default=12, help="of the disk that is full")
    part.parser.add_argument("--only", default="", help="cases with this in their name")
    options = part.parse(words)
    figures, passed = run_cases(options.sizes, options.seed, options.only)
    return part.finish(figures, passed=passed)


if __name__ == "__main__":
    sys.exit(main())

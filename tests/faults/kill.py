"""Train, kill with SIGKILL, start again until it ends, and compare with a run left alone.

    python tests/faults/kill.py --runs 300 --processes 2

Each training is a process forked from one that has torch loaded. A timer of the kernel sends SIGKILL: at a random
moment of the whole training, or aimed into one phase, after a random part of it (measuring c, stepping, evaluating,
checkpointing, finishing, clearing, but also starting and resuming). Where it was is read from shared memory afterwards,
and the phase that was hit least is aimed at next. One run in five is killed again and again before it comes to its next
checkpoint, one in twenty is of a network with batch norm on augmented images, some read images in another process.
Models, profiles, records, refreshes, selected step and card must be those of the run left alone to the last bit.
Exit code 1 if one is not, if there were fewer than 2.5 kills a run, or fewer than a twentieth of them in any phase.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from faults import small
from faults.results import Emit, Part, spread

PER_RUN, LEAST_SHARE = 2.5, 0.05
ANY = -1  # a moment of the whole training, not of a phase
STEPPING, CHECKPOINTING = small.PHASES.index("stepping"), small.PHASES.index("checkpointing")


@dataclass(frozen=True)
class Aim:
    """When SIGKILL is to come: so many seconds after a phase was entered for the n-th time."""

    phase: int
    entry: int
    delay: float


class Blackboard:
    """Shared with a forked training: the phase it is in, and how many checkpoints it saved."""

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, 2)

    def clear(self) -> None:
        self.memory[:] = bytes(2)

    @property
    def phase(self) -> int:
        return self.memory[0]

    @property
    def saved(self) -> int:
        return self.memory[1]


def kill_myself_after(seconds: float) -> None:
    """The kernel sends SIGKILL to this process then, wherever it is: in Python, in torch, or in a system call."""
    libc = ctypes.CDLL(None, use_errno=True)
    event = (ctypes.c_byte * 64)()  # struct sigevent: a value of 8 bytes, the signal, and 0 for "send a signal"
    ctypes.cast(event, ctypes.POINTER(ctypes.c_int))[2] = signal.SIGKILL
    timer = ctypes.c_void_p()
    if libc.timer_create(ctypes.c_int(time.CLOCK_MONOTONIC), event, ctypes.byref(timer)):
        raise OSError(ctypes.get_errno(), "no timer")
    nanoseconds = max(1, int(seconds * 1e9))
    when = (ctypes.c_long * 4)(0, 0, nanoseconds // 10**9, nanoseconds % 10**9)
    if libc.timer_settime(timer, 0, when, None):
        raise OSError(ctypes.get_errno(), "no timer")


class Killer:
    """Kills trainings of one kind, and knows what they should come to.

    Args:
        folder: To work in.
        settings: What is trained.
        seed: Of the moments.
    """

    def __init__(self, folder: Path, settings: dict[str, Any], seed: int):
        self.folder, self.settings, self.chance = folder, settings, random.Random(seed)
        folder.mkdir(parents=True)
        self.root = small.make_images(folder)
        self.board = Blackboard()
        self.by_phase: Counter[int] = Counter(dict.fromkeys(range(len(small.PHASES)), 0))
        small.run(self.root, folder / "warm", settings)  # what is loaded late
        self.seconds = self._durations()
        self.expected = small.ending(folder / "alone")

    def _durations(self) -> dict[int, list[float]]:
        """Of each entry into each phase, in a run left alone; and of all of it."""
        found: dict[int, list[float]] = {n: [] for n in range(len(small.PHASES))}
        under_way: list[tuple[int, float]] = []
        started = time.perf_counter()

        def entered(phase: int) -> None:
            under_way.append((phase, time.perf_counter()))
            if phase and not found[0]:
                found[0].append(time.perf_counter() - started)  # up to the first phase that has a name

        def left(_: int) -> None:
            phase, since = under_way.pop()
            found[phase].append(time.perf_counter() - since)

        with small.watched(entered, left):
            small.run(self.root, self.folder / "alone", self.settings)
        found[ANY] = [time.perf_counter() - started]
        return found

    def attempt(self, out: Path, aim: Aim | None, **how: Any) -> int | None:
        """One process that trains; the phase it was killed in, or None where it came to its end."""
        self.board.clear()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.setpgid(0, 0)
                self._train(out, aim, how)
                code = 0
            except BaseException:
                (self.folder / "why").write_text(traceback.format_exc(), encoding="utf-8")
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # processes that read its images
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
            return self.board.phase
        if status:
            raise AssertionError((self.folder / "why").read_text(encoding="utf-8"))
        return None

    def _train(self, out: Path, aim: Aim | None, how: dict[str, Any]) -> None:
        seen: Counter[int] = Counter()

        def entered(phase: int) -> None:
            self.board.memory[0] = phase
            if aim and aim.phase == phase and seen[phase] == aim.entry:
                kill_myself_after(aim.delay)
            seen[phase] += 1

        def left(phase: int) -> None:
            if self.board.memory[0] == CHECKPOINTING:
                self.board.memory[1] = min(255, self.board.memory[1] + 1)
            self.board.memory[0] = phase

        with small.watched(entered, left):
            if aim and aim.phase == ANY:
                kill_myself_after(aim.delay)
            small.run(self.root, out, self.settings, **how)

    def aims(self, burst: bool) -> list[Aim]:
        """For one training, late phases last: a run that was killed while finishing has no step left."""
        if burst:
            kinds = [STEPPING] * self.chance.choice((3, 3, 4))
        else:
            kinds = []
            counts = Counter(self.by_phase)
            for _ in range(self.chance.choice((2, 3, 3, 4))):
                rarest = min(counts, key=lambda n: (counts[n], self.chance.random()))
                kinds.append(ANY if self.chance.random() < 0.3 else rarest)
                counts[rarest] += 1
        return [self._aim(kind) for kind in sorted(kinds)]

    def _aim(self, phase: int) -> Aim:
        lengths = self.seconds[phase]
        # later entries may be behind a resumed run: the first two are there in nearly all of them
        entry = self.chance.randrange(min(2, len(lengths)))
        return Aim(phase, entry, self.chance.uniform(0, lengths[entry] * (0.7 if phase == ANY else 1)))

    def trial(self, out: Path) -> dict[str, Any]:
        """One training, killed at least twice."""
        burst = self.chance.random() < 0.2
        how = {
            "save_every": None if burst else self.chance.choice((1, 2, 3, None)),
            "workers": int(self.chance.random() < 0.03),
        }
        phases: list[int] = []
        streak = longest = 0  # of kills without a checkpoint between them
        for aim in self.aims(burst):
            hit = self.attempt(out, aim, **how)
            if hit is None:
                break
            phases.append(hit)
            self.by_phase[hit] += 1
            streak = 1 if self.board.saved else streak + 1
            longest = max(longest, streak)
        else:
            if self.attempt(out, None, **how) is not None:
                raise AssertionError("killed by somebody else")
        same = small.ending(out) == self.expected
        shutil.rmtree(out)
        return {"kills": len(phases), "phases": phases, "streak": longest, "same": same, "how": how}


def kill_runs(runs: int, seed: int, processes: int = 1, *, full: int = 20) -> tuple[dict[str, Any], bool]:
    """The figures, and whether they are as they should be.

    Args:
        runs: How many trainings.
        seed: Of the moments.
        processes: That kill at the same time.
        full: One run in so many is the larger one; 0: none.
    """
    kills = identical = bursts = 0
    by_phase: Counter[int] = Counter()
    different: list[str] = []

    def work(number: int, emit: Emit) -> None:
        with small.make_place() as place:
            killers = [Killer(Path(place) / "small", small.SMALL, 1000 * seed + number)]
            if full:
                killers.append(Killer(Path(place) / "full", small.FULL, 1000 * seed + number))
            for i in range(number, runs, processes):
                killer = killers[1 if full and i % full == full - 1 else 0]
                while True:  # where it was quicker than its killer: once more, in a new folder
                    try:
                        found = killer.trial(Path(place) / f"run-{i}-{time.monotonic_ns()}")
                    except AssertionError as error:
                        found = {"kills": 0, "phases": [], "streak": 0, "same": False, "how": str(error)}
                    if found["kills"] >= 2 or not found["same"]:
                        break
                emit(found | {"run": i})

    for done, found in enumerate(spread(processes, work), 1):
        kills += found["kills"]
        identical += found["same"]
        bursts += found["streak"] >= 3
        by_phase.update(found["phases"])
        if not found["same"]:
            different.append(f"run {found['run']}: {found['how']}")
            print("DIFFERENT", different[-1], flush=True)
        if done % max(1, runs // 10) == 0:
            print(f"{done} runs, {kills} kills, {identical} bit-identical", flush=True)
    phases = {name: by_phase[n] for n, name in enumerate(small.PHASES)}
    enough = kills >= PER_RUN * runs and all(n >= LEAST_SHARE * kills for n in phases.values())
    figures = {
        "runs": runs,
        "kills": kills,
        "bit-identical": identical,
        "kills by phase": phases,
        "runs killed ≥ 3 × between two checkpoints": bursts,
    }
    if different:
        figures["different"] = different[:5]
    return figures, identical == runs and (enough or runs < 50)


def main(words: list[str] | None = None) -> int:
    part = Part("kill", __doc__)
    part.parser.add_argument("--runs", type=int, default=30)
    part.parser.add_argument("--processes", type=int, default=1, help="killers at the same time")
    options = part.parse(words)
    figures, passed = kill_runs(options.runs, options.seed, options.processes)
    print(f"{figures['runs']} runs, {figures['kills']} kills, {figures['bit-identical']} endings bit-identical")
    return part.finish(figures, passed=passed)


if __name__ == "__main__":
    sys.exit(main())

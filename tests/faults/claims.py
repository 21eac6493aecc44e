"""Claims of runs by several processes: none doubled, none lost; sleepers refused; clocks that jump.

    python tests/faults/claims.py --claims 100000 --processes 4 --zombies 50 --clocks 20

Claims: the processes go through the runs of one store together, so that all of them want the same run all the time. A
third of the leases is released and claimed again. From what each process noted: every run was claimed, no token was
given twice, and no two processes held a run at the same time, by the clock that they share.
Zombies: a process that works on a run is stopped (SIGSTOP) beyond its lease, its run is taken over and changed, and it
is woken up (SIGCONT): whatever it writes then must be refused. One in five of them is a real training.
Clocks: the wall clock jumps by up to a day, forth and back, while leases are held, renewed and given up: none ends
early and none lives for ever.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import defaultdict
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[1]))

from dspreg.launch.attempt import attempt
from dspreg.launch.queue import LeasedRun
from dspreg.runs.folder import RunFolder
from dspreg.runs.leases import LeaseLost, Leases
from dspreg.runs.status import RunStatus
from dspreg.runs.store import RunStore
from dspreg.training.callbacks import Callback
from faults import small
from faults.every_operation import Sweep
from faults.results import Emit, Part, spread
from helpers import tiny

GROUP = 200  # runs that all processes want at the same time
AGAIN = 3  # one run in so many is released and claimed again
LEASE = 0.15  # seconds, of a zombie


def claim_all(claims: int, processes: int, seed: int) -> dict[str, Any]:
    """The figures: how many claims there were, how many doubled, how many runs lost."""
    runs = [f"{n:016x}" for n in range(int(0.76 * claims) + 50)]  # a third of them twice is a little more than claims
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "claims.db"
        Leases(path).close()

        def work(number: int, emit: Emit) -> None:
            leases, chance, noted = Leases(path), random.Random(1000 * seed + number), []
            for start in range(0, len(runs), GROUP):
                wanted = runs[start : start + GROUP]
                while True:
                    lease = leases.acquire(wanted)
                    if lease is None:
                        break
                    since = time.monotonic()
                    again = lease.token == 1 and chance.randrange(AGAIN) == 0
                    noted.append([lease.run, lease.token, since, time.monotonic() if again else None])
                    if again:
                        leases.release(lease)
            leases.close()
            for at in range(0, len(noted), 1000):
                emit(noted[at : at + 1000])

        held: dict[str, list[tuple[int, float, float]]] = defaultdict(list)
        for noted in spread(processes, work):
            for run, token, since, until in noted:
                held[run].append((token, since, float("inf") if until is None else until))
    doubled = lost = 0
    for run in runs:
        leased = sorted(held[run])
        lost += not leased
        tokens = [token for token, _, _ in leased]
        doubled += tokens != list(range(1, len(tokens) + 1))
        doubled += any(until > since for (_, _, until), (_, since, _) in pairwise(leased))
    return {
        "claims": sum(map(len, held.values())),
        "processes": processes,
        "claims doubled": doubled,
        "runs lost": lost,
    }


# Zombies.


def wake_zombie(folder: Path) -> str:
    """One process that slept past its lease and woke up; empty where all that it wrote was refused."""
    path, run = folder / "claims.db", "a-run"
    child = os.fork()
    if child == 0:
        code = 9
        try:
            code = _work_until_lost(path, run, folder / "run")
        finally:
            os._exit(code)
    os.waitpid(child, os.WUNTRACED)  # it has stopped
    ours = Leases(path, duration=60)
    while (lease := ours.acquire([run])) is None:
        time.sleep(LEASE / 10)
    mine = RunFolder(folder / "run", fence=partial(ours.guard, lease))
    with mine.locked():
        mine.write_json("owner.json", {"owner": "the second"})
        lines = len(list(mine.records))
        os.kill(child, signal.SIGCONT)
        _, status = os.waitpid(child, 0)
        owner = json.loads((folder / "run" / "owner.json").read_text(encoding="utf-8"))
        more = len(list(mine.records)) - lines
    ours.close()
    if owner != {"owner": "the second"} or more:
        return "what the sleeper wrote is there"
    return "" if os.waitstatus_to_exitcode(status) == LeaseLost.exit_code else f"the sleeper ended with {status}"


def _work_until_lost(path: Path, run: str, out: Path) -> int:
    leases = Leases(path, duration=LEASE)
    lease = leases.acquire([run])
    assert lease is not None
    folder = RunFolder(out, fence=partial(leases.guard, lease))
    with folder.locked():
        folder.agree({"settings": {"steps": 1}})
        for n in range(100):
            try:
                (folder.records.append if n % 2 else partial(folder.write_json, "owner.json"))("the first, woken")
                leases.renew(lease, n + 1)
            except LeaseLost:
                return LeaseLost.exit_code
            if n == 4:
                stop_here()
    return 8


def stop_here() -> None:
    """Between two writes: inside of one, all others would wait for this process."""
    os.kill(os.getpid(), signal.SIGSTOP)


class StopHere(Callback):
    """Stops this process after a step."""

    def __init__(self, step: int):
        self.step = step

    def on_step_end(self, step: int, log: dict[str, float]) -> None:
        if step == self.step:
            stop_here()


def wake_training(folder: Path, sweep: Sweep, chance: random.Random) -> str:
    """The same with a real training, that another process takes over and finishes."""
    store, run = RunStore(folder / "store"), sweep.runs[0]
    store.make()
    store.plan(sweep.runs)
    execution = tiny.execution(save_every=1)
    child = os.fork()
    if child == 0:
        code = 9
        try:
            leases = Leases(store.path / "claims.db", duration=LEASE)
            lease = leases.acquire([run.id])
            assert lease is not None
            stop = StopHere(chance.randrange(2))
            outcome = attempt(
                LeasedRun(run, lease), store, leases, execution, attempts=3, callbacks=[stop], pause=lambda: None
            )
            code = LeaseLost.exit_code if outcome.state is None else 0
        finally:
            os._exit(code)
    os.waitpid(child, os.WUNTRACED)
    ours = Leases(store.path / "claims.db", duration=60)
    while (lease := ours.acquire([run.id])) is None:
        time.sleep(LEASE / 10)
    ended = attempt(LeasedRun(run, lease), store, ours, execution, attempts=3, pause=lambda: None)
    before = _bytes(store.folder(run).path)
    os.kill(child, signal.SIGCONT)
    _, status = os.waitpid(child, 0)
    ours.close()
    if ended.state is None or ended.state.status is not RunStatus.FINISHED:
        return f"taken over, it ended as {ended}"
    if _bytes(store.folder(run).path) != before:
        return "the sleeper changed a file of a finished run"
    return "" if os.waitstatus_to_exitcode(status) == LeaseLost.exit_code else f"the sleeper ended with {status}"


def _bytes(folder: Path) -> dict[str, bytes]:
    names = [p for p in sorted(folder.rglob("*")) if p.is_file() and not p.name.endswith(".part")]
    return {str(p.relative_to(folder)): p.read_bytes() for p in names}


def wake_zombies(count: int, seed: int) -> dict[str, Any]:
    chance, wrong, trainings = random.Random(seed), [], 0
    with small.make_place() as place:
        folder = Path(place)
        sweep = Sweep(folder)
        sweep.act(folder / "warm")
        for n in range(count):
            (folder / f"zombie-{n}").mkdir()
            if n % 5 == 4:
                trainings += 1
                said = wake_training(folder / f"zombie-{n}", sweep, chance)
            else:
                said = wake_zombie(folder / f"zombie-{n}")
            wrong += [f"{n}: {said}"] if said else []
    figures = {"zombies": count, "of them trainings": trainings, "zombies refused": count - len(wrong)}
    return figures | ({"zombies wrong": wrong[:5]} if wrong else {})


# Clocks.


def jump_clocks(count: int, seed: int) -> dict[str, Any]:
    """Each time: a lease that is renewed, one that is not, and the wall clock jumping at every look."""
    chance, wrong = random.Random(seed), []
    real = time.time
    with tempfile.TemporaryDirectory() as place:
        for n in range(count):
            machine = [1000.0]  # the clock that nobody sets
            day = chance.choice((-86_400.0, 86_400.0))

            def jump(day: float = day) -> float:
                return real() + chance.choice((0, day))

            with mock.patch("time.time", jump):
                one, other = (
                    Leases(Path(place) / f"{n}.db", duration=10, now=lambda machine=machine: machine[0])
                    for _ in range(2)
                )
                alive, dead = one.acquire(["a"]), one.acquire(["b"])
                assert alive is not None
                assert dead is not None
                for beat in range(chance.randint(3, 6)):
                    machine[0] += chance.uniform(3, 9.9)
                    one.renew(alive, beat + 1)
                    if other.acquire(["a"]):
                        wrong.append(f"{n}: taken over too early")
                machine[0] += 10
                if not other.acquire(["b"]):
                    wrong.append(f"{n}: a lease that lives for ever")
                one.close()
                other.close()
    return {"clocks that jumped": count, "clocks wrong": len(wrong)}


def main(words: list[str] | None = None) -> int:
    part = Part("claims", __doc__)
    part.parser.add_argument("--claims", type=int, default=10_000)
    part.parser.add_argument("--processes", type=int, default=4)
    part.parser.add_argument("--zombies", type=int, default=10)
    part.parser.add_argument("--clocks", type=int, default=20)
    options = part.parse(words)
    figures = claim_all(options.claims, options.processes, options.seed)
    figures |= wake_zombies(options.zombies, options.seed)
    figures |= jump_clocks(options.clocks, options.seed)
    wrong = figures["claims doubled"] + figures["runs lost"] + figures["clocks wrong"]
    return part.finish(figures, passed=not wrong and figures["zombies refused"] == options.zombies)


if __name__ == "__main__":
    sys.exit(main())

"""Any sequence of events on a store, beside a model of it that fits on a page: the invariants hold after each.

    python tests/faults/store_machine.py --examples 500 --steps 50

Three workers claim runs, renew, write, complete and fail them, crash, sleep past their leases and wake up; people
cancel and retry; the clock goes on. Hypothesis draws the sequences, and shrinks one that breaks an invariant:

    I1  every planned run is over, held, or can be claimed
    I2  a run has one final record, and is completed once
    I3  no record was written under a lease that was no longer the newest
    I4  the final record of a run is the same whoever wrote it
    I5  `status` counts as many finished runs as there are
    I6  a run is finished where its record and all files it names are whole, and nowhere else
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from dspreg.errors import DataError
from dspreg.io.atomic_files import sha256_of_file
from dspreg.runs.leases import Lease, LeaseLost, Leases
from dspreg.runs.status import RunStatus, scan_store
from faults.results import Part
from helpers.stores import planned

WORKERS, DURATION, ATTEMPTS = 3, 10.0, 3
worker_numbers = st.integers(0, WORKERS - 1)


class Expected:
    """What the model knows of one run."""

    def __init__(self) -> None:
        self.token, self.holder, self.expires = 0, -1, 0.0  # -1: nobody
        self.begun = self.finished = self.cancelled = False
        self.failures = self.completions = self.written_under = 0

    def is_over(self) -> bool:
        return self.finished or self.cancelled or self.failures >= ATTEMPTS


class StoreMachine(RuleBasedStateMachine):
    @initialize()
    def make(self) -> None:
        self.place = Path(tempfile.mkdtemp(prefix="faults-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
        self.store, runs = planned(self.place / "store", algorithms=("ERM",))
        self.runs = {run.id: run for run in runs}
        self.model = {run.id: Expected() for run in runs}
        self.time, self.progress = 1000.0, 0
        self.leases = [self._open() for _ in range(WORKERS)]
        self.held: list[list[Lease]] = [[] for _ in range(WORKERS)]  # what each believes to hold
        self.ghosts: list[tuple[Leases, Lease]] = []  # of workers that crashed, or were thought to

    def _open(self) -> Leases:
        return Leases(self.store.path / "claims.db", duration=DURATION, now=lambda: self.time)

    def teardown(self) -> None:
        if hasattr(self, "place"):
            for each in [*self.leases, *{id(leases): leases for leases, _ in self.ghosts}.values()]:
                each.close()
            shutil.rmtree(self.place)

    def _is_newest(self, number: int, lease: Lease) -> bool:
        known = self.model[lease.run]
        return known.token == lease.token and known.holder == number

    # What workers do.

    @rule(number=worker_numbers)
    def claim(self, number: int) -> None:
        wanted = [run for run, known in self.model.items() if not known.is_over()]
        free = [run for run in wanted if self.model[run].holder < 0 or self.model[run].expires <= self.time]
        lease = self.leases[number].acquire(wanted)
        assert (lease.run if lease else None) == (free[0] if free else None)
        if lease:
            known = self.model[lease.run]
            known.token, known.holder, known.expires = known.token + 1, number, self.time + DURATION
            assert lease.token == known.token
            self.held[number].append(lease)

    def _some(self, data: Any, number: int) -> Lease:
        return data.draw(st.sampled_from(self.held[number]))

    @precondition(lambda self: any(self.held))
    @rule(data=st.data(), moves=st.booleans())
    def renew(self, data: Any, moves: bool) -> None:
        number = data.draw(st.sampled_from([n for n, held in enumerate(self.held) if held]))
        lease = self._some(data, number)
        self.progress += moves
        newest = self._is_newest(number, lease)
        try:
            self.leases[number].renew(lease, self.progress)
            assert newest
        except LeaseLost:
            assert not newest
            self.held[number].remove(lease)
            return
        renewed = next(info for info in self.leases[number].list_all() if info.run == lease.run)
        assert moves <= (renewed.left == DURATION)  # without progress it may stay as it is
        self.model[lease.run].expires = self.time + renewed.left

    @precondition(lambda self: any(self.held))
    @rule(data=st.data())
    def write(self, data: Any) -> None:
        number = data.draw(st.sampled_from([n for n, held in enumerate(self.held) if held]))
        self._begin(number, self.leases[number], self._some(data, number))

    def _begin(self, number: int, leases: Leases, lease: Lease) -> bool:
        """Whether it was allowed to."""
        newest = self._is_newest(number, lease)
        folder = self.store.folder(self.runs[lease.run], fence=partial(leases.guard, lease))
        plan = self.runs[lease.run].to_json()
        folder.path.mkdir(exist_ok=True)
        try:
            folder.agree({"settings": {"steps": 1}, "where": {"plan": plan}})
            folder.records.append({"step": 0, "token": lease.token})
            assert newest, "a record under a lease that was lost"
            self.model[lease.run].written_under = lease.token
        except LeaseLost:
            assert not newest
        self.model[lease.run].begun |= newest
        return newest

    @precondition(lambda self: any(self.held))
    @rule(data=st.data())
    def complete(self, data: Any) -> None:
        number = data.draw(st.sampled_from([n for n, held in enumerate(self.held) if held]))
        lease, leases = self._some(data, number), self.leases[number]
        self.held[number].remove(lease)
        if self._begin(number, leases, lease):
            self._finish(leases, lease)
            known = self.model[lease.run]
            known.finished, known.completions, known.failures = True, known.completions + 1, 0
            known.cancelled, known.holder = False, -1
            leases.release(lease)

    def _finish(self, leases: Leases, lease: Lease) -> None:
        run, fence = self.runs[lease.run], partial(leases.guard, lease)
        folder = self.store.folder(run, fence=fence)
        folder.write("last.safetensors", f"weights of {run}".encode())
        folder.written |= {name: sha256_of_file(folder / name) for name in ("run.json", "records.jsonl")}
        folder.finish({"selected": {"step": 0}, "last": {"step": 0}})
        self.store.succeed(run, fence=fence)

    @precondition(lambda self: any(self.held))
    @rule(data=st.data())
    def fail(self, data: Any) -> None:
        number = data.draw(st.sampled_from([n for n, held in enumerate(self.held) if held]))
        lease, leases = self._some(data, number), self.leases[number]
        self.held[number].remove(lease)
        newest = self._is_newest(number, lease)
        try:
            self.store.fail(self.runs[lease.run], DataError("no images"), fence=partial(leases.guard, lease))
            assert newest
        except LeaseLost:
            assert not newest
            return
        known = self.model[lease.run]
        known.failures, known.holder, known.cancelled = known.failures + 1, -1, False
        leases.release(lease)

    # What happens to them.

    @rule(number=worker_numbers)
    def crash(self, number: int) -> None:
        """It is gone, or sleeps; a new process has its place. Its leases are ghosts."""
        self.ghosts += [(self.leases[number], lease) for lease in self.held[number]]
        if not self.held[number]:
            self.leases[number].close()
        for lease in self.held[number]:
            known = self.model[lease.run]
            if known.token == lease.token and known.holder == number:
                known.holder = WORKERS + number  # held by nobody who is alive
        self.leases[number], self.held[number] = self._open(), []

    @precondition(lambda self: self.ghosts)
    @rule(data=st.data())
    def wake(self, data: Any) -> None:
        """A ghost writes: allowed as long as nobody has taken its run over."""
        leases, lease = data.draw(st.sampled_from(self.ghosts))
        known = self.model[lease.run]
        number = known.holder if known.token == lease.token and known.holder >= WORKERS else -2
        self._begin(number, leases, lease)

    @rule(seconds=st.sampled_from([0.5, 4.0, 9.0, 10.0, 60.0]))
    def wait(self, seconds: float) -> None:
        self.time += seconds

    # What people do.

    @rule(data=st.data())
    def cancel(self, data: Any) -> None:
        run = data.draw(st.sampled_from(sorted(self.model)))
        known = self.model[run]
        if known.finished:
            return
        with self.leases[0].revoking(run) as held:
            assert held == (known.holder >= 0)
            self.store.cancel(self.runs[run])
        known.cancelled, known.holder = True, -1

    @rule(data=st.data())
    def retry(self, data: Any) -> None:
        run = data.draw(st.sampled_from(sorted(self.model)))
        known = self.model[run]
        if not known.finished:
            self.store.retry(self.runs[run])
            known.cancelled, known.failures = False, 0

    # What must hold.

    @invariant()
    def every_run_is_over_held_or_free(self) -> None:  # I1
        assert {run.id for run in self.store.planned_runs()} == set(self.model)
        there = {info.run: info for info in self.leases[0].list_all()}
        for run, known in self.model.items():
            assert (run in there) == (known.holder >= 0)
            if run in there:
                assert there[run].left == known.expires - self.time

    @invariant()
    def one_final_record(self) -> None:  # I2, I3, I4
        folders = [p.name for p in (self.store.path / "runs").iterdir()]
        assert set(folders) <= set(self.model)
        for run, known in self.model.items():
            assert known.completions == known.finished
            folder = self.store.folder(self.runs[run])
            tokens = [record["token"] for record in folder.records]
            assert all(earlier <= later for earlier, later in pairwise(tokens))
            assert not tokens or tokens[-1] == known.written_under
            if known.finished:
                assert (folder / "last.safetensors").read_bytes() == f"weights of {self.runs[run]}".encode()

    @invariant()
    def finished_is_what_is_whole(self) -> None:  # I5, I6
        for run, known in self.model.items():
            state = self.store.status(self.runs[run])
            assert (state.status is RunStatus.FINISHED) == known.finished
            assert state.status is not RunStatus.DAMAGED
            assert state.is_final(ATTEMPTS) == known.is_over()
        states = scan_store(self.store, ATTEMPTS).states.values()
        assert sum(s.status is RunStatus.FINISHED for s in states) == sum(k.finished for k in self.model.values())


def run_machine(examples: int, steps: int, *, seed: int | None = None, shrink: bool = True) -> None:
    """Raises what breaks, with the shortest sequence that does unless `shrink` is false."""
    from hypothesis import seed as seeded

    machine = StoreMachine
    if seed is not None:
        machine = seeded(seed)(type("StoreMachine", (StoreMachine,), {}))
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            phases=[Phase.generate, Phase.shrink] if shrink else [Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )


def main(words: list[str] | None = None) -> int:
    part = Part("store_machine", __doc__)
    part.parser.add_argument("--examples", type=int, default=50)
    part.parser.add_argument("--steps", type=int, default=50)
    options = part.parse(words)
    figures: dict[str, Any] = {"examples": options.examples, "steps": options.steps, "broken": 0}
    try:
        run_machine(options.examples, options.steps, seed=options.seed)
    except Exception as error:
        how = [f"{type(error).__name__}: {error}", *getattr(error, "__notes__", [])]
        figures |= {"broken": 1, "how": "\n".join(how)}
    return part.finish(figures, passed=not figures["broken"])


if __name__ == "__main__":
    os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", tempfile.gettempdir())
    sys.exit(main())

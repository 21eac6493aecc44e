"""Runs of a sweep on the machines of a Ray cluster. The store and its claims stay here; runs travel as files.

Each run is one task (`dspreg.launch.remote`), which sends its checkpoints home. Ray does not try again by itself: what
becomes of a run whose task, process or machine is gone is decided as for every other launcher, by `Work`.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from dspreg.data.named import ROOT
from dspreg.errors import ConfigError, InUse, Notice
from dspreg.io.atomic_files import fenced, remove_partial_files
from dspreg.launch.board import Board
from dspreg.launch.carrying import Files, packed, unpack
from dspreg.launch.cluster import connected
from dspreg.launch.heart import BEATS
from dspreg.launch.pool import settled
from dspreg.launch.remote import Assignment, Ended, Moved, Said, attempted
from dspreg.launch.work import POLL, Outcome, Taken, Work
from dspreg.protocol.settings import Execution
from dspreg.runs.leases import LostClaim
from dspreg.runs.run import PLACED, Run
from dspreg.runs.store import Standing

TICK = 0.5  # seconds until a signal is noticed
UNREAD = 8  # words of a task that were not fetched yet, after which it waits
GRACE = 10.0  # seconds for tasks to remove their files
READERS = 4  # processes that read images for a GPU, unless given


def on_ray(
    work: Work,
    execution: Execution,
    *,
    address: str | None = None,
    jobs: int | None = None,
    pause: Callable[[], None] = lambda: None,
    board: Board | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> None:
    """Do all of it on a cluster.

    A task, process or machine that is gone costs its run an attempt, unless it came further than the one before, and
    the run goes on elsewhere from the last checkpoint that came home. Machines that join are used.

    Args:
        work: What is to be done.
        execution: How each is run; each has `threads` CPUs, and a GPU if `device` is cuda.
        address: Of the cluster; see `connected`.
        jobs: Runs at once; None: as many as the cluster has room for.
        pause: Raises `Preempted` to stop the sweep.
        board: Shown to people.
        say: Told which cluster it is.

    Raises:
        ConfigError: Ray is not installed, or can't do that.
        ResourceError: There is no such cluster; or the store's disk is full or can't be written.
    """
    execution = open_settled(execution)
    cpus = None if jobs is None else jobs * (execution.threads or 1)
    board = board or Board()
    try:
        with connected(address, cpus, say) as ray:
            sweeper = Sweeper(ray, work, execution, jobs, board)
            try:
                sweeper.go(pause)
            finally:
                sweeper.stop()
    finally:
        board.close()


def open_settled(execution: Execution) -> Execution:
    """What the user left open, as in all sweeps; it must not depend on the machine that this runs on."""
    if execution.device.startswith("cuda:"):
        raise ConfigError(f"--device {execution.device}: Ray says which GPU a run has. Give --device cuda")
    if execution.device == "cuda" and execution.workers is None:
        execution = replace(execution, workers=READERS)
    return settled(execution, 1)[0]


@dataclass
class Flight:
    """A run that is out."""

    taken: Taken
    words: Any  # Ray's generator
    folder: ExitStack  # the lock of the run's folder here
    begun: bool = False
    progress: int = 0
    beaten: float = field(default_factory=time.monotonic)


class Sweeper:
    def __init__(self, ray: Any, work: Work, execution: Execution, jobs: int | None, board: Board):
        self.ray, self.work, self.execution, self.jobs, self.board = ray, work, execution, jobs, board
        self.needs = {"CPU": float(execution.threads or 1)} | ({"GPU": 1.0} if execution.device == "cuda" else {})
        self.task = ray.remote(attempted).options(
            num_returns="streaming",
            num_cpus=self.needs["CPU"],
            num_gpus=self.needs.get("GPU", 0.0),
            max_retries=0,
            _generator_backpressure_num_objects=UNREAD,
        )
        self.flights: list[Flight] = []
        self.notices: set[str] = set()
        self.look = 0.0  # when to look again at what others work on
        self.count, self.counted = 0, -POLL  # of the room there is, and when

    def go(self, pause: Callable[[], None]) -> None:
        while not self.work.done:
            pause()
            self.hand_out(pause)
            self.listen(TICK)
            self.end_hung()

    # Out.

    def room(self) -> int:
        """Runs that the cluster can train at once. At least one, for a machine may be about to join."""
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        each = (min(int(node.get(name, 0) // amount) for name, amount in self.needs.items()) for node in nodes)
        room = max(1, sum(each))
        return room if self.jobs is None else min(self.jobs, room)

    def hand_out(self, pause: Callable[[], None]) -> None:
        if time.monotonic() < self.look or not self.work.left:
            return
        if time.monotonic() - self.counted >= POLL:
            self.count, self.counted = self.room(), time.monotonic()
        until = time.monotonic() + TICK  # finished runs are verified on the way, and others want to be heard
        while len(self.flights) < self.count and time.monotonic() < until:
            pause()
            taken = self.work.take()
            if taken is None:  # others have all that is left
                self.look = time.monotonic() + POLL
                return
            self.start(taken)

    def start(self, taken: Taken) -> None:
        run, folder, lock = taken.run, self.work.store.folder(taken.run), ExitStack()
        try:
            with fenced(self.work.store.path, lambda: self.work.claims.writing(taken.claim)):
                before = self.work.store.standing(run)
                if before.settled(self.work.attempts):
                    self.work.give_back(taken, Outcome(before, before=True))
                    return
                lock.enter_context(folder.locked())
                remove_partial_files(folder.path)
                files = packed(folder.path)
        except (InUse, LostClaim):  # somebody trains in the folder by hand, or it was us who slept
            lock.close()
            self.give_up(taken)
            return
        settings, execution = placed(run, self.execution)
        words = self.task.remote(Assignment(settings, execution, run.to_json(), files, own_path()))
        self.flights.append(Flight(taken, words, lock))
        self.board.began(run)

    # Home.

    def listen(self, seconds: float) -> None:
        """Hear what there is to hear; at most so long for the first word."""
        if not self.flights:
            time.sleep(seconds)
            return
        words = [flight.words for flight in self.flights]
        ready, _ = self.ray.wait(words, timeout=seconds)
        if ready:  # and all others that have something to say
            ready, _ = self.ray.wait(words, num_returns=len(words), timeout=0)
        for flight in [flight for flight in self.flights if any(flight.words is each for each in ready)]:
            try:
                self.hear(flight, self.ray.get(next(flight.words)))
            except (self.ray.exceptions.RayError, StopIteration) as error:
                self.landed(flight)
                self.died(flight, f"the Ray task that trained it is gone: {reason(error)}")
            except LostClaim:
                self.called_off(flight)
                self.give_up(flight.taken)

    def hear(self, flight: Flight, said: Said) -> None:
        flight.begun = True
        if isinstance(said, Notice):
            if str(said) not in self.notices:
                self.notices.add(str(said))
                warnings.warn(said, stacklevel=2)
        elif isinstance(said, Moved):
            self.board.moved(flight.taken.run, said.step, said.steps, said.doing)
            self.beat(flight, said.step)
        elif isinstance(said, Files):
            with self.fence(flight.taken):
                unpack(said, self.work.store.folder(flight.taken.run).path)
        else:
            with self.fence(flight.taken):
                standing = self.settled(flight.taken.run, said)
            self.landed(flight)
            self.work.give_back(flight.taken, Outcome(standing))
            self.look = 0.0

    def beat(self, flight: Flight, step: int) -> None:
        """Hold the claim: the other side speaks only when it has done something."""
        flight.progress += 1
        if time.monotonic() - flight.beaten >= self.work.claims.lease / BEATS:
            self.work.claims.beat(flight.taken.claim, flight.progress, step)
            flight.beaten = time.monotonic()

    def settled(self, run: Run, ended: Ended) -> Standing:
        store = self.work.store
        if ended.kind is not None and not ended.diverged:
            return store.fail(run, ended.error())
        standing = store.standing(run)  # verified here, where it is kept
        if standing.state == "finished":
            store.succeed(run)
        return standing

    # The end of one.

    def end_hung(self) -> None:
        for taken in self.work.hung():
            flight = next(flight for flight in self.flights if flight.taken is taken)
            self.called_off(flight, force=True)
            if flight.begun:
                self.died(flight, f"it made no progress for {self.work.claims.lease:g} s and was ended")
            else:  # nobody had room for it
                self.give_up(taken)

    def died(self, flight: Flight, why: str) -> None:
        try:
            self.work.died(flight.taken, why)
        except LostClaim:
            self.give_up(flight.taken)

    def give_up(self, taken: Taken) -> None:
        """For now: somebody else has it."""
        self.work.give_back(taken, Outcome(None))
        self.look = time.monotonic() + POLL

    def called_off(self, flight: Flight, *, force: bool = False) -> None:
        """It is to end at its next word; by `force` its process is, now. Either way nobody listens any more."""
        self.ray.cancel(flight.words, force=force)
        self.landed(flight)

    def landed(self, flight: Flight) -> None:
        self.flights.remove(flight)
        flight.folder.close()
        self.board.ended(flight.taken.run)

    def stop(self) -> None:
        """What came home is what counts: a checkpoint of now could not be sent any more."""
        words, until = [flight.words for flight in self.flights], time.monotonic() + GRACE
        for flight in list(self.flights):
            self.called_off(flight)
        while words and time.monotonic() < until:  # their ends come after what was said before
            ready, _ = self.ray.wait(words, timeout=TICK)
            words = [each for each in words if not any(each is r for r in ready) or self.goes_on(each)]

    def goes_on(self, words: Any) -> bool:
        try:
            self.ray.get(next(words))
            return True
        except (self.ray.exceptions.RayError, StopIteration):
            return False

    def fence(self, taken: Taken) -> Any:
        return fenced(self.work.store.path, lambda: self.work.claims.writing(taken.claim))


def placed(run: Run, execution: Execution) -> tuple[dict[str, Any], Execution]:
    """Settings and execution with the paths that they have on this machine; others must have the same."""
    settings = run.settings()
    kind, colon, path = run.dataset.partition(":")
    given = bool(colon) and kind in PLACED
    if given:
        settings["dataset"] = f"{kind}:{os.path.abspath(path)}"
    if settings.get("weights", "none") not in ("default", "none"):
        settings["weights"] = os.path.abspath(settings["weights"])
    root = execution.root if execution.root is not None or given else ROOT
    return settings, replace(run.execution(execution), root=None if root is None else os.path.abspath(root))


def own_path() -> tuple[str, ...]:
    """Where modules are looked for beside what is installed, which the other machines have for themselves."""
    installed = (sys.prefix, sys.base_prefix)
    return tuple(path for path in sys.path if os.path.isabs(path) and not path.startswith(installed))


def reason(error: BaseException) -> str:
    """What Ray says, in its first sentence; of what was raised in a task, without the traceback."""
    cause = getattr(error, "cause", None)
    error = cause if isinstance(cause, BaseException) else error
    return f"{type(error).__name__}: {error}".splitlines()[0].partition(". ")[0].removesuffix(": ")

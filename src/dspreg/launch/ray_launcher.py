"""Runs of a sweep on the machines of a Ray cluster. The store and its leases stay here; runs are sent as files.

Each run is one task (`dspreg.launch.ray_task`), which sends its checkpoints back. Ray's own retries are off: `RunQueue`
handles a run whose task, process or machine died, as it does for every other launcher.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from dspreg.config.train_config import CHANNELS_FIRST, Execution
from dspreg.config.trained_part import with_absolute_paths
from dspreg.data.registry import ROOT
from dspreg.devices import AUTO
from dspreg.errors import ConfigError, IntegrityError, InUse
from dspreg.launch.attempt import final_state
from dspreg.launch.dispatcher import TICK, Dispatcher
from dspreg.launch.heartbeat import Heartbeat
from dspreg.launch.messages import Event, Failed, Files, Outcome, Progress, Succeeded, TaskMessage, WorkerDied
from dspreg.launch.progress import SweepProgress
from dspreg.launch.queue import POLL, LeasedRun, RunQueue
from dspreg.launch.ray_cluster import connected, require_cluster
from dspreg.launch.ray_task import Assignment, attempt_run
from dspreg.launch.resources import fill_execution
from dspreg.launch.transfer import pack, unpack
from dspreg.runs.folder import RunFolder
from dspreg.runs.leases import LeaseLost
from dspreg.runs.run import Run
from dspreg.runs.status import RunState, RunStatus

UNREAD = 8  # unread messages of a task, after which it waits
GRACE = 10.0  # seconds for tasks to remove their files
READERS = 4  # processes that read images for a GPU, unless given


class RayLauncher:
    """Each run is a Ray task with `threads` CPUs, and a GPU if `device` is cuda, or auto on a cluster with GPUs.

    If a task, process or machine dies, the run loses an attempt, unless it got further than the one before. It resumes
    elsewhere from the last checkpoint that arrived. Machines that join the cluster are used.

    Args:
        jobs: Parallel runs; None: as many as the cluster has room for.
        address: Of the cluster; see `connected`.
        say: Called with a line that names the cluster.
    """

    def __init__(
        self, jobs: int | None = None, *, address: str | None = None, say: Callable[[str], None] = lambda _: None
    ):
        if jobs is not None and jobs < 1:
            raise ConfigError(f"jobs={jobs}; wanted at least 1")
        self.jobs, self.address, self.say = jobs, address, say

    def setup(self, execution: Execution) -> Execution:
        """Fill in defaults as in all sweeps; they must not depend on this machine."""
        require_cluster(self.address)
        if execution.device.startswith("cuda:"):
            raise ConfigError(f"--device {execution.device}: Ray assigns GPUs to runs. Give --device cuda")
        if execution.layout == AUTO:  # a probe here would say nothing about the cluster
            execution = replace(execution, layout=CHANNELS_FIRST)
        return execution if execution.device == AUTO else fill_for_cluster(execution)

    def launch(
        self, queue: RunQueue, execution: Execution, *, progress: SweepProgress, pause: Callable[[], None]
    ) -> None:
        """Execute the queue on the cluster.

        Raises:
            ConfigError: Ray is not installed, or the address is not supported.
            ResourceError: The cluster can't be reached, or the store's disk is full or not writable.
        """
        cpus = None if self.jobs is None else self.jobs * (execution.threads or 1)
        with connected(self.address, cpus, self.say) as ray:
            if execution.device == AUTO:  # what the cluster has, and not what this machine has
                execution = fill_for_cluster(replace(execution, device=cluster_device(ray)))
                self.say(f"device: {execution.device}")
            Dispatcher(queue, RayTransport(ray, queue, execution, self.jobs), progress, pause).run()


def fill_for_cluster(execution: Execution) -> Execution:
    """Fill in what is left open, without looking at this machine."""
    readers = READERS if execution.device == "cuda" else 0
    workers = readers if execution.workers is None else execution.workers
    return fill_execution(replace(execution, workers=workers), 1)


def cluster_device(ray: Any) -> str:
    """What `auto` is on a cluster: cuda if a machine of it has a GPU for Ray to give away, else cpu."""
    return "cuda" if any(node["Alive"] and node["Resources"].get("GPU", 0) >= 1 for node in ray.nodes()) else "cpu"


@dataclass
class Task:
    """A run on the cluster."""

    leased: LeasedRun
    folder: RunFolder  # in the store, under the fence of the lease
    lock: ExitStack  # of that folder
    messages: Any  # Ray's generator
    heartbeat: Heartbeat
    begun: bool = False


class RayTransport:
    """One Ray task per run; files that arrive are written to the store here."""

    def __init__(self, ray: Any, queue: RunQueue, execution: Execution, jobs: int | None):
        self.ray, self.queue, self.execution, self.jobs = ray, queue, execution, jobs
        self.needs = {"CPU": float(execution.threads or 1)} | ({"GPU": 1.0} if execution.device == "cuda" else {})
        self.remote = ray.remote(attempt_run).options(
            num_returns="streaming",
            num_cpus=self.needs["CPU"],
            num_gpus=self.needs.get("GPU", 0.0),
            max_retries=0,
            _generator_backpressure_num_objects=UNREAD,
        )
        self.tasks: list[Task] = []
        self.room, self.counted_at = 0, -POLL

    # Sending.

    def count_room(self) -> int:
        """Runs that the cluster can train in parallel. At least one, since a machine may be about to join."""
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        each = (min(int(node.get(name, 0) // amount) for name, amount in self.needs.items()) for node in nodes)
        room = max(1, sum(each))
        return room if self.jobs is None else min(self.jobs, room)

    def has_room(self) -> bool:
        if time.monotonic() - self.counted_at >= POLL:
            self.room, self.counted_at = self.count_room(), time.monotonic()
        return len(self.tasks) < self.room

    def start(self, leased: LeasedRun) -> Event | None:
        run, store, fence, lock = leased.run, self.queue.store, self.queue.fence(leased), ExitStack()
        folder = store.folder(run, fence=fence)
        try:
            before = final_state(run, store, self.queue.attempts, fence)
            if before is not None:
                return Outcome(before, already=True)
            lock.enter_context(folder.locked())
            folder.remove_partial_files()
            files = pack(folder.path)
        except (InUse, LeaseLost):  # `dspreg train` uses the folder, or this process was suspended and lost its lease
            lock.close()
            return Outcome(None)
        except IntegrityError as error:  # a part of the folder is a link, or no regular file
            lock.close()
            return Outcome(store.fail(run, error, fence=fence))
        settings, execution = use_absolute_paths(run, self.execution)
        messages = self.remote.remote(Assignment(settings, execution, run.to_json(), files, own_import_path()))
        self.tasks.append(Task(leased, folder, lock, messages, Heartbeat(self.queue.leases, leased.lease)))
        return None

    # Receiving.

    def receive(self, seconds: float) -> Iterator[tuple[LeasedRun | None, Event]]:
        if not self.tasks:
            time.sleep(seconds)
            return
        every = [task.messages for task in self.tasks]
        ready, _ = self.ray.wait(every, timeout=seconds)
        if ready:  # all others with a message, too
            ready, _ = self.ray.wait(every, num_returns=len(every), timeout=0)
        for task in [task for task in self.tasks if any(task.messages is each for each in ready)]:
            try:
                event = self.take_in(task, self.ray.get(next(task.messages)))
            except (self.ray.exceptions.RayError, StopIteration) as error:
                self.forget(task)
                event = WorkerDied(f"the Ray task that trained it died: {describe_error(error)}")
            except LeaseLost:
                self.cancel(task)
                event = Outcome(None)
            except IntegrityError as error:  # it sent files that a run does not have
                self.cancel(task, force=True)
                event = Outcome(self.queue.store.fail(task.leased.run, error, fence=task.folder.fence))
            if event is not None:
                yield task.leased, event

    def take_in(self, task: Task, message: TaskMessage) -> Event | None:
        """Act on a message; returns the event for the dispatcher, if there is one."""
        task.begun = True
        if isinstance(message, Files):
            unpack(message, task.folder)
            return None
        if isinstance(message, Succeeded | Failed):
            outcome = Outcome(self.settle(task, message))
            self.forget(task)
            return outcome
        if isinstance(message, Progress):  # a task reports only after it has done some work
            task.heartbeat.beat(message.step)
        return message

    def settle(self, task: Task, message: Succeeded | Failed) -> RunState:
        """Verify the finished run or record its failure, in the store."""
        run, store, fence = task.leased.run, self.queue.store, task.folder.fence
        if isinstance(message, Failed) and not message.diverged:
            return store.fail(run, message.to_error(), fence=fence)
        state = store.status(run)
        if state.status is RunStatus.FINISHED:
            store.succeed(run, fence=fence)
        return state

    # Ending a task.

    def kill(self, leased: LeasedRun) -> bool:
        task = next(task for task in self.tasks if task.leased is leased)
        self.cancel(task, force=True)
        return task.begun

    def cancel(self, task: Task, *, force: bool = False) -> None:
        """End a task at its next message, or kill its process now (`force`). Its messages are ignored from here on."""
        self.ray.cancel(task.messages, force=force)
        self.forget(task)

    def forget(self, task: Task) -> None:
        self.tasks.remove(task)
        task.lock.close()

    def close(self) -> None:
        """Cancel all tasks. Checkpoints that have not arrived are lost: there is no time to send a last one."""
        left, until = [task.messages for task in self.tasks], time.monotonic() + GRACE
        for task in list(self.tasks):
            self.cancel(task)
        while left and time.monotonic() < until:  # the end of a generator comes after its last message
            ready, _ = self.ray.wait(left, timeout=TICK)
            left = [each for each in left if not any(each is r for r in ready) or self._goes_on(each)]

    def _goes_on(self, messages: Any) -> bool:
        try:
            self.ray.get(next(messages))
            return True
        except (self.ray.exceptions.RayError, StopIteration):
            return False


def use_absolute_paths(run: Run, execution: Execution) -> tuple[dict[str, Any], Execution]:
    """Settings and execution with absolute paths, which must be the same on all machines."""
    settings = run.settings()
    ref = run.dataset_ref
    if ref.is_path:
        settings["dataset"] = str(replace(ref, target=os.path.abspath(ref.target)))
    settings = with_absolute_paths(settings)
    root = execution.root if execution.root is not None or ref.is_path else ROOT
    return settings, replace(run.execution(execution), root=None if root is None else os.path.abspath(root))


def own_import_path() -> tuple[str, ...]:
    """The import path without installed packages, which every machine has itself."""
    installed = (sys.prefix, sys.base_prefix)
    return tuple(path for path in sys.path if os.path.isabs(path) and not path.startswith(installed))


def describe_error(error: BaseException) -> str:
    """The first sentence of Ray's message; for an error raised in a task, without the traceback."""
    cause = getattr(error, "cause", None)
    error = cause if isinstance(cause, BaseException) else error
    return f"{type(error).__name__}: {error}".splitlines()[0].partition(". ")[0].removesuffix(": ")

"""Sweeps of runs that take a second, for tests of launchers."""

from dspreg.io.atomic_files import sha256_of_file
from dspreg.launch.progress import SweepProgress
from dspreg.launch.queue import RunQueue
from dspreg.launch.serial import SerialLauncher
from dspreg.protocol.leave_one_out import leave_one_out

OPTIONS = {
    "model": "small-cnn", "weights": "none", "image_size": 28, "steps": 2, "batch_size": 4, "lr": 1e-3,
    "augment": False, "augment_validation": False,
}  # fmt: skip


def three(images, algorithm="ERM", **options):
    domains = {f"folder:{images}": ("dawn", "dusk", "noon")}
    return list(leave_one_out(domains, [algorithm], trials=1, draws=1, only="training", options=OPTIONS | options))


class Seen(SweepProgress):
    """What is shown to people; `act` is called with every step."""

    def __init__(self, act=lambda run, step: None):
        self.started, self.updates, self.ended, self.act = [], [], [], act

    def start(self, run):
        self.started.append(run)

    def update(self, run, progress):
        self.updates.append((run, progress))
        self.act(run, progress.step)

    def end(self, run):
        self.ended.append(run)


def launched(launcher, runs, store, execution, *, on_run=lambda *_: None, attempts=3, change=lambda queue: None,
             progress=None, pause=lambda: None):  # fmt: skip
    """All runs by a launcher, and the status of each in the end. `change` may spoil the queue."""
    with RunQueue(runs, store, on_run=on_run, attempts=attempts) as queue:
        change(queue)
        launcher.launch(queue, execution, progress=progress or SweepProgress(), pause=pause)
    return queue.ended


def alone(runs, store, execution, **more):
    """In this process."""
    return launched(SerialLauncher(), runs, store, execution, **more)


def bytes_in(store):
    return {str(p): sha256_of_file(p) for p in sorted(store.path.rglob("runs/*/*")) if p.is_file()}


def assert_same_bits(runs, ended, others):
    for run in runs:
        here, there = ended[run.id].result, others[run.id].result
        assert here["selected"] == there["selected"]
        for name in ("last.safetensors", "selected.safetensors", "README.md"):
            assert here["files"][name] == there["files"][name]

"""Sweeps of runs that take a second, for tests of launchers."""

from dspreg.io.atomic_files import sha256_of_file
from dspreg.launch.serial import serial
from dspreg.launch.work import Work
from dspreg.protocol.enumerate import leave_one_out

OPTIONS = {
    "model": "small-cnn", "weights": "none", "image_size": 28, "steps": 2, "batch_size": 4, "lr": 1e-3,
    "augment": False, "augment_validation": False,
}  # fmt: skip


def three(images, algorithm="ERM", **options):
    domains = {f"folder:{images}": ("dawn", "dusk", "noon")}
    return list(leave_one_out(domains, [algorithm], trials=1, draws=1, only="training", options=OPTIONS | options))


def alone(runs, store, execution, *, told=lambda *_: None, attempts=3, **more):
    """All runs in this process; how each stands in the end."""
    with Work(runs, store, told=told, attempts=attempts) as work:
        serial(work, execution, **more)
    return work.ended


def bytes_in(store):
    return {str(p): sha256_of_file(p) for p in sorted(store.path.rglob("runs/*/*")) if p.is_file()}


def assert_same_bits(runs, ended, others):
    for run in runs:
        here, there = ended[run.id].result, others[run.id].result
        assert here["selected"] == there["selected"]
        for name in ("last.safetensors", "selected.safetensors", "README.md"):
            assert here["files"][name] == there["files"][name]

"""Stores of runs that nobody trained, in the states a test wants."""

from dspreg.errors import DataError
from dspreg.io.atomic_files import write_json
from dspreg.protocol.leave_one_out import leave_one_out
from dspreg.runs.store import RunStore
from helpers.runs import seal

PACS = {"PACS": ("art", "cartoon", "photo", "sketch")}
STEPS = 40


def planned(path, algorithms=("ERM", "CORAL"), domains=PACS):
    """A new store, and its runs: four for each algorithm."""
    store, runs = RunStore(path), list(leave_one_out(domains, algorithms, trials=1, draws=1, only="training"))
    store.make()
    store.plan(runs)
    return store, runs


def start(store, run):
    store.folder(run).path.mkdir()
    store.folder(run).agree({"settings": {"steps": STEPS}, "where": {"plan": run.to_json()}})
    return store.folder(run)


def finish(store, run):
    folder = start(store, run)
    folder.records.append({"step": 0})
    folder.write("last.safetensors", b"weights")
    seal(folder, {"selected": {"step": 0}})
    return folder


def fail(store, run, times=3, reason="no images"):
    for _ in range(times):
        store.fail(run, DataError(reason))


def diverge(store, run):
    write_json(start(store, run) / "failure.json", {"step": 3, "reason": "the loss is not finite"})


def put(store, run, state):
    """`failed 2` has failed twice."""
    kind, _, times = state.partition(" ")
    made = {"new": lambda *_: None, "started": start, "finished": finish, "diverged": diverge}
    made |= {"failed": lambda *_: fail(store, run, int(times)), "cancelled": lambda *_: store.cancel(run)}
    made[kind](store, run)


def files(folder):
    """Everything there is, and when it changed."""
    return {p: (p.stat().st_mtime_ns, p.stat().st_size) for p in sorted(folder.rglob("*"))}

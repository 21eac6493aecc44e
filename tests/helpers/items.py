"""Runs of an item as training would leave them in a store, with made-up accuracies and no models."""

from dspreg.runs.store import RunStore
from helpers.runs import record, write_run

SOURCES_IN = 96  # per domain


def finish(store, run, domains, accuracy, refreshes, *, validation=0.5, steps=40, threads=1):
    """A finished run whose only record has this accuracy on its target."""
    splits = {d: (accuracy, None) if d in run.targets else (None, validation) for d in domains}
    write_run(
        store.folder(run).path, [record(steps - 1, splits)], targets=run.targets, algorithm=run.algorithm,
        domains=domains, dataset=run.data_name, trial=run.trial, draw=run.draw, protocol=run.protocol, threads=threads,
        plan=run.to_json(), refreshes=refreshes, images=SOURCES_IN, steps=steps, batch_size=8,
    )  # fmt: skip


def store_of(path, item, accuracy, refreshes=lambda run: 0, leave_out=lambda run: False, **options):
    """A store in which every run of the item that is not left out is finished."""
    store = RunStore(path)
    store.make()
    for run in item.runs():
        if not leave_out(run):
            finish(store, run, item.domains()[run.dataset], accuracy(run), refreshes(run), **options)
    return store

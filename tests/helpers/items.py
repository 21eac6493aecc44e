"""Runs of an item as training would leave them in a store, with made-up accuracies and no models."""

from dspreg.runs.store import RunStore

SOURCES_IN = 96  # per domain


def finish(store, run, domains, accuracy, refreshes, *, validation=0.5, steps=40, threads=1):
    """A finished run whose only record has this accuracy on its target."""
    folder = store.folder(run)
    folder.path.mkdir(parents=True, exist_ok=True)
    settings = {"dataset": run.data_name, "algorithm": run.algorithm, "targets": list(run.targets), "trial": run.trial}
    settings |= {"draw": run.draw, "protocol": run.protocol, "steps": steps, "lr": 1e-3, "weight_decay": 0.0}
    settings |= {"batch_size": 8, "dropout": 0.0, "model": "small-cnn"}
    folder.agree(
        {
            "settings": settings,
            "data": {
                "domains": list(domains),
                "sizes": {d: {"in": SOURCES_IN, "out": 24} for d in domains},
                "fingerprints": dict.fromkeys(domains, "0" * 64),
            },
            "weights": {"tag": "none", "sha256": None},
            "environment": {"torch": "2.10.0", "threads": threads, "device": "cpu", "precision": "float32"},
            "where": {"algorithm": run.algorithm, "plan": run.to_json()},
        }
    )
    splits = {d: {"in": accuracy} if d in run.targets else {"out": validation} for d in domains}
    folder.records.append({"step": steps - 1, "accuracy": splits, "validation": validation})
    folder.finish({"environments": [], "refreshes": refreshes})


def store_of(path, item, accuracy, refreshes=lambda run: 0, leave_out=lambda run: False, **options):
    """A store in which every run of the item that is not left out is finished."""
    store = RunStore(path)
    store.make()
    for run in item.runs():
        if not leave_out(run):
            finish(store, run, item.domains()[run.dataset], accuracy(run), refreshes(run), **options)
    return store

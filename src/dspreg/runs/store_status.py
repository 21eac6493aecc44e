"""`dspreg.status`: what a sweep has done so far, for a script or a notebook."""

from __future__ import annotations

from pathlib import Path

from dspreg.runs.archive import open_store
from dspreg.runs.status import ATTEMPTS, StoreStatus, scan_store
from dspreg.runs.store import RunStore


def store_status(path: str | Path, *, attempts: int = ATTEMPTS) -> StoreStatus:
    """The status of all runs of a store, while sweeps write or when they are done. A table in a notebook.

        dspreg.status("runs/pacs").counts()

    A run counts as finished when its result is there: `sweep` and `report` verify the files, this does not.

    Args:
        path: The store of a sweep, or its `*.tar.xz`.
        attempts: How often a run may fail before sweeps give it up, as given to `sweep`.

    Raises:
        ConfigError: There is no store.
    """
    with open_store(path) as folder:
        store = RunStore(folder)
        store.check()
        return scan_store(store, attempts)

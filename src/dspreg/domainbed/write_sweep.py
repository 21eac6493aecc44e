"""Our runs as folders that DomainBed's collect_results reads."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

from dspreg.domainbed.jobs import job_id
from dspreg.domainbed.names import DATASETS
from dspreg.domainbed.records import format_records, sweep_arguments
from dspreg.errors import ConfigError, Notice
from dspreg.io.atomic_files import make_folder, write
from dspreg.reporting.load import find_store, load_run, run_folders


def write_sweep(path: str | Path, out: str | Path, *, data_dir: str = "data") -> int:
    """Write every finished run in a folder; returns how many. Damaged ones are errors here: left out in silence, they
    would be missing in tables that can't say so.

    Args:
        path: A folder of runs.
        out: A new or empty folder.
        data_dir: As given to DomainBed's sweep, for it is part of the folders' names.
    """
    target = Path(out)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError(
            f"{target} is there already and not empty; give a new folder, so that no job is counted twice"
        )
    taken: dict[str, str] = {}
    store, folders = find_store(path), run_folders(path)
    planned = {run.id for run in store.planned_runs()} if store else set()
    unknown, unfinished = set(), len(planned - {folder.path.name for folder in folders})
    made = []
    for folder in folders:
        run, described = load_run(folder), folder.description()
        if not run.finished:
            unfinished += 1
            continue
        settings = described["settings"] | {"algorithm": run.algorithm}
        arguments = sweep_arguments(settings, run.domains, data_dir)
        name = job_id(arguments)
        if name in taken:
            raise ConfigError(
                f"{taken[name]} and {run.folder} are one job to DomainBed, which knows no protocol, threads or options "
                "given by hand. Move one of them elsewhere"
            )
        taken[name] = run.folder
        smallest = min(each["in"] for each in described["data"]["sizes"].values())
        extra = arguments | {"steps": settings["steps"], "output_dir": str(target / name)}
        made.append((name, format_records(settings, run.domains, smallest, folder.records, arguments=extra)))
        unknown |= {run.dataset} - set(DATASETS)
    make_folder(target)
    for name, text in made:
        make_folder(target / name)
        write(target / name / "results.jsonl", text.encode())
        write(target / name / "done", b"done")
    _notice(unknown, unfinished)
    return len(made)


def _notice(unknown: Sequence[str] | set[str], unfinished: int) -> None:
    if unknown:
        names = ", ".join(sorted(unknown))
        warnings.warn(f"collect_results does not know {names} and leaves it out of its tables", Notice, stacklevel=3)
    if unfinished:
        warnings.warn(f"{unfinished} unfinished runs were not written", Notice, stacklevel=3)

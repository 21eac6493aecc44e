"""Where the numbers of a report come from, without a word on where files lie; and which runs are not in them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dspreg import __version__
from dspreg.io.text import join_few
from dspreg.protocol.selection import RunResult
from dspreg.reporting.conditions import SHARED
from dspreg.reporting.table import Row, Table
from dspreg.reporting.tables import SelectedRow
from dspreg.runs.status import RunStatus

MANY = 8  # values of one setting that are listed
ABSOLUTE = re.compile(r"""(?<![\w.:/\\])(?:[A-Za-z]:)?[/\\](?:[^\s/\\'"<>|:;,]+[/\\])+([^\s/\\'"<>|:;,]*)""")
Hide = Callable[[str], str]


def path_hider(root: str | Path) -> Hide:
    """Makes text fit to be mailed: paths within `root` count from there, others lose all but their last part."""
    inside = f"{Path(root)}/"

    def hide(text: str) -> str:
        short = text.replace(inside, "") if inside != "./" else text
        return ABSOLUTE.sub(lambda found: f"…/{found[1]}", short)

    return hide


def hide_paths(table: Table, hide: Hide) -> Table:
    """The same table; notes and reasons, which quote messages, have no paths."""
    rows = [
        Row(r.label, r.source, tuple(replace(c, reason=hide(c.reason)) if c.reason else c for c in r.cells))
        for r in table.rows
    ]
    return replace(table, rows=tuple(rows), notes=tuple(map(hide, table.notes)))


@dataclass(frozen=True)
class Missing:
    """A run that is in no number, and why."""

    dataset: str
    label: str
    targets: str
    trial: int
    draw: int
    status: RunStatus
    why: str


def unique_runs(found: Iterable[SelectedRow]) -> list[tuple[SelectedRow, RunResult]]:
    """Every run once, with a row that has it: a planned one waits in several, one that was run counts where it is."""
    seen = {id(run): (row, run) for row in found for run in row.runs if not run.elsewhere}
    return list(seen.values())


def missing_runs(found: Iterable[SelectedRow], hide: Hide) -> list[Missing]:
    """Failed ones first."""
    every = [
        Missing(
            row.dataset,
            row.label,
            ", ".join(run.targets) or "none",
            run.trial,
            run.draw,
            run.state.status,
            hide(run.why),
        )
        for row, run in unique_runs(found)
        if not run.finished
    ]
    return sorted(
        every, key=lambda m: (m.status is not RunStatus.FAILED, m.dataset, m.label, m.targets, m.trial, m.draw)
    )


def shared_facts(found: Sequence[SelectedRow], command: str) -> list[tuple[str, str]]:
    """What all data sets share."""
    runs = [run for _, run in unique_runs(found)]
    return [
        ("page made by", f"dspreg {__version__}: {command}"),
        ("runs made by dspreg", _list(run.made.get("dspreg") for run in runs)),
        *((name, _list(run.conditions.get(name) for run in runs)) for name in SHARED if name != "protocol"),
        ("protocol", _list(run.protocol for run in runs)),
    ]


def dataset_facts(found: Sequence[SelectedRow]) -> Iterator[tuple[str, str]]:
    """What is one data set's own: images, weights, settings."""
    runs = [run for _, run in unique_runs(found)]
    counted = {"finished": sum(run.finished for run in runs), "all": len(runs)}
    yield "runs", f"{counted['finished']:,} finished of {counted['all']:,}"
    for domain in found[0].domains:
        prints = _values(run.made.get("fingerprints", {}).get(domain) for run in runs)
        yield f"images of {domain}", ", ".join(f"SHA-256 {each}" for each in prints) or "unknown"
    yield "weights", _list(run.made.get("weights") for run in runs)
    for name in sorted({name for run in runs for name in run.conditions} - {*SHARED, "weights", "data"}):
        yield name, _list(run.conditions.get(name) for run in runs if run.conditions)
    for name in sorted({name for run in runs for name in run.options}):
        yield name, _list(run.options.get(name) for run in runs if run.options)


def _values(given: Iterable[Any]) -> list[str]:
    """Each once, in an order that does not depend on which was found first."""
    return sorted({str(each) for each in given if each is not None})


def _list(given: Iterable[Any]) -> str:
    return join_few(_values(given), MANY) or "unknown"

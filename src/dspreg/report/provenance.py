"""Where the numbers of a report come from, without a word on where files lie; and which runs are not in them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dspreg import __version__
from dspreg.protocol.selection import Trace
from dspreg.report.cells import Row, Table
from dspreg.report.conditions import ELSEWHERE, SHARED
from dspreg.report.tables import Selected

MANY = 8  # values of one setting that are listed
ABSOLUTE = re.compile(r"""(?<![\w.:/\\])(?:[A-Za-z]:)?[/\\](?:[^\s/\\'"<>|:;,]+[/\\])+([^\s/\\'"<>|:;,]*)""")
Hide = Callable[[str], str]


def hiding(root: str | Path) -> Hide:
    """Makes text fit to be mailed: paths within `root` count from there, others lose all but their last part."""
    inside = f"{Path(root)}/"

    def hide(text: str) -> str:
        short = text.replace(inside, "") if inside != "./" else text
        return ABSOLUTE.sub(lambda found: f"…/{found[1]}", short)

    return hide


def hidden(table: Table, hide: Hide) -> Table:
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
    why: str


def runs_of(found: Iterable[Selected]) -> list[tuple[Selected, Trace]]:
    """Every run once, with a row that has it: a planned one waits in several, one that was run counts where it is."""
    seen = {id(run): (row, run) for row in found for run in row.runs if run.state != ELSEWHERE}
    return list(seen.values())


def missing(found: Iterable[Selected], hide: Hide) -> list[Missing]:
    """Failed ones first."""
    every = [
        Missing(row.dataset, row.label, ", ".join(run.targets) or "none", run.trial, run.draw, hide(run.state))
        for row, run in runs_of(found)
        if not run.finished
    ]
    return sorted(every, key=lambda m: (not m.why.startswith("failed"), m.dataset, m.label, m.targets, m.trial, m.draw))


def of_all(found: Sequence[Selected], command: str) -> list[tuple[str, str]]:
    """What all data sets share."""
    runs = [run for _, run in runs_of(found)]
    return [
        ("page made by", f"dspreg {__version__}: {command}"),
        ("runs made by dspreg", _listed(run.made.get("dspreg") for run in runs)),
        *((name, _listed(run.conditions.get(name) for run in runs)) for name in SHARED if name != "protocol"),
        ("protocol", _listed(run.protocol for run in runs)),
    ]


def of_one(found: Sequence[Selected]) -> Iterator[tuple[str, str]]:
    """What is one data set's own: images, weights, settings."""
    runs = [run for _, run in runs_of(found)]
    counted = {"finished": sum(run.finished for run in runs), "all": len(runs)}
    yield "runs", f"{counted['finished']:,} finished of {counted['all']:,}"
    for domain in found[0].domains:
        prints = _values(run.made.get("fingerprints", {}).get(domain) for run in runs)
        yield f"images of {domain}", ", ".join(f"SHA-256 {each}" for each in prints) or "unknown"
    yield "weights", _listed(run.made.get("weights") for run in runs)
    for name in sorted({name for run in runs for name in run.conditions} - {*SHARED, "weights", "data"}):
        yield name, _listed(run.conditions.get(name) for run in runs if run.conditions)
    for name in sorted({name for run in runs for name in run.options}):
        yield name, _listed(run.options.get(name) for run in runs if run.options)


def _values(given: Iterable[Any]) -> list[str]:
    """Each once, in an order that does not depend on which was found first."""
    return sorted({str(each) for each in given if each is not None})


def _listed(given: Iterable[Any]) -> str:
    values = _values(given)
    more = f" and {len(values) - MANY:,} others" if len(values) > MANY else ""
    return ", ".join(values[:MANY]) + more or "unknown"

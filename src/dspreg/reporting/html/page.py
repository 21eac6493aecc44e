"""A report as one page: tables that sort, pictures, the runs that do not count, and where it all comes from."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from dspreg.forecast.sites import LEVELS
from dspreg.io.html import render_page
from dspreg.io.text import path_name, plural
from dspreg.protocol.selection import TITLES
from dspreg.reporting.expected import Expected, expected_by_rows, expected_sentence
from dspreg.reporting.html import curves, dots, layer_profiles
from dspreg.reporting.html.provenance import (
    Missing,
    dataset_facts,
    hide_paths,
    missing_runs,
    path_hider,
    shared_facts,
    unique_runs,
)
from dspreg.reporting.html.svg import colour_class
from dspreg.reporting.table import Row, Table
from dspreg.reporting.tables import SelectedRow, selection_title
from dspreg.runs.status import RunStatus

LISTED = 200  # runs that do not count
LIGHT = (
    "--ground: #fff; --ink: #1c1c1e; --faint: #0000001a; --link: #0b57d0; "
    "--k-0: #0072b2; --k-1: #c44e00; --k-2: #00805c; --k-3: #b0457f; "
    "--k-4: #8a6d00; --k-5: #5b4fc4; --k-6: #5f6670; --k-7: #b3261e;"
)
DARK = (
    "--ground: #16181c; --ink: #e8e8ea; --faint: #ffffff1f; --link: #8ab4f8; "
    "--k-0: #56b4e9; --k-1: #ff9d5c; --k-2: #3fd0a0; --k-3: #f09fca; "
    "--k-4: #e0c34a; --k-5: #b0a8ff; --k-6: #b9c0ca; --k-7: #ff8a80;"
)


def report_style() -> dict[str, str]:
    """What `render_page` needs for a page that looks like a report."""
    return {"style": read_part("css"), "light": LIGHT, "dark": DARK}


def read_part(suffix: str) -> str:
    return files("dspreg.reporting.html").joinpath(f"page.{suffix}").read_text("utf-8")


def render_report(
    found: Sequence[SelectedRow], tables: Sequence[Table], damaged: Sequence[str], path: str | Path, command: str
) -> str:
    """The same runs give the same bytes.

    Args:
        found: All rows.
        tables: As in the other formats.
        damaged: In words, which runs can't be read.
        path: Of the runs. Only its last part is shown.
        command: That made the page, without paths.
    """
    hide = path_hider(path)
    read, bad = layer_profiles.load_profiles(found)
    names = list(dict.fromkeys(each.dataset for each in found))
    parts = [_part([row for row in found if row.dataset == name], read) for name in names]
    waiting = missing_runs(found, hide)
    listed = {run.state.reason for _, run in unique_runs(found)}
    damaged = [each for each in damaged if each not in listed]  # of a store's plan, they are runs already
    return render_page(
        f"Report of {path_name(path)}",
        read_part("html"),
        script=read_part("js"),
        style=read_part("css"),
        light=LIGHT,
        dark=DARK,
        store=path_name(path),
        summary=_summary(found, damaged),
        late=found[0].rule == "late",
        oracle=TITLES["oracle"] if found[0].rule == "oracle" else "",
        tables=[hide_paths(table, hide) for table in tables],
        parts=parts,
        dots=dots.DOTS,
        ranges=any(len(row.trials) > dots.DOTS for row in found),
        profile_notes=list(map(hide, bad)),
        no_profiles=_no_profiles(read),
        WHATS=("c start", "null start", "c end", "null end"),
        missing=waiting[:LISTED],
        missing_summary=_count_missing(waiting, damaged),
        damaged=list(map(hide, damaged[:LISTED])),
        runs=f"{len(unique_runs(found)):,}",
        provenance=shared_facts(found, command),
        group_rows=group_rows,
        is_text=is_text,
        is_number=is_number,
        format_exact=format_exact,
    )


def _part(rows: list[SelectedRow], read: Sequence[layer_profiles.RowProfiles]) -> dict[str, Any]:
    """All of one data set but its table."""
    drawn = curves.draw_curves(rows)
    left = len(rows) - curves.ROWS
    others = sum(run.finished for row in rows for run in row.runs) - sum(
        len(list(curves.selected_lines(r))) for r in rows
    )
    many = [each for each in drawn if each.runs > curves.LINES]
    notes = [f"{others:,} finished runs of other draws, or with two domains held out, are not drawn." if others else ""]
    if many:
        notes.append(f"Of more than {curves.LINES} runs the middle four fifths are drawn as an area.")
    domains, expected = rows[0].domains, expected_by_rows(rows)
    return {
        "name": rows[0].dataset,
        "sentence": expected_sentence(expected),
        "expected": list(map(_expected, expected)),
        "dots": dots.draw_dots(rows),
        "curves": drawn,
        "thin": len(many) < len(drawn),
        "colours": [(target, colour_class(n, len(domains))) for n, target in enumerate(domains)],
        "left_out": f"The first {curves.ROWS} methods; {left:,} others are in the table." if left > 0 else "",
        "others": " ".join(filter(None, notes)),
        "profiles": list(layer_profiles.draw_profiles([p for p in read if p.dataset == rows[0].dataset])),
        "facts": list(dataset_facts(rows)),
    }


def _expected(each: Expected) -> dict[str, str]:
    """A line of the table of what to expect, in per cent."""
    ends = {level: each.interval(level) for level in LEVELS}
    low, high = (f"{100 * ends[level].low:.0f} – {100 * ends[level].high:.0f}" for level in LEVELS)
    return {
        "label": each.label,
        "domains": f"{len(each.forecast.sites)} of {each.domains}",
        "expected": f"{100 * each.forecast.expected:.0f}",
        "80": low,
        "90": high,
        "worst": f"{each.worst.site}, {100 * each.worst.accuracy:.0f}",
    }


# What the template asks.


def group_rows(table: Table) -> list[list[Row]]:
    """Every row of ours with what stands beside it."""
    found: list[list[Row]] = []
    for row in table.rows:
        if row.source == "ours":
            found.append([])
        found[-1].append(row)
    return found


def is_text(table: Table, column: int) -> bool:
    """Whether a column is one of words, such as a verdict."""
    cells = [row.cells[column] for row in table.rows]
    return all(c.value is None and c.found is None and not c.reason for c in cells) and any(c.text for c in cells)


def is_number(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def format_exact(value: float) -> str:
    """With all its digits."""
    return repr(float(value))


# What it prints.


def _summary(found: Sequence[SelectedRow], damaged: Sequence[str]) -> str:
    runs = [run for _, run in unique_runs(found)]
    finished, sets = sum(run.finished for run in runs), len({row.dataset for row in found})
    methods = len({row.label for row in found})
    return (
        f"{plural(len(runs) + len(damaged), 'run')}, of which {finished:,} are finished and count; "
        f"{plural(methods, 'method')} on {plural(sets, 'data set')}. Selection: {selection_title(found)}."
    )


def _count_missing(missing: Sequence[Missing], damaged: Sequence[str]) -> str:
    statuses = Counter(each.status for each in missing)
    statuses[RunStatus.DAMAGED] += len(damaged)
    counts = [f"{statuses[status]:,} {status}" for status in RunStatus if statuses[status]]
    more = max(len(missing), len(damaged)) > LISTED
    return ", ".join(counts) + (f"; the first {LISTED} of each list" if more else "") + "."


def _no_profiles(read: Sequence[layer_profiles.RowProfiles]) -> str:
    if any(read):
        return "The profiles of these runs were not read: they are damaged, or too large to be read for a page."
    return "No run has measured c before and after training; --profile always does so, and DSPReg does by itself."

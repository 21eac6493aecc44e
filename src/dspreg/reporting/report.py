"""`report`: a folder of runs as tables. What `dspreg report` prints."""

from __future__ import annotations

import json
import shlex
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dspreg.errors import ConfigError, DspregError, Notice
from dspreg.io.garbage import garbage_collection_paused
from dspreg.io.text import did_you_mean, path_name
from dspreg.protocol.selection import RULES
from dspreg.reporting.contrasts import contrast_table
from dspreg.reporting.formats import FORMATS
from dspreg.reporting.html.provenance import hide_paths, path_hider
from dspreg.reporting.load import read_runs
from dspreg.reporting.table import Table
from dspreg.reporting.tables import SelectedRow, check_selection, make_tables, select_rows
from dspreg.runs.archive import is_archive, open_store

HTML = "html"  # a page, with more than tables in it
REPORT_FORMATS = (*FORMATS, HTML)


@dataclass(frozen=True)
class Report:
    """Tables of finished runs. `print` shows them; made by `dspreg.report`.

    Attributes:
        path: Of the runs.
        selection: How step and draw were selected.
        select_by: By which metric of the sources; None: by that of each run.
        contrasts: Pairs of methods whose difference is among the tables.
        tables: A table for each data set, one of averages, and one for each contrast.
        damaged: In words, which runs could not be read.
    """

    path: str | Path
    selection: str
    contrasts: tuple[tuple[str, str], ...]
    tables: tuple[Table, ...]
    damaged: tuple[str, ...]
    select_by: str | None = None

    def __str__(self) -> str:
        return FORMATS["text"](self.tables)

    def _repr_html_(self) -> str:
        return "\n".join(table._repr_html_() for table in self.tables)

    def to_json(self) -> Any:
        """Every cell as plain data: mean, standard error, number of runs, and the reason where there is no number."""
        return json.loads(FORMATS["json"](self.tables))

    def render(self, format: str = "text") -> str:
        """The report as text in one of the formats; `"html"` reads the runs once more, for curves and profiles."""
        if format == HTML:
            how: dict[str, Any] = {
                "selection": self.selection,
                "contrasts": self.contrasts,
                "select_by": self.select_by,
            }
            return report_page(self.path, **how)
        if format not in FORMATS:
            known = ", ".join(REPORT_FORMATS)
            raise ConfigError(f"no format {format!r}.{did_you_mean(format, REPORT_FORMATS)} There are: {known}")
        return FORMATS[format](self.tables)


def report(
    path: str | Path,
    *,
    selection: str = "training",
    contrasts: Sequence[tuple[str, str] | Sequence[str]] = (),
    select_by: str | None = None,
) -> Report:
    """Tables of all runs in a folder, in a store, or in the archive of a store.

        print(dspreg.report("runs", contrasts=[("DSPReg", "ERM")]))

    Args:
        path: A folder of run folders, the store of a sweep (then what was planned counts), or its `*.tar.xz`.
        selection: How step and hyper-parameters are selected: `"training"` (source validation), `"leave-one-out"`,
            `"oracle"` (on the target itself: not a fair result), `"late"` (mean over the second half of training) or
            `"last"` (the last step).
        contrasts: Pairs of methods; each adds a table of their paired difference with a 95 % interval.
        select_by: Metric of the sources' held-out images by which `"training"`, `"late"` and `"last"` select, such as
            `"macro-f1"`; by default that by which each run was selected in training. What is reported is the accuracy.

    Raises:
        ConfigError: There are no runs, or no such selection or method.
        IntegrityError: An archive is damaged. A damaged run is left out with a notice.
    """
    with _open(path, selection, contrasts, select_by) as (folder, pairs):
        hide = _path_hider(path, folder)
        _, tables, damaged = _load(folder, path, selection, pairs, select_by)
        shown = tuple(hide_paths(each, hide) for each in tables)
        return Report(path, selection, pairs, shown, tuple(map(hide, damaged)), select_by)


def report_page(
    path: str | Path,
    *,
    selection: str = "training",
    contrasts: Sequence[tuple[str, str] | Sequence[str]] = (),
    select_by: str | None = None,
) -> str:
    """The same as one HTML page, with curves and profiles. Arguments as in `report`."""
    from dspreg.reporting.html.page import render_report

    with _open(path, selection, contrasts, select_by) as (folder, pairs):
        rows, tables, damaged = _load(folder, path, selection, pairs, select_by)
        return render_report(rows, tables, damaged, folder, _command(path, selection, pairs, select_by))


@contextmanager
def _open(
    path: str | Path, selection: str, contrasts: Sequence[tuple[str, str] | Sequence[str]], select_by: str | None
) -> Iterator[tuple[Path, tuple[tuple[str, str], ...]]]:
    """The folder of the runs, for an archive a temporary one; and the contrasts as pairs."""
    if selection not in RULES:
        raise ConfigError(f"selection={selection!r}; wanted one of {', '.join(map(repr, RULES))}")
    check_selection(selection, select_by)
    pairs = tuple((str(a), str(b)) for a, b in contrasts)
    with garbage_collection_paused(), open_store(path) as folder:
        yield folder, pairs


def _path_hider(path: str | Path, folder: Path) -> Callable[[str], str]:
    """The folder of an archive is gone when its name is read."""
    return path_hider(folder) if is_archive(path) else str


def _load(
    folder: Path, path: str | Path, selection: str, contrasts: Sequence[tuple[str, str]], select_by: str | None
) -> tuple[list[SelectedRow], list[Table], list[str]]:
    results, damaged = read_runs(folder)
    hide = _path_hider(path, folder)
    for each in damaged:
        warnings.warn(f"left out: {hide(each)}", Notice, stacklevel=4)
    if not results:
        raise ConfigError(f"all {len(damaged)} runs in {path} are damaged; nothing is left to report")
    rows = select_rows(results, selection, select_by=select_by)
    labels = {each.label for each in rows} | {each.algorithm for each in rows}
    tables = make_tables(rows, damaged)
    tables += [contrast_table(rows, *(_row_label(name, labels) for name in pair)) for pair in contrasts]
    return rows, tables, damaged


def _row_label(name: str, labels: set[str]) -> str:
    """The label of the row that a spec names as status and sweeps write it; torch is loaded only for other names."""
    if name in labels or "(" not in name:
        return name
    from dspreg.algorithms.registry import resolve_spec

    try:
        canonical = resolve_spec(name, trust=())[0]  # a report imports nobody's code: the label may be a stranger's
    except DspregError:
        return name
    return canonical if canonical in labels else name


def _command(path: str | Path, selection: str, contrasts: Sequence[tuple[str, str]], select_by: str | None) -> str:
    """As it can be passed on: of a path its last part."""
    parts = ["dspreg", "report", path_name(str(path)), "--format", HTML]
    parts += ["--selection", selection] if selection != "training" else []
    parts += ["--select-by", select_by] if select_by else []
    for pair in contrasts:
        parts += ["--contrast", *pair]
    return shlex.join(parts)

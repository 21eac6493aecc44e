"""All tables as one file of cells, one a line, for a spreadsheet or pandas."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from dspreg.names import cell as harmless
from dspreg.report.cells import Table

COLUMNS = (
    "table", "selection", "row", "source", "column", "value", "error", "found", "expected", "text", "reason",
)  # fmt: skip


def comma_separated(tables: Sequence[Table]) -> str:
    """Numbers to the last bit; what is not there is empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for table in tables:
        for row in table.rows:
            for column, each in zip(table.columns, row.cells, strict=True):
                names = [harmless(n) for n in (table.name, table.selection, row.label, row.source, column)]
                numbers = ["" if n is None else repr(n) for n in (each.value, each.error, each.found, each.expected)]
                writer.writerow([*names, *numbers, harmless(each.text), harmless(each.reason)])
    return out.getvalue()

"""All tables as strict JSON: numbers to the last bit, NaN as null."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from dspreg.report.cells import Cell, Table

SHOWN = ("signed", "decimals")  # how people see a cell, not what it is


def as_json(tables: Sequence[Table]) -> str:
    return json.dumps({"tables": [_table(each) for each in tables]}, indent=1, allow_nan=False) + "\n"


def _table(table: Table) -> dict[str, Any]:
    made = [
        {
            "row": row.label,
            "source": row.source,
            "cells": {name: _cell(cell) for name, cell in zip(table.columns, row.cells, strict=True)},
        }
        for row in table.rows
    ]
    facts = {name: getattr(table, name) for name in ("name", "title", "selection", "columns", "notes")}
    return facts | {"rows": made}


def _cell(cell: Cell) -> dict[str, Any]:
    """Without what it does not have; a number that is not one stays, as null."""
    found = {name: value for name, value in asdict(cell).items() if value not in (None, "") and name not in SHOWN}
    return {name: None if isinstance(v, float) and not math.isfinite(v) else v for name, v in found.items()}

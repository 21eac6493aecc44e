"""The paper's figures, as printed in its tables; `published_results.csv` holds them."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from functools import cache
from importlib.resources import files

from dspreg.reporting.table import Cell

FIVE = ("PACS", "VLCS", "OfficeHome", "TerraIncognita", "DomainNet")
SPELT = {"DSPReg": "DSP-Reg"}  # ours → the paper's
ABLATIONS = {  # rows of PACS that are variants of the method
    "DSPReg(coefficients='ones')": ("ablation_components", "without c (c=1)"),
    "DSPReg(coefficients='static')": ("ablation_dynamic", "static c"),
}
NOTE = (
    "paper: ResNet-50, 3 seeds, as printed. Its per-domain tables and its main table do not always agree; "
    "here the former stand beside domains, the latter in Averages"
)


@cache
def _figures() -> dict[tuple[str, str, str, str], Cell]:
    text = files("dspreg.reporting").joinpath("published_results.csv").read_text(encoding="utf-8")
    return {
        (row["table"], row["dataset"], row["algorithm"], row["target"]): Cell(
            value=float(row["accuracy"]), error=float(row["stderr"]) if row["stderr"] else None
        )
        for row in csv.DictReader(text.splitlines())
    }


def published_cells(table: str, dataset: str, algorithm: str, targets: Sequence[str]) -> list[Cell]:
    """One row of one table, by the names of `published_results.csv`; empty cells where nothing is printed."""
    return [_figures().get((table, dataset, algorithm, target)) or Cell() for target in targets]


def by_domain(dataset: str, algorithm: str, domains: Sequence[str]) -> list[Cell] | None:
    """Beside a data set's own table: every domain, and the mean; None where the paper has nothing."""
    table, name = ABLATIONS.get(algorithm, ("per_domain", SPELT.get(algorithm, algorithm)))
    found = [_figures().get((table, dataset, name, target)) for target in (*domains, "Avg")]
    if found[-1] is None:  # some methods have a mean alone
        found[-1] = _figures().get(("main", dataset, name, "Avg"))
    return [cell or Cell() for cell in found] if any(found) else None


def averages(datasets: Sequence[str], algorithm: str) -> list[Cell] | None:
    """Beside Averages: every data set, and their mean."""
    name = SPELT.get(algorithm, algorithm)
    found = [_figures().get(("main", dataset, name, "Avg")) for dataset in datasets]
    if not any(found):
        return None
    whole = _figures().get(("main", "all", name, "Avg")) if set(datasets) == set(FIVE) else None
    values = [cell.value for cell in found if cell is not None and cell.value is not None]
    if whole is None and len(values) == len(found):
        whole = Cell(value=sum(values) / len(values))
    return [*(cell or Cell() for cell in found), whole or Cell()]

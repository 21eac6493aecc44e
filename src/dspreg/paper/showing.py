"""From an item's runs to its tables: what scale it is, ours beside the paper's, refreshes, differences in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dspreg.paper.found import Found, Refreshes, arms_of, told, traces_of
from dspreg.paper.item import Item
from dspreg.paper.scale_shown import scale_table
from dspreg.paper.sentences import Compared, of_order, of_pairs
from dspreg.report.cells import Cell, Row, Table, difference, mean
from dspreg.report.contrasts import COLUMNS, contrast
from dspreg.report.paper import FIVE
from dspreg.report.tables import explained
from dspreg.runs.store import RunStore

LAST = ("mean", "refreshes", "planned", "runs")
REFRESHES = "refreshes: of every finished run, least to most; planned: as T and the number of steps have it"
PAIRED = "paired by trial and conditions; ± and interval by the spread within targets, pooled"
PRINTED = "paper: the difference of its printed means"
FROM = "paper: Table 3's full method, which has these settings; Figure 2 is printed without numbers"


def tables(item: Item, store: RunStore) -> list[Table]:
    """The scale if it is not the paper's, the figures, the differences; the last note is the sentence."""
    traces, refreshes = traces_of(item, store)
    found = arms_of(item, traces)
    made = _several(item, found, refreshes) if item.name == "main" else _one(item, found, refreshes)
    compared = [_compared(item, found, first, second) for first, second in item.pairs]
    words = [of_pairs(compared)]
    if item.best is not None:
        words += _orders(item, found)
    return [*scale_table(item), made, differences(item, compared, words)]


def differences(item: Item, compared: Sequence[Compared], words: Iterable[str]) -> Table:
    rows = []
    for each in compared:
        found, why = each.found, "no pairs" if each.found is None else ""
        numbers = (None, None, None) if found is None else (found.difference, found.low, found.high)
        errors = (None if found is None else found.error, None, None)
        reason = why or "no target has two pairs"
        cells = [
            Cell(value=v, error=e, signed=True, decimals=each.decimals, reason=reason if v is None else "")
            for v, e in zip(numbers, errors, strict=True)
        ]
        cells += [Cell(text=str(found.pairs if found else 0)), Cell(text=each.verdict)]
        cells.append(Cell(value=each.paper, signed=True, decimals=each.decimals))
        rows.append(Row(f"{each.first} − {each.second}", "ours", tuple(cells)))
    unit = compared[0].unit.strip() if compared else ""
    title = f"{item.what}: differences{', in points of per cent' if unit == 'points' else f' {unit} of the layer'}"
    notes = (PAIRED, *([PRINTED] if any(each.paper is not None for each in compared) else []), *words)
    return Table(f"{item.name}: differences", title, "training", (*COLUMNS, "paper"), tuple(rows), notes)


def _one(item: Item, found: dict[str, list[Found]], refreshes: dict[str, Refreshes]) -> Table:
    """A data set by its domains."""
    ((dataset, arms),) = found.items()
    targets, same, rows = item.held_out(dataset), dataset in item.datasets, []
    for each in arms:
        cells = [each.cell(target) for target in targets] + [each.mean()]
        rows.append(Row(each.label, "ours", (*cells, *refreshes[each.arm.algorithm].cells(), each.runs())))
        theirs = each.arm.figures(item.datasets[0], [*targets, "Avg"])
        rows += _beside(each.label, cells, theirs if same else [Cell() for _ in targets] + theirs[-1:], same)
    title = f"{item.what}. {dataset}: accuracy on each domain held out, in %; selected by source validation"
    columns = (*targets, *LAST)
    from_table = [FROM] if item.best is not None else []
    notes = (*explained(rows), REFRESHES, *_notes(item, dataset), *from_table, *told(item, refreshes))
    return Table(item.name, title, "training", columns, tuple(rows), notes)


def _several(item: Item, found: dict[str, list[Found]], refreshes: dict[str, Refreshes]) -> Table:
    """Means of data sets."""
    datasets, rows = list(found), []
    same = datasets == list(item.datasets)
    for label, arm in {each.label: each.arm for arms in found.values() for each in arms}.items():
        there = {name: each for name, arms in found.items() for each in arms if each.label == label}
        cells = [there[name].average() if name in there else Cell(reason="no runs") for name in datasets]
        cells.append(mean(cells))
        done = sum(each.row.finished for each in there.values())
        wanted = sum(each.row.wanted for each in there.values())
        runs = Cell(text=f"{done}/{wanted}", found=done, expected=wanted)
        rows.append(Row(label, "ours", (*cells, *refreshes[arm.algorithm].cells(), runs)))
        whole = arm.figures("all", ["Avg"])
        theirs = [cell for name in datasets for cell in (arm.figures(name, ["Avg"]) if same else [Cell()])] + whole
        rows += _beside(label, cells, theirs, same)
    title = f"{item.what}, in %; selected by source validation"
    notes = (*explained(rows), REFRESHES, *_notes(item, datasets[0]), *told(item, refreshes))
    return Table(item.name, title, "training", (*datasets, *LAST), tuple(rows), notes)


def _beside(label: str, ours: list[Cell], theirs: list[Cell], same: bool) -> list[Row]:
    """The paper's row, and the difference if it is about the same images."""
    if all(cell.value is None for cell in theirs):
        return []
    empty = (Cell(),) * (len(LAST) - 1)
    rows = [Row(label, "paper", (*theirs, *empty))]
    if same:
        apart = tuple(difference(mine, its) for mine, its in zip(ours, theirs, strict=True))
        rows.append(Row(label, "difference", (*apart, *empty)))
    return rows


def _notes(item: Item, dataset: str) -> list[str]:
    if item.as_published:
        return ["paper: as printed, of three seeds"]
    if dataset not in item.datasets:
        where = "the five data sets" if item.datasets == FIVE else item.datasets[0]
        return [f"paper: its mean on {where}, printed for a ResNet-50; other images, so no difference is taken"]
    return ["paper: ResNet-50 at its own scale; the difference is not one of methods"]


def _compared(item: Item, found: dict[str, list[Found]], first: str, second: str) -> Compared:
    """Over all targets of all data sets, each target alike."""
    apart: list[list[float]] = []
    for arms in found.values():
        rows = [{f.label.removeprefix(label): f.row for f in arms if f.arm.label == label} for label in (first, second)]
        common = [(row, rows[1][conditions]) for conditions, row in rows[0].items() if conditions in rows[1]]
        for target in arms[0].targets if common else ():
            both = [(one.accuracy(target, t), two.accuracy(target, t)) for one, two in common for t in one.trials]
            apart.append([x - y for x, y in both if x is not None and y is not None])
    where = "all" if item.name == "main" else item.datasets[0]
    theirs = [item.arm(label).figures(where, ["Avg"])[0].value for label in (first, second)]
    paper = None if theirs[0] is None or theirs[1] is None else round(theirs[0] - theirs[1], 1)
    ours = contrast(apart) if any(apart) else None
    return Compared(first, second, ours, paper, comparable=item.as_published)


def _orders(item: Item, found: dict[str, list[Found]]) -> list[str]:
    """One sentence for every line of a figure."""
    assert item.best is not None
    lines: dict[str, list[tuple[str, float, float]]] = {arm.line: [] for arm in item.arms}
    for arms in found.values():
        for each in arms:
            middle = each.mean().value
            if middle is not None and each.arm.x is not None:
                lines[each.arm.line].append((each.label, each.arm.x, middle))
    return [of_order(item.axis, points, item.best[0]) for points in lines.values()]

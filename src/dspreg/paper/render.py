"""From an item's runs to its tables: what scale it is, ours beside the paper's, refreshes, differences in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dspreg.paper.item import Item
from dspreg.paper.results import (
    Refreshes,
    VariantRow,
    count_refreshes,
    count_runs,
    load_item,
    refresh_notes,
    rows_by_dataset,
)
from dspreg.paper.scales import ENGINE, PAPER
from dspreg.paper.verdicts import Comparison, order_sentence, pairs_sentence
from dspreg.reporting.contrasts import COLUMNS, contrast_differences
from dspreg.reporting.published import FIVE
from dspreg.reporting.table import Cell, Row, Table, mean
from dspreg.reporting.tables import explain_marks, published_rows
from dspreg.runs.store import RunStore

LAST = ("mean", "refreshes", "planned", "runs")
REFRESHES = "refreshes: of every finished run, least to most; planned: as T and the number of steps have it"
PAIRED = "paired by trial and conditions; ± and interval by the spread within targets, pooled"
PRINTED = "paper: the difference of its printed means"
FROM = "paper: Table 3's full method, which has these settings; Figure 2 is printed without numbers"
IN_COLUMNS = ("model", "image_size", "steps", "weights")  # or where files lie
PUBLISHED = {"network": "ResNet-50", "pixels": f"({PAPER.image_size})", "steps": f"({PAPER.steps:,})"}
SEEDS = {  # as far as the paper says
    "methods": {"trials": "3", "draws": "(20)"},
    "ablation": {"trials": "3", "draws": "not stated"},
    "map": {"trials": "not stated", "draws": "not stated", "targets": "not stated"},
}


def render_tables(item: Item, store: RunStore) -> list[Table]:
    """The scale if it is not the paper's, the figures, the differences; the last note is the sentence."""
    results = load_item(item, store)
    refreshes = count_refreshes(item, store, results)
    found = rows_by_dataset(item, results.values())
    made = _several(item, found, refreshes) if item.name == "main" else _one(item, found, refreshes)
    compared = [_compare(item, found, first, second) for first, second in item.pairs]
    words = [pairs_sentence(compared)]
    if item.best is not None:
        words += _order_sentences(item, found)
    return [*scale_table(item), made, difference_table(item, compared, words)]


def scale_table(item: Item) -> list[Table]:
    """What was run in place of what the paper ran; nothing if that is the same."""
    if item.as_published:
        return []
    published = PUBLISHED | {"data": ", ".join(item.datasets), "targets": "all"}
    published |= SEEDS.get(item.kind, {})
    every = {**item.scale.settings, **item.settings, **item.scale.penalty}
    every |= {} if item.engine == ENGINE else {"engine": item.engine}
    every |= {} if item.precision == "fp32" else {"precision": item.precision}
    other = {n: v for n, v in every.items() if PAPER.settings.get(n) != v and (n not in IN_COLUMNS or v == "none")}
    title = f"NOT THE PAPER'S SCALE: this is {item.scale.name}"
    if item.scale is PAPER:
        title = "NOT THE PAPER'S SCALE: it was changed"
    notes = [
        "what follows says nothing about what the paper's scale would give",
        "in brackets what the paper does not say and DomainBed, whose protocol it follows, has",
    ]
    if other:
        notes.append("also set: " + ", ".join(f"{name}={value}" for name, value in other.items()))
    if item.scale.epoch is not None and any("refresh_steps" in variant.spec for variant in item.variants):
        notes.append(f"T counts {item.scale.epoch} steps for an epoch, whatever the number of images")
    here = {
        "data": ", ".join(item.domains()),
        "network": str(item.setting("model")),
        "pixels": str(item.setting("image_size")),
    }
    if item.kind != "overhead":
        here |= {
            "steps": f"{item.setting('steps'):,}",
            "targets": "all" if item.targets is None else ", ".join(item.targets),
            "trials": str(item.number_of_trials),
            "draws": str(item.number_of_draws),
        }
    columns = tuple(here)
    rows = [
        Row(label, source, tuple(Cell(text=each[name]) for name in columns))
        for label, source, each in (("here", "ours", here), ("here", "paper", published))
    ]
    return [Table(f"{item.name}: scale", title, "training", columns, tuple(rows), tuple(notes))]


def difference_table(item: Item, compared: Sequence[Comparison], words: Iterable[str]) -> Table:
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
    title = f"{item.what}: differences{', in percentage points' if unit == 'points' else f' {unit} of the layer'}"
    notes = (PAIRED, *([PRINTED] if any(each.paper is not None for each in compared) else []), *words)
    return Table(f"{item.name}: differences", title, "training", (*COLUMNS, "paper"), tuple(rows), notes)


def _one(item: Item, found: dict[str, list[VariantRow]], refreshes: dict[str, Refreshes]) -> Table:
    """A data set by its domains."""
    ((dataset, variants),) = found.items()
    targets, same, rows = item.held_out(dataset), dataset in item.datasets, []
    for each in variants:
        cells = [each.cell(target) for target in targets] + [each.mean()]
        rows.append(Row(each.label, "ours", (*cells, *refreshes[each.variant.algorithm].cells(), count_runs([each]))))
        theirs = each.variant.published_cells(item.datasets[0], [*targets, "Avg"])
        theirs = theirs if same else [Cell() for _ in targets] + theirs[-1:]
        rows += published_rows(each.label, cells, theirs, len(LAST) - 1, comparable=same)
    title = f"{item.what}. {dataset}: accuracy on each domain held out, in %; selected by source validation"
    columns = (*targets, *LAST)
    from_table = [FROM] if item.best is not None else []
    notes = (*explain_marks(rows), REFRESHES, *_notes(item, dataset), *from_table, *refresh_notes(item, refreshes))
    return Table(item.name, title, "training", columns, tuple(rows), notes)


def _several(item: Item, found: dict[str, list[VariantRow]], refreshes: dict[str, Refreshes]) -> Table:
    """Means of data sets."""
    datasets, rows = list(found), []
    same = datasets == list(item.datasets)
    for label, variant in {each.label: each.variant for variants in found.values() for each in variants}.items():
        there = {name: each for name, variants in found.items() for each in variants if each.label == label}
        cells = [there[name].average() if name in there else Cell(reason="no runs") for name in datasets]
        cells.append(mean(cells))
        rows.append(Row(label, "ours", (*cells, *refreshes[variant.algorithm].cells(), count_runs(there.values()))))
        means = [cell for name in datasets for cell in (variant.published_cells(name, ["Avg"]) if same else [Cell()])]
        theirs = [*means, *variant.published_cells("all", ["Avg"])]
        rows += published_rows(label, cells, theirs, len(LAST) - 1, comparable=same)
    title = f"{item.what}, in %; selected by source validation"
    notes = (*explain_marks(rows), REFRESHES, *_notes(item, datasets[0]), *refresh_notes(item, refreshes))
    return Table(item.name, title, "training", (*datasets, *LAST), tuple(rows), notes)


def _notes(item: Item, dataset: str) -> list[str]:
    if item.as_published:
        return ["paper: as printed, of three seeds"]
    if dataset not in item.datasets:
        where = "the five data sets" if item.datasets == FIVE else item.datasets[0]
        return [f"paper: its mean on {where}, printed for a ResNet-50; other images, so no difference is taken"]
    return ["paper: ResNet-50 at its own scale; the difference is not one of methods"]


def _compare(item: Item, found: dict[str, list[VariantRow]], first: str, second: str) -> Comparison:
    """Over all targets of all data sets, each target alike."""
    apart: list[list[float]] = []
    for variants in found.values():
        rows = [
            {each.label.removeprefix(label): each.row for each in variants if each.variant.label == label}
            for label in (first, second)
        ]
        common = [(row, rows[1][conditions]) for conditions, row in rows[0].items() if conditions in rows[1]]
        for target in variants[0].targets if common else ():
            both = [(one.accuracy(target, t), two.accuracy(target, t)) for one, two in common for t in one.trials]
            apart.append([x - y for x, y in both if x is not None and y is not None])
    where = "all" if item.name == "main" else item.datasets[0]
    theirs = [item.variant(label).published_cells(where, ["Avg"])[0].value for label in (first, second)]
    paper = None if theirs[0] is None or theirs[1] is None else round(theirs[0] - theirs[1], 1)
    ours = contrast_differences(apart) if any(apart) else None
    return Comparison(first, second, ours, paper, comparable=item.as_published)


def _order_sentences(item: Item, found: dict[str, list[VariantRow]]) -> list[str]:
    """One for every line of a figure."""
    assert item.best is not None
    lines: dict[str, list[tuple[str, float, float]]] = {variant.line: [] for variant in item.variants}
    for variants in found.values():
        for each in variants:
            middle = each.mean().value
            if middle is not None and each.variant.x is not None:
                lines[each.variant.line].append((each.label, each.variant.x, middle))
    return [order_sentence(item.axis, points, item.best[0]) for points in lines.values()]

"""The first table of an item that is not run as the paper ran it: what was run in its place."""

from __future__ import annotations

from dspreg.paper.item import ENGINE, Item
from dspreg.paper.scales import PAPER
from dspreg.report.cells import Cell, Row, Table

SAID = ("model", "image_size", "steps", "weights")  # in columns, or where files lie
PUBLISHED = {"network": "ResNet-50", "pixels": f"({PAPER.image_size})", "steps": f"({PAPER.steps:,})"}
SEEDS = {  # what the paper says of them
    "methods": {"trials": "3", "draws": "(20)"},
    "ablation": {"trials": "3", "draws": "not said"},
    "map": {"trials": "not said", "draws": "not said", "targets": "not said"},
}


def scale_table(item: Item) -> list[Table]:
    """What was run in place of what the paper ran; nothing if that is the same."""
    if item.as_published:
        return []
    published = PUBLISHED | {"data": ", ".join(item.datasets), "targets": "all"}
    published |= SEEDS.get(item.kind, {})
    every = {**item.scale.settings, **item.settings, **item.scale.penalty}
    every |= {} if item.engine == ENGINE else {"engine": item.engine}
    every |= {} if item.precision == "float32" else {"precision": item.precision}
    other = {n: v for n, v in every.items() if PAPER.settings.get(n) != v and (n not in SAID or v == "none")}
    title = f"NOT THE PAPER'S SCALE: this is {item.scale.name}"
    if item.scale is PAPER:
        title = "NOT THE PAPER'S SCALE: it was changed"
    notes = [
        "what follows says nothing about what the paper's scale would give",
        "in brackets what the paper does not say and DomainBed, whose protocol it follows, has",
    ]
    if other:
        notes.append("also set: " + ", ".join(f"{name}={value}" for name, value in other.items()))
    if item.scale.epoch is not None and any("refresh_steps" in arm.spec for arm in item.arms):
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

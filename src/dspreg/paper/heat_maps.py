"""The paper's heat map: c of one layer before and after training, of DSP-Reg and of ERM, with its noise floor beside.

The layer is the 13th convolution in forward order; a network with fewer has its last one there.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn

from dspreg.errors import DspregError, IntegrityError, Notice
from dspreg.networks import make_backbone
from dspreg.paper.item import Item
from dspreg.paper.render import REFRESHES, difference_table, scale_table
from dspreg.paper.results import Refreshes, count_refreshes, load_item, refresh_notes
from dspreg.paper.verdicts import Comparison, pairs_sentence
from dspreg.protocol.selection import RunResult
from dspreg.reporting.contrasts import contrast_differences
from dspreg.reporting.table import Cell, Row, Table
from dspreg.reporting.tables import count_cell
from dspreg.runs.status import RunStatus
from dspreg.runs.store import RunStore
from dspreg.sensitivity import Profile
from dspreg.sensitivity.plots import largest_tensor

LAYER = 13
COLUMNS = ("layer: mean c", "null", "c − null", "all: mean c", "all: null", "all: c − null", "reliability",
           "refreshes", "planned", "runs")  # fmt: skip
NULL = "null: c under random domain labels, the permutation baseline; only what stands above it is about domains"
WITHOUT = (
    "means over the parameters that some domain is sensitive to, and over trials; the paper says nothing in "
    "numbers, of null or of ERM"
)
NONE = "no domain is sensitive to the layer"


def convolutions(net: nn.Module, x: torch.Tensor) -> list[str]:
    """The names of all convolutions, in the order in which they are called."""
    names, seen = {module: name for name, module in net.named_modules()}, []
    handles = [
        module.register_forward_hook(lambda module, *_: seen.append(names[module]))
        for module in net.modules()
        if isinstance(module, nn.Conv2d)
    ]
    with torch.no_grad():
        net(x)
    for handle in handles:
        handle.remove()
    return seen


def layer_of(model: str, image_size: int) -> tuple[str, int]:
    """The layer that is drawn, by its name in profiles, and which convolution it is."""
    featurizer = make_backbone(model, weights="none", image_size=image_size).make().eval()
    found = convolutions(featurizer, torch.zeros(1, 3, image_size, image_size))
    number = min(LAYER, len(found))
    return f"featurizer.{found[number - 1]}", number


def mean_c_and_null(profile: Profile, layer: str) -> list[tuple[float, float] | None]:
    """Mean c and null of the layer's largest tensor and of all parameters, over those some domain is sensitive to."""
    name = largest_tensor(profile, layer)
    alive = profile.alive()[name]
    if profile.null is None:
        raise IntegrityError("a profile of the run was measured without null, which training never does")
    pairs = [(profile.c[name][alive], profile.null[name][alive])]
    pairs.append((profile.over_alive(profile.c), profile.over_alive(profile.null)))
    return [(float(c.double().mean()), float(null.double().mean())) if c.numel() else None for c, null in pairs]


@dataclass
class ProfileColumn:
    """One column of the picture, over trials."""

    profiles: dict[int, Path] = field(default_factory=dict)  # by trial
    missing: list[str] = field(default_factory=list)
    wanted: int = 0

    def measure(self, layer: str) -> dict[int, tuple[list[tuple[float, float] | None], float | None]]:
        """Mean c and null by trial, and reliability. A profile that says nothing of them is named and left out."""
        found = {}
        for trial, path in list(self.profiles.items()):
            try:
                profile = Profile.load(path)
                found[trial] = mean_c_and_null(profile, layer), profile.reliability
            except DspregError as error:
                del self.profiles[trial]
                self.leave_out(error)
        return found

    def leave_out(self, error: DspregError) -> None:
        self.missing.append(f"damaged: {error}")
        warnings.warn(f"left out: {error}", Notice, stacklevel=3)


def find_profiles(item: Item, store: RunStore, traces: Mapping[str, RunResult]) -> dict[str, ProfileColumn]:
    """The profiles before training and after that of each variant. All variants of a trial start from the same
    parameters, so the first one's profile stands for before."""
    found = {"before": ProfileColumn(), **{variant.label: ProfileColumn() for variant in item.variants}}
    labels = {variant.algorithm: variant.label for variant in item.variants}
    for run in item.runs():
        folder, after = store.folder(run), found[labels[run.algorithm]]
        after.wanted += 1
        if not traces[run.id].finished:
            after.missing.append(traces[run.id].why)
        elif not (folder / "profiles/end.safetensors").exists():
            after.missing.append("was trained without --profile always; take another store")
        else:
            try:
                start, end = (folder.profile(time) for time in ("start", "end"))
            except DspregError as error:
                after.leave_out(error)
                continue
            after.profiles[run.trial] = end
            found["before"].profiles.setdefault(run.trial, start)
    found["before"].wanted = item.number_of_trials
    found["before"].missing = found[item.variants[0].label].missing
    return found


def render_tables(item: Item, store: RunStore) -> list[Table]:
    """Means of the layer and of all parameters, refreshes, and differences of c − null in words."""
    layer, number = layer_of(item.setting("model"), item.setting("image_size"))
    traces = load_item(item, store)
    refreshes = count_refreshes(item, store, traces)
    columns = find_profiles(item, store, traces)
    measured = {label: each.measure(layer) for label, each in columns.items()}
    of = {variant.label: refreshes[variant.algorithm] for variant in item.variants}
    rows = []
    for label, each in columns.items():
        cells = _cells([m for m, _ in measured[label].values()], [r for _, r in measured[label].values()], each.missing)
        runs = count_cell(len(each.profiles), each.wanted)
        rows.append(Row(_when(label), "ours", (*cells, *of.get(label, Refreshes()).cells(), runs)))
    which = f"convolution {number} in forward order"
    if number < LAYER:
        which = f"convolution {number}, the last there is, in place of the {LAYER}th"
    title = f"{item.what}. {layer}, {which}"
    compared = [_compare(measured, first, second) for first, second in item.pairs]
    notes = (NULL, REFRESHES, WITHOUT, *refresh_notes(item, refreshes))
    made = Table(item.name, title, "training", COLUMNS, tuple(rows), notes)
    return [*scale_table(item), made, difference_table(item, compared, [f"Of the layer, {pairs_sentence(compared)}"])]


def profiles_to_draw(item: Item, store: RunStore) -> tuple[dict[str, Profile], str]:
    """The profiles of the first trial that has them all, and the layer."""
    columns = find_profiles(item, store, load_item(item, store))
    layer, _ = layer_of(item.setting("model"), item.setting("image_size"))
    both = [trial for trial in columns["before"].profiles if all(trial in each.profiles for each in columns.values())]
    chosen = {label: each.profiles[both[0]] for label, each in columns.items()} if both else {}
    return {_when(label): Profile.load(path) for label, path in chosen.items()}, layer


def _when(label: str) -> str:
    return label if label == "before" else f"after {label}"


def _cells(
    measured: list[list[tuple[float, float] | None]], reliabilities: list[float | None], missing: list[str]
) -> list[Cell]:
    why = "; ".join(dict.fromkeys(missing)) or RunStatus.NOT_STARTED.value
    cells: list[Cell] = []
    for part in range(2):  # the layer, all parameters
        there = [pair for each in measured if (pair := each[part]) is not None]
        if not there:
            cells += [Cell(reason=NONE if measured else why)] * 3
            continue
        c, null = (sum(pair[i] for pair in there) / len(there) for i in range(2))
        cells += [
            Cell(value=c, decimals=3),
            Cell(value=null, decimals=3),
            Cell(value=c - null, decimals=3, signed=True),
        ]
    known = [each for each in reliabilities if each is not None]
    reason = "" if known else why
    return [*cells, Cell(value=sum(known) / len(known) if known else None, decimals=2, reason=reason)]


def _compare(
    measured: Mapping[str, Mapping[int, tuple[list[tuple[float, float] | None], float | None]]],
    first: str,
    second: str,
) -> Comparison:
    """c − null of the layer, one column less another, paired by trial."""
    apart = []
    for trial, ([one, _], _) in measured[first].items():
        if trial in measured[second]:
            other = measured[second][trial][0][0]
            if one is not None and other is not None:
                apart.append((one[0] - one[1]) - (other[0] - other[1]))
    found = (
        contrast_differences([[each / 100 for each in apart]]) if apart else None
    )  # it takes shares and gives per cent
    return Comparison(_when(first), _when(second), found, unit=" in c − null", decimals=3, larger="higher")

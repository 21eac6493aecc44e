"""c by layer before and after training, beside null, read from the profiles that runs leave. Without torch.

A profile of a large network is a gigabyte, and what is quoted is verified: so only some are read, of every row as many
as of the others, and the page says how many.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dspreg.errors import DspregError
from dspreg.io.profile_file import opened_profile
from dspreg.reporting.html.svg import Picture, fit_scale
from dspreg.reporting.tables import SelectedRow
from dspreg.runs.folder import RunFolder

TIMES = ("start", "end")
RUNS = 6  # of a row that are read
BYTES = 8 * 10**9  # of all of them together
WIDTH, LEFT, RIGHT, TOP, TALL, LOW, MOST = 384, 140, 374, 6, 18, 4, 420

Layers = dict[str, dict[str, float]]  # layer → "c start", "null start", "c end", "null end" → mean over its parameters


@dataclass
class RowProfiles:
    """Of one row, the mean over the runs read."""

    dataset: str
    label: str
    there: int  # runs that have profiles
    read: list[Layers] = field(default_factory=list)

    def layers(self) -> Layers:
        """Of layers that all runs have, in the order of the network."""
        first, *others = self.read
        shared = [name for name in first if all(name in each for each in others)]
        return {
            name: {what: float(np.mean([each[name][what] for each in self.read])) for what in _shared(self.read, name)}
            for name in shared
        }


def _shared(read: Sequence[Layers], name: str) -> list[str]:
    return [what for what in read[0][name] if all(what in each[name] for each in read)]


def load_profiles(found: Sequence[SelectedRow]) -> tuple[list[RowProfiles], list[str]]:
    """Of every row that has some, and which are damaged."""
    folders = {(row.dataset, row.label): _with_profiles(row) for row in found}
    made = {key: RowProfiles(*key, len(each)) for key, each in folders.items() if each}
    spent, damaged = 0, []
    for turn in range(RUNS):
        for key, one in made.items():
            if turn < len(folders[key]):
                folder = folders[key][turn]
                size = sum(_path(folder, time).stat().st_size for time in TIMES)
                if spent + size <= BYTES:
                    spent += size
                    try:
                        one.read.append(_both(folder))
                    except DspregError as error:
                        damaged.append(str(error))
    return list(made.values()), damaged


def _with_profiles(row: SelectedRow) -> list[RunFolder]:
    """First those of draw 0, which has the same options in all rows."""
    runs = sorted((run for run in row.runs if run.finished), key=lambda r: (r.draw, r.trial, len(r.targets), r.targets))
    folders = [RunFolder(run.folder) for run in runs if run.folder]
    return [each for each in folders if all(_path(each, time).is_file() for time in TIMES)]


def _path(folder: RunFolder, time: str) -> Path:
    return folder / f"profiles/{time}.safetensors"


def _both(folder: RunFolder) -> Layers:
    made: Layers = {}
    for time in TIMES:
        for layer, values in layer_means(folder.profile(time), verified=True).items():
            made.setdefault(layer, {}).update({f"{what} {time}": value for what, value in values.items()})
    return made


def layer_means(path: Path, *, verified: bool = False) -> dict[str, dict[str, float]]:
    """Layer → c and null, each the mean over all parameters of the layer; `verified` as in `opened_profile`."""
    with opened_profile(path, verified=verified) as file:
        owners: dict[str, list[str]] = {}
        for name in file.names:
            owners.setdefault(name.rpartition(".")[0], []).append(name)
        return {
            layer: {
                what: _mean(file.tensor(what, name) for name in inside) for what in ("c", "null") if what in file.parts
            }
            for layer, inside in owners.items()
        }


def _mean(tensors: Iterator[np.ndarray]) -> float:
    total, count = 0.0, 0
    for each in tensors:
        total, count = total + float(each.sum(dtype=np.float64)), count + each.size
    return total / max(count, 1)  # a parameter may have no entries


def draw_profiles(found: Sequence[RowProfiles]) -> Iterator[tuple[RowProfiles, Layers, str]]:
    """Of one data set, all on the same scale: layers from top to bottom."""
    every = [(one, one.layers()) for one in found if one.read]
    values = [value for _, layers in every for each in layers.values() for value in each.values()]
    scale = fit_scale(values, LEFT + 6, RIGHT, zero=True)
    for one, layers in every:
        tall = max(LOW, min(TALL, MOST / max(len(layers), 1)))
        bottom = TOP + tall * len(layers)
        picture = Picture(WIDTH, bottom + 18, f"mean c by layer before and after training beside null, {one.label}")
        picture.draw_x_axis(scale, TOP, bottom)
        rows = {name: TOP + tall * (n + 0.5) for n, name in enumerate(layers)}
        named = max(1, round(12 / tall))  # every so many, so that names do not touch
        for n, (name, y) in enumerate(rows.items()):
            if n % named == 0:
                picture.text(LEFT, y + 3.5, name or "(top)", "end", room=LEFT)
        for what in ("null start", "null end", "c start", "c end"):
            points = [(scale(layers[n][what]), y) for n, y in rows.items() if what in layers[n]]
            picture.line(points, what)
            if tall == TALL:
                for x, y in points:
                    picture.dot(x, y, what, 2.5)
        yield one, layers, picture.svg()

"""What an item of the paper is: variants that are trained, pairs that are compared, and what the paper prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dspreg.paper.scales import ENGINE, PAPER, Scale
from dspreg.protocol.leave_one_out import distinct, leave_one_out
from dspreg.reporting.published import published_cells
from dspreg.reporting.table import Cell
from dspreg.runs.run import Run
from dspreg.specs import shortest_spec


@dataclass(frozen=True)
class Variant:
    """One row of a table, one point of a figure.

    Attributes:
        label: In tables.
        spec: What is trained.
        paper: Table and row of the paper, by the names of `published_results.csv`; None where it has neither.
        x: Where it stands in a figure.
        line: Which of a figure's lines it is on.
    """

    label: str
    spec: str
    paper: tuple[str, str] | None = None
    x: float | None = None
    line: str = ""

    @property
    def algorithm(self) -> str:
        """As runs spell it."""
        return shortest_spec(self.spec)

    def published_cells(self, dataset: str, targets: Sequence[str]) -> list[Cell]:
        """What the paper prints; a mean that its table of domains lacks is that of its main table."""
        if self.paper is None:
            return [Cell() for _ in targets]
        table, name = self.paper
        found = published_cells(table, dataset, name, targets)
        if table == "per_domain" and targets[-1] == "Avg" and found[-1].value is None:
            found[-1:] = published_cells("main", dataset, name, ["Avg"])
        return found


@dataclass(frozen=True, kw_only=True)
class Item:
    """A table or figure at one scale. Iterating gives its runs, so that a function that returns one is a recipe.

    Attributes:
        name: As in `dspreg paper NAME`.
        what: Its number in the paper, and what it shows.
        claim: What the paper says about it.
        kind: `methods`, `ablation`, `map` or `overhead`.
        datasets: Of the paper; the scale may have another in their place.
        variants: What is trained.
        pairs: Labels of variants whose difference is asked for.
        axis: Of a figure: what x is.
        best: Of a figure: the x that the paper takes, and its full method's accuracy.
        scale: At which.
        engine: Of DSP-Reg.
        trials, draws, settings: Other ones than the scale's.
        precision: Its runs'.
    """

    name: str
    what: str
    claim: str
    kind: str
    variants: tuple[Variant, ...]
    pairs: tuple[tuple[str, str], ...] = ()
    datasets: tuple[str, ...] = ("PACS",)
    axis: str = ""
    best: tuple[float, float] | None = None
    scale: Scale = PAPER
    engine: str = ENGINE
    trials: int | None = None
    draws: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    precision: str = "fp32"

    def __iter__(self) -> Iterator[Run]:
        return iter(self.runs())

    def runs(self) -> list[Run]:
        """All of them, each once; none where nothing is trained to the end."""
        if self.kind == "overhead":
            return []
        return distinct(
            leave_one_out(
                self.domains(),
                [variant.spec for variant in self.variants],
                trials=self.number_of_trials,
                draws=self.number_of_draws,
                targets=self.targets,
                only="training",
                options={**self.scale.settings, **self.settings},
            )
        )

    def count(self) -> int:
        """How many runs there are, without making them."""
        if self.kind == "overhead":
            return 0
        places = sum(len(self.held_out(dataset)) for dataset in self.domains())
        return len(self.variants) * places * self.number_of_trials * self.number_of_draws

    @property
    def number_of_trials(self) -> int:
        return self.trials or self.scale.trials[self.kind]

    @property
    def number_of_draws(self) -> int:
        return self.draws or self.scale.draws[self.kind]

    @property
    def targets(self) -> tuple[str, ...] | None:
        """What is held out; None: each domain in turn. A map is of one training, without sketch."""
        if self.kind == "map":
            return ("sketch",) if self.scale.targets is None else self.scale.targets[:1]
        return self.scale.targets

    def domains(self) -> dict[str, Sequence[str]]:
        """Of every data set that is trained on."""
        from dspreg.data.registry import dataset_class

        names = self.datasets if self.scale.data is None else (self.scale.data,)
        found = {name: dataset_class(name) for name in names}
        return {name: each.domains for name, each in found.items() if each is not None}

    def held_out(self, dataset: str) -> list[str]:
        return [name for name in self.domains()[dataset] if self.targets is None or name in self.targets]

    def variant(self, label: str) -> Variant:
        return next(variant for variant in self.variants if variant.label == label)

    def setting(self, name: str) -> Any:
        """model, image_size or steps of its runs."""
        return self.settings.get(name, self.scale.setting(name))

    @property
    def as_published(self) -> bool:
        """Whether nothing but the place of files, and what rounding depends on, is other than in the paper."""
        numbers = (self.trials, self.scale.trials.get(self.kind)), (self.draws, self.scale.draws.get(self.kind))
        changed: list[Any] = [name for name, value in self.settings.items() if name != "weights" or value == "none"]
        changed += [given for given, usual in numbers if given not in (None, usual)]
        changed += [self.precision] if self.precision != "fp32" else []
        return self.scale is PAPER and self.engine == ENGINE and not changed

"""One training as a value, and the id it has before any data are read.

    plan id      hash of what is asked for; needs neither data nor torch, and names the run's folder in a store
    result id    hash of what was trained: adds the data's fingerprints, the weights' SHA-256 and the environment; it
                 is the `id` in the run.json of the folder

Neither depends on the location of files.
"""

from __future__ import annotations

import dataclasses
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from dspreg.config.dataset_ref import DatasetRef
from dspreg.config.train_config import TRAIN_OPTIONS, Execution
from dspreg.config.trained_part import TrainedPart, without_paths
from dspreg.errors import ConfigError
from dspreg.io.atomic_files import canonical_json, sha256
from dspreg.io.text import did_you_mean
from dspreg.specs import shortest_spec, without_locations

OWN = ("dataset", "targets", "algorithm", "protocol", "trial", "draw")  # fields of a Run that TrainConfig has, too
FURTHER = tuple(name for name in TRAIN_OPTIONS if name not in OWN)


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """What is trained. Two runs are equal if their plan ids are, wherever their files are.

    Attributes:
        dataset: As after `--dataset`: `"PACS"`, `"folder:photos"`.
        targets: Domains that training never sees, by name, in any order.
        algorithm: A spec as the user wrote it; brought to its shortest form here, without filling in defaults.
        protocol: Of `PROTOCOLS`.
        trial: Seed of the split, the initial weights and the batch order.
        draw: 0: default options; n: the n-th random draw of them.
        options: Further settings, by the names of `TrainConfig`; defaults apply to the rest.
        name: Of a `folder:` or `index:` data set; by default the last part of its path.
    """

    dataset: str
    targets: tuple[str, ...]
    algorithm: str
    protocol: str = "domainbed"
    trial: int = 0
    draw: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    name: str | None = None

    def __post_init__(self) -> None:
        given: Any = self.targets
        if isinstance(given, str):  # a string would be a sequence of one-letter names
            raise ConfigError(f"targets={given!r}; wanted a tuple of names: ({given!r},)")
        object.__setattr__(self, "targets", tuple(given))
        for name in self.options:
            if name not in FURTHER:
                near = f"it is a field of Run: Run({name}=…)" if name in OWN else did_you_mean(name, FURTHER).strip()
                raise ConfigError(f"unknown option {name!r} of a run. {near or 'Known: ' + ', '.join(FURTHER)}")
        for name, value in self.settings().items():
            TRAIN_OPTIONS[name].check(value)
        self.dataset_ref.check_name(self.name)
        object.__setattr__(self, "algorithm", shortest_spec(self.algorithm))
        object.__setattr__(self, "options", _sort_options(self.options))

    # Identity.

    @property
    def dataset_ref(self) -> DatasetRef:
        return DatasetRef.parse(self.dataset)

    @property
    def data_name(self) -> str:
        """Name of the data set in records and tables."""
        return self.dataset_ref.data_name(self.name)

    def identity(self) -> dict[str, Any]:
        """What the plan id is a hash of: everything that identifies the run before any data are read; no paths."""
        ref, options = self.dataset_ref, without_paths(self.options)  # the result id has the SHA-256 of files
        return {
            "dataset": f"{ref.kind}:{self.data_name}{ref.added}" if ref.is_path else self.dataset,
            "targets": sorted(self.targets),
            "algorithm": without_locations(self.algorithm),
            "protocol": self.protocol,
            "trial": self.trial,
            "draw": self.draw,
            "options": options,
        }

    @cached_property
    def id(self) -> str:
        """The plan id."""
        return sha256(canonical_json(self.identity()).encode())[:16]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Run) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __str__(self) -> str:
        where = f"{self.data_name} → {', '.join(self.targets)}"
        return f"{without_locations(self.algorithm)} on {where}, trial {self.trial}, draw {self.draw}"

    def _repr_html_(self) -> str:
        from dspreg.io.notebook import table_html

        rows = [(name, ", ".join(value) if name == "targets" else value) for name, value in self.settings().items()]
        return table_html([f"run {self.id}", ""], rows, left=2)

    # Conversions.

    def settings(self) -> dict[str, Any]:
        """The first argument of `dspreg.train`."""
        return {name: getattr(self, name) for name in OWN} | dict(self.options)

    def execution(self, usual: Execution) -> Execution:
        """The second argument of `dspreg.train`: `execution` with this data set's name."""
        return dataclasses.replace(usual, name=self.data_name if self.dataset_ref.is_path else None)

    def to_json(self) -> dict[str, Any]:
        return {**self.settings(), "targets": list(self.targets), "name": self.name}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Run:
        """Inverse of `to_json`.

        Raises:
            ConfigError: The value is not a run.
        """
        if not isinstance(value, Mapping) or any(name not in value for name in OWN):
            raise ConfigError(f"{reprlib.repr(value)} is no run; wanted {', '.join(OWN)}")
        if not isinstance(value["targets"], list | tuple) or not isinstance(value.get("name"), str | None):
            raise ConfigError(f"{reprlib.repr(value)} is no run; wanted a list of targets, and a name that is text")
        own = {name: value[name] for name in (*OWN, "name") if name in value}
        return cls(**own, options={name: v for name, v in value.items() if name not in own})


def _sort_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options in canonical form: sorted, floats as floats, without values equal to the default."""
    typed = {
        name: float(v) if TRAIN_OPTIONS[name].type is float else TRAIN_OPTIONS[name].to_record(v)
        for name, v in sorted(options.items())
    }
    if "train" in typed:
        typed["train"] = str(TrainedPart.parse(str(typed["train"])))
    return {name: value for name, value in typed.items() if value != TRAIN_OPTIONS[name].default}

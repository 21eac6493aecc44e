"""One training as a value, and the id it has before there are data.

    plan id      of what is to be trained; needs neither data nor torch, and names the run's folder in a store
    result id    of what was trained: adds the data's fingerprints, the weights' SHA-256 and the environment; it is the
                 `id` in the run.json of the folder

Neither depends on where files lie.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import PurePath
from typing import Any

from dspreg.errors import ConfigError
from dspreg.io.atomic_files import canonical_json, sha256
from dspreg.io.text import did_you_mean, path_name
from dspreg.protocol.settings import FIELDS, Execution, Settings, check

OWN = ("dataset", "targets", "algorithm", "protocol", "trial", "draw")  # fields of a Run that are fields of Settings
FURTHER = tuple(each.name for each in dataclasses.fields(Settings) if each.name not in OWN)
PLACED = ("folder", "index")  # kinds of data sets that are given by a path


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """What is trained. Two runs are equal when their plan ids are, wherever their files lie.

    Attributes:
        dataset: As after `--dataset`: `"PACS"`, `"folder:photos"`.
        targets: Domains that training never sees, by name, in any order.
        algorithm: A spec as the user wrote it; made shortest here, with what it leaves open left open.
        protocol: Of `PROTOCOLS`.
        trial: Another trial is another split, start and order.
        draw: 0: default options; n: the n-th random draw of them.
        options: Further settings, by the names of `Settings`. What is left open has its default.
        name: Of a `folder:` or `index:` data set; the last part of its path unless given.
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
        if isinstance(given, str):  # its letters would be the names
            raise ConfigError(f"targets={given!r}; wanted a tuple of names: ({given!r},)")
        object.__setattr__(self, "targets", tuple(given))
        for name in self.options:
            if name not in FURTHER:
                near = f"it is a field of Run: Run({name}=…)" if name in OWN else did_you_mean(name, FURTHER).strip()
                raise ConfigError(f"unknown option {name!r} of a run. {near or 'Known: ' + ', '.join(FURTHER)}")
        check({name: getattr(self, name) for name in OWN} | dict(self.options))
        if self.name is not None and self._kind is None:
            raise ConfigError(f"only folder:PATH and index:FILE take a name, and {self.dataset!r} has its own")
        object.__setattr__(self, "algorithm", shortest(self.algorithm))
        object.__setattr__(self, "options", _sorted(self.options))

    # What it is.

    @property
    def data_name(self) -> str:
        """Of the data set in records and tables."""
        return data_name(self.dataset, self.name)

    @property
    def _kind(self) -> str | None:
        return _kind(self.dataset)

    def identity(self) -> dict[str, Any]:
        """All that tells this run from others before there are data; no path is in it."""
        options = dict(self.options)
        if options.get("weights", "none") not in ("default", "none"):
            options["weights"] = "file"  # which one its SHA-256 says, in the result id
        return {
            "dataset": f"{self._kind}:{self.data_name}" if self._kind else self.dataset,
            "targets": sorted(self.targets),
            "algorithm": self.algorithm,
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
        return f"{self.algorithm} on {self.data_name} → {', '.join(self.targets)}, trial {self.trial}, draw {self.draw}"

    # As others take it.

    def settings(self) -> dict[str, Any]:
        """What `dspreg.train` takes first."""
        return {name: getattr(self, name) for name in OWN} | dict(self.options)

    def execution(self, usual: Execution) -> Execution:
        """What it takes second: as usual, with this data set's name."""
        return dataclasses.replace(usual, name=self.data_name if self._kind else None)

    def to_json(self) -> dict[str, Any]:
        return {**self.settings(), "targets": list(self.targets), "name": self.name}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Run:
        """Back from `to_json`.

        Raises:
            ConfigError: It is none.
        """
        if not isinstance(value, Mapping) or any(name not in value for name in OWN):
            raise ConfigError(f"{value!r} is no run; wanted {', '.join(OWN)}")
        own = {name: value[name] for name in (*OWN, "name") if name in value}
        return cls(**own, options={name: v for name, v in value.items() if name not in own})


def data_name(dataset: str, name: str | None) -> str:
    """Of the data set in records and tables: its own, or the one that the user gave to a path."""
    kind = _kind(dataset)
    if kind is None:
        return dataset
    last = path_name(dataset.partition(":")[2])
    return name or (PurePath(last).stem if kind == "index" else last)


def _kind(dataset: str) -> str | None:
    kind, colon, _ = dataset.partition(":")
    return kind if colon and kind in PLACED else None


@lru_cache(maxsize=1_000)  # a plan of ten thousand runs has few specs
def shortest(spec: str) -> str:
    """The one text of a spec: options by name, spaces and an ERM below others gone. Needs no torch.

    Options that are given stay, though they have their defaults: what is given is neither drawn at random nor scaled to
    a short run. Whether the names exist is for `dspreg.parse` to say.

        >>> shortest("ERM + CORAL( weight=5e-1 )+DSPReg()")
        'CORAL(weight=0.5)+DSPReg'
    """
    try:
        layers = [_layer(node) for node in _layers(ast.parse(spec.strip(), mode="eval").body)]
    except (SyntaxError, ValueError, TypeError) as error:
        reason = getattr(error, "msg", error)
        raise ConfigError(f"the spec {spec!r} is not of the form 'A(option=value)+B': {reason}") from None
    return "+".join(layers[1:] if layers[0] == "ERM" and len(layers) > 1 else layers)


def _layers(tree: ast.expr) -> list[ast.expr]:
    if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Add):
        return [*_layers(tree.left), *_layers(tree.right)]
    return [tree]


def _layer(node: ast.expr) -> str:
    path, keywords = (node.func, node.keywords) if isinstance(node, ast.Call) else (node, [])
    name = ast.unparse(path)
    if not all(part.isidentifier() for part in name.split(".")):
        raise ValueError(f"{name!r} is not a name")
    if isinstance(node, ast.Call) and node.args:
        raise ValueError(f"options of {name} are given by name")
    given = sorted((str(each.arg), repr(ast.literal_eval(each.value))) for each in keywords)
    options = ", ".join(f"{option}={value}" for option, value in given)
    return f"{name}({options})" if options else name


def _sorted(options: Mapping[str, Any]) -> dict[str, Any]:
    """In one order, floats as floats, and without what has the default it would have anyway."""
    typed = {n: float(v) if str(FIELDS[n].type) == "float" else v for n, v in sorted(options.items())}
    return {name: value for name, value in typed.items() if value != FIELDS[name].default}

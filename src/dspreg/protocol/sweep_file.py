"""A sweep as it is written down: data sets × algorithms × targets × trials × draws in YAML, or a recipe in Python."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from dspreg.config.dataset_ref import DatasetRef
from dspreg.config.parse import (
    MAX_PATH,
    compose_yaml,
    iterate_entries,
    parse_integer,
    parse_mapping,
    parse_option,
    plain_value,
)
from dspreg.config.train_config import EXECUTION_OPTIONS, OPTIONS
from dspreg.errors import ConfigError, DspregError
from dspreg.io.importing import import_object, search_here
from dspreg.io.text import did_you_mean, shorten
from dspreg.protocol.leave_one_out import ONLY, count_runs, distinct, leave_one_out
from dspreg.runs.run import FURTHER, Run

OPEN = tuple(n for n in (*FURTHER, "protocol") if n != "same_draws")  # settings that all runs may share
T = TypeVar("T")
LISTS = ("datasets", "algorithms", "targets")
NUMBERS = ("trials", "draws")


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """What a sweep file says.

    Attributes:
        datasets: As after `--dataset`.
        algorithms: Specs.
        targets: Names of the domains held out; None: every domain in turn.
        trials: Number of trials.
        draws: Number of random configurations, the defaults among them.
        only: `"training"` leaves out the pairs of domains that only leave-one-domain-out selection needs.
        same_draws: Draw n is the same in all trials.
        settings: Further options of `TrainConfig`, the same for all runs.
        execution: How runs are run, by the names of `Execution`.
    """

    datasets: tuple[str, ...] = ()
    algorithms: tuple[str, ...] = ()
    targets: tuple[str, ...] | None = None
    trials: int = 3
    draws: int = 20
    only: str | None = None
    same_draws: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    execution: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("datasets", "algorithms"):
            if not getattr(self, name):
                raise ConfigError(f"a sweep needs {name}, such as {name}: [{EXAMPLE[name]}]")
        if self.targets == ():
            raise ConfigError("a sweep holds domains out; name targets, or write targets: all")
        for name in self.settings:
            if name not in OPEN:
                raise ConfigError(f"settings: {name!r} {_elsewhere(name)}")
        for name in self.execution:
            if name not in EXECUTION_OPTIONS:
                raise ConfigError(f"execution: {name!r} says what is trained; it goes below settings:")
        for name, value in {**self.settings, **self.execution}.items():
            OPTIONS[name].check(value)
        paths = [data for data in self.datasets if DatasetRef.parse(data).is_path]
        if self.execution.get("name") is not None and len(paths) != 1:
            raise ConfigError(f"name={self.execution['name']!r} is for one folder: or index: data set; "
                              f"there are {len(paths)}")  # fmt: skip

    def runs(self, domains: Callable[[str], Sequence[str]]) -> list[Run]:
        """All of them, each once.

        Args:
            domains: Those of a data set, in its own order.
        """
        return distinct(self._iterate({data: domains(data) for data in self.datasets}, self.algorithms, self.targets))

    def iterate_part(self, data: str, algorithm: str, domains: Sequence[str]) -> Iterator[Run]:
        """The runs of one data set and algorithm, one after the other."""
        targets = None if self.targets is None else [name for name in self.targets if name in domains]
        return self._iterate({data: domains}, [algorithm], targets)

    def _iterate(
        self, datasets: Mapping[str, Sequence[str]], algorithms: Sequence[str], targets: Sequence[str] | None
    ) -> Iterator[Run]:
        return leave_one_out(
            datasets,
            algorithms,
            trials=self.trials,
            draws=self.draws,
            targets=targets,
            only=self.only,
            same_draws=self.same_draws,
            options=self.settings,
            name=self.execution.get("name"),
        )

    def count(self, domains: Callable[[str], Sequence[str]]) -> dict[tuple[str, str], int]:
        """How many there are of each data set and algorithm, without making them."""
        return count_runs(
            {data: domains(data) for data in self.datasets},
            self.algorithms,
            trials=self.trials,
            draws=self.draws,
            targets=self.targets,
            only=self.only,
        )


KEYS = tuple(each.name for each in fields(Sweep))
EXAMPLE = {"datasets": "PACS", "algorithms": "ERM, DSPReg"}


def read_sweep(path: str | Path) -> dict[str, Any]:
    """What a YAML file says, by the names of `Sweep`.

    Raises:
        ConfigError: A key is unknown or given twice, or a value is not of its kind; with the line.
    """
    values: dict[str, Any] = {}
    for key, node, place in iterate_entries(compose_yaml(path), str(path), _key):
        if key in ("settings", "execution"):
            values[key] = parse_mapping(node, str(path))
        else:
            values[key] = parse_sweep_value(key, plain_value(node, place), place)
    return values


def parse_sweep_value(key: str, given: Any, place: str) -> Any:
    """A value of its kind from text, or a list of texts."""
    if key in LISTS:
        texts = tuple(map(str, given if isinstance(given, list) else [given])) if given is not None else ()
        return None if key == "targets" and texts == ("all",) else texts
    if isinstance(given, list):
        raise ConfigError(f"{place}: {key}={shorten(given)}; wanted one value")
    if key in NUMBERS:
        try:
            return parse_integer(given, 1, key)
        except ConfigError as error:
            raise ConfigError(f"{place}: {key}={error}") from None
    if key == "same_draws":
        return parse_option(key, given, place)
    if given not in (None, *ONLY):
        raise ConfigError(f"{place}: only={shorten(given)}; wanted training, or leave it out")
    return given


def load_recipe(text: str, most: int | None = None) -> list[Run]:
    """The runs of a recipe: `path.py` with a function `runs`, `path.py:function`, or a function's import path.

    Args:
        text: Where the function is.
        most: Runs that it may return; a recipe can't be counted but by running it, and one may have no end.
    """
    path, _, name = text.partition(".py")
    if text.endswith(".py") or (name.startswith(":") and Path(f"{path}.py").exists()):
        made = getattr(_module(Path(f"{path}.py")), name.removeprefix(":") or "runs", None)
        if made is None:
            raise ConfigError(f"{path}.py has no function {name.removeprefix(':') or 'runs'!r} that returns runs")
    elif all(part.isidentifier() for part in re.split("[.:]", text)) and not os.path.exists(text):
        made = import_object(text)
    else:
        raise ConfigError(
            f"{text[:MAX_PATH]} is no sweep: wanted FILE.yaml, a recipe in FILE.py, or a function's import path"
        )
    if not callable(made):
        raise ConfigError(f"{text!r} is not a function; a recipe is one that returns runs")
    returned = _guarded(text, made)
    if not isinstance(returned, Iterable):
        raise ConfigError(
            f"the recipe {text!r} returned {shorten(returned)}; wanted runs, as from dspreg.leave_one_out"
        )
    found = _guarded(text, lambda: list(islice(returned, None if most is None else most + 1)))
    if most is not None and len(found) > most:
        raise ConfigError(f"the recipe {text!r} returned more than {most:,} runs. If they are meant, add --max-runs N")
    for run in found:
        if not isinstance(run, Run):
            raise ConfigError(f"the recipe {text!r} returned {run!r}; wanted runs, as from dspreg.leave_one_out")
    if not found:
        raise ConfigError(f"the recipe {text!r} returned no runs")
    return distinct(found)


def _module(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise ConfigError(f"there is no file {path}")
    search_here()  # a recipe may import modules beside it
    module, loader = importlib.util.module_from_spec(spec), spec.loader
    _guarded(str(path), lambda: loader.exec_module(module))
    return module


def _guarded(text: str, call: Callable[[], T]) -> T:
    """The recipe is the user's, and so are its errors."""
    try:
        return call()
    except DspregError:
        raise
    except Exception as error:
        raise ConfigError(f"the recipe {text!r} failed: {type(error).__name__}: {error}") from error


def _key(key: str, place: str) -> str:
    key = key.replace("-", "_")
    if key not in KEYS:
        where = "execution" if key in EXECUTION_OPTIONS else "settings"
        near = f" Write it below {where}:" if key in OPEN or key in EXECUTION_OPTIONS else did_you_mean(key, KEYS)
        raise ConfigError(f"{place}: unknown key {shorten(key)} of a sweep.{near} Known: {', '.join(KEYS)}")
    return key


def _elsewhere(name: str) -> str:
    if name in EXECUTION_OPTIONS:
        return "says how runs are run; it goes below execution:"
    plural = {"dataset": "datasets", "algorithm": "algorithms", "trial": "trials", "draw": "draws"}.get(name, name)
    return f"is what a sweep goes through; write {plural}: at the top"

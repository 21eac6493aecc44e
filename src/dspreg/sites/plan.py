"""What `dspreg estimate` will do, as it is kept in its folder: begun once, it stays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dspreg.algorithms.compatibility import overrides
from dspreg.algorithms.registry import StackSpec
from dspreg.data import DomainDataset
from dspreg.errors import ConfigError, IntegrityError
from dspreg.io.atomic_files import holds_file, read_json, write_json
from dspreg.io.text import join_few
from dspreg.metrics import ACCURACY
from dspreg.protocol.leave_one_out import leave_one_out
from dspreg.runs.run import Run
from dspreg.sites.asked import FLAGS, Asked, flat, in_words
from dspreg.training.execution import layers_of

FORMAT = "dspreg.estimate/1"
FILE = "estimate.json"


@dataclass(frozen=True)
class Plan:
    """What is done, whatever the clock says later: begun once, it stays.

    Attributes:
        dataset: As it was typed.
        name: Of the data set.
        fingerprints: Of the images of each site.
        classes: Names of the labels.
        methods: Specs, the cheapest first.
        options: Of every training.
        trials: Of every method and site.
        seconds: Method → a training with one site held out, as the probe has it.
        notes: How it was chosen, in sentences.
        asked: What the user fixed.
    """

    dataset: str
    name: str
    fingerprints: Mapping[str, str]
    classes: tuple[str, ...]
    methods: tuple[str, ...]
    options: Mapping[str, Any]
    trials: int
    seconds: Mapping[str, float]
    notes: tuple[str, ...]
    asked: Mapping[str, Any]

    @property
    def sites(self) -> tuple[str, ...]:
        return tuple(self.fingerprints)

    def held_out_runs(self) -> list[Run]:
        """Every site held out in turn, by every method and trial."""
        made = leave_one_out(
            {self.dataset: self.sites}, self.methods, trials=self.trials, draws=1, only="training",
            options=self.options, name=self.name,
        )  # fmt: skip
        return list(made)

    def pair_runs(self, method: str) -> list[Run]:
        """Every two sites held out together, once: what a forecast of the second is made from is what came of the
        first."""
        made = leave_one_out(
            {self.dataset: self.sites}, [method], trials=1, draws=1, options=self.options, name=self.name
        )
        return [run for run in made if len(run.targets) == 2]

    def final_options(self, method: str) -> dict[str, Any]:
        """Of the training on all sites: its steps are those of the held-out ones, and it sees all images.

        A method that decides by held-out images, such as SWAD, needs them there, too.
        """
        if needs_validation(method):
            return dict(self.options)
        return {**{name: value for name, value in self.options.items() if name != "select_by"}, "holdout": 0.0}

    @property
    def metric(self) -> str:
        """What methods are compared by, of held-out images of the sources."""
        return str(self.options.get("select_by", ACCURACY))

    def save(self, out: Path) -> None:
        write_json(out / FILE, {"format": FORMAT, **asdict(self)})

    @classmethod
    def load(cls, out: Path) -> Plan | None:
        """The plan that was begun in a folder; None where there is none.

        Raises:
            ConfigError: The folder holds something else.
            IntegrityError: The file is damaged.
        """
        if out.exists() and not out.is_dir():
            raise ConfigError(f"--out {out} is a file; give a folder")
        if not holds_file(out / FILE):
            there = sorted(p.name for p in out.iterdir() if not p.match(".*.part")) if out.is_dir() else []
            if there:
                raise ConfigError(f"--out {out} is not empty and has no {FILE} ({there[0]}, …); take a new folder")
            return None
        value = read_json(out / FILE)
        if not isinstance(value, dict) or value.get("format") != FORMAT:
            raise IntegrityError(f"{out / FILE} is not of the format {FORMAT!r}; take a new --out")
        try:
            fields = {name: value[name] for name in cls.__dataclass_fields__}
            fields |= {name: tuple(fields[name]) for name in ("classes", "methods", "notes")}
            return cls(**fields)
        except (KeyError, TypeError) as error:
            raise IntegrityError(f"{out / FILE} is damaged: {error}; take a new --out") from error

    def require(self, data: DomainDataset, prints: Mapping[str, str], asked: Asked) -> None:
        """Refuse to go on with other images, or with what would be another plan.

        Raises:
            ConfigError: The message says what differs.
        """
        if list(prints) != list(self.sites) or dict(prints) != dict(self.fingerprints):
            new, gone = set(prints) - set(self.sites), set(self.sites) - set(prints)
            changed = [s for s in prints if s in self.sites and prints[s] != self.fingerprints[s]]
            what = [f"{word} {join_few(sorted(s))}" for word, s in
                    (("new sites", new), ("sites gone", gone), ("other images at", changed)) if s]  # fmt: skip
            raise ConfigError(
                f"the --out was begun with the data set {self.name!r}, and {data.name!r} is another one: "
                f"{'; '.join(what) or 'its sites are in another order'}. Take a new --out"
            )
        begun, chosen = flat(self.asked), {**self.options, "methods": [*self.methods], "trials": self.trials}
        for name, value in flat(asked.to_json()).items():
            if value not in (begun.get(name), chosen.get(name)):
                was = in_words(name, begun[name]) if name in begun else "left open"
                flag = f"--{name.replace('_', '-')}" if name in FLAGS else name
                raise ConfigError(
                    f"the --out was begun with {flag} {was}, not {in_words(name, value)}. Leave it out to go on, or "
                    "take a new --out"
                )


def method_name(spec: str) -> str:
    """A spec in words, as far as there are any."""
    if spec in ("ERM", "SWA"):
        return "ERM with averaged weights" if spec == "SWA" else "ERM"
    return f"{spec.removesuffix('+SWA')} with averaged weights" if spec.endswith("+SWA") else spec


def needs_validation(spec: str) -> bool:
    """Whether a method decides by held-out images of the sources."""
    hooks = ("on_evaluation", "before_evaluation")
    return any(overrides(type(layer), hook) for layer in layers_of(StackSpec.parse(spec)) for hook in hooks)


def compares_domains(spec: str) -> bool:
    """Whether a method is nothing on a single domain."""
    return any(layer.compatibility.needs_several_domains for layer in layers_of(StackSpec.parse(spec)))

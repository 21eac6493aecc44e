"""The defaults of every protocol and kind of data set, as tables: here is the learning rate.

A default depends on the protocol and on the images: photographs, which get a pretrained ResNet-50, or small images,
which get a small network trained from scratch. `--help` prints these tables, and `train_config.resolve_config` fills in
from them what the user leaves open.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from dspreg.config.reading import DOMAINBED, OWN
from dspreg.distributions import Choice, Distribution, LogUniform
from dspreg.domainbed.seeds import seed_hash

Table = Mapping[str, Any]  # option → value


class DatasetFacts(Protocol):
    """What the defaults depend on; every `DomainDataset` has it."""

    name: str
    steps: int
    evaluate_every: int
    image_size: int
    channels: int
    small: bool
    tensors: bool
    own: bool


FROM_DATASET = ("steps", "evaluate_every", "image_size", "channels")  # a data set says these itself


@dataclass(frozen=True)
class ProtocolDefaults:
    """Where the defaults of a protocol differ from those of `domainbed`.

    Attributes:
        help: What it is, in a sentence.
        common: Of all data sets.
        photographs: Of data sets of large images.
        small: Of data sets of small images.
        tensors: Of data sets of tensors, where they differ from those of small images.
        own: Of a user's own images, folders and tables.
        datasets: Of single data sets, by their names.
    """

    help: str
    common: Table = field(default_factory=dict)
    photographs: Table = field(default_factory=dict)
    small: Table = field(default_factory=dict)
    tensors: Table = field(default_factory=dict)
    own: Table = field(default_factory=dict)
    datasets: Mapping[str, Table] = field(default_factory=dict)

    def of(self, data: DatasetFacts) -> dict[str, Any]:
        kind = {**self.small, **self.tensors} if data.tensors else self.small if data.small else self.photographs
        return {**self.common, **kind, **(self.own if data.own else {}), **self.datasets.get(data.name, {})}


PROTOCOLS = {
    "domainbed": ProtocolDefaults(
        "DomainBed's classic protocol; validation images of the source domains are augmented like training images",
        common={
            "weights": "default", "batch_size": 32, "weight_decay": 0.0, "dropout": 0.0, "frozen_bn": True,
            "split": "domainbed", "image_weights": False, "holdout": 0.2, "evaluation_batch": 64, "features": "default",
        },
        photographs={"model": "resnet50.tv_in1k", "lr": 5e-5, "augment": "domainbed", "augment_validation": True},
        small={"model": "small-cnn", "lr": 1e-3, "augment": "none", "augment_validation": False},
        tensors={"model": "", "frozen_bn": False},
        own={"split": "grouped", "image_weights": True},
    ),
    "domainbed-stratified": ProtocolDefaults(
        "as domainbed, but the validation images are drawn class by class",
        common={"split": "stratified"},
        own={"split": "grouped"},  # which is stratified where there are no groups and parts
    ),
    "swad": ProtocolDefaults(
        "SWAD's, MIRO's and SAGM's protocol: validation images are not augmented, 15,001 steps on DomainNet",
        common={"evaluation_batch": 128},
        photographs={"augment_validation": False, "evaluate_every": 200},
        datasets={"DomainNet": {"steps": 15_001, "evaluate_every": 1_000}},
    ),
}  # fmt: skip

ALGORITHM = "DSPReg"  # of the benchmarks and of data sets that are classes
OWN_ALGORITHM = "SWA"  # of images of your own: what the evidence supports (docs/use/training.md), at the cost of ERM
EXCEPTIONS = {  # what `resolve_config` makes of other options, for `--help`
    "frozen_bn": "with --weights none: no",
    "augment": "with --train head: none; with --channels other than 3: light",
    "augment_validation": "with another --augment than domainbed: no",
    "features": "with --head FILE: embedding",
}
FROM_SCRATCH_LR: float = PROTOCOLS["domainbed"].small["lr"]  # of a network that is not pretrained, whatever the images

# Where DomainBed's random search draws the options that all methods share.
SEARCH_PHOTOGRAPHS: dict[str, Distribution] = {
    "lr": LogUniform(-5, -3.5, key="lr"),
    "weight_decay": LogUniform(-6, -2, key="weight_decay"),
    "batch_size": LogUniform(3, 5.5, "batch_size", True, 2),
    "dropout": Choice(0.0, 0.1, 0.5, key="resnet_dropout"),
}
SEARCH_SMALL: dict[str, Distribution] = {
    "lr": LogUniform(-4.5, -2.5, key="lr"),
    "batch_size": LogUniform(3, 9, "batch_size", True, 2),
}
SEARCH_DATASETS: dict[str, dict[str, Distribution]] = {  # of photographs, where single data sets differ
    "DomainNet": {"batch_size": LogUniform(3, 5, "batch_size", True, 2)},
}


def default_options(protocol: str, data: DatasetFacts) -> dict[str, Any]:
    """The default of everything that may be left open."""
    said = {name: getattr(data, name) for name in FROM_DATASET}
    own = getattr(data, "own", False)  # a class need not say it
    said["algorithm"] = OWN_ALGORITHM if own else ALGORITHM
    return {**PROTOCOLS["domainbed"].of(data), **said, **(OWN if own else DOMAINBED), **PROTOCOLS[protocol].of(data)}


def default_text(name: str) -> str:
    """The default of an option for `--help`: one value, or what it depends on."""
    if name in FROM_DATASET:
        return "by data set"
    if name in DOMAINBED:
        own, others = _text(OWN[name]), _text(DOMAINBED[name])
        return own if own == others else f"images of your own: {own}; benchmarks: {others}"
    if name == "algorithm":
        return f"{ALGORITHM}; {OWN_ALGORITHM} for images of your own"
    base = PROTOCOLS["domainbed"]
    values = {"": base.common.get(name, base.photographs.get(name))}
    if name in base.small:
        values["small images"] = base.small[name]
    if name in base.own:
        values["own images"] = base.own[name]
    if base.tensors.get(name, "") != "":
        values["tensors"] = base.tensors[name]
    for protocol, table in PROTOCOLS.items():
        if table is not base and name in (changed := {**table.common, **table.photographs}):
            values[protocol] = changed[name]
    texts = [f"{where}: {_text(value)}" if where else _text(value) for where, value in values.items()]
    return "; ".join([*texts, *([EXCEPTIONS[name]] if name in EXCEPTIONS else [])])


def search_space(data: DatasetFacts) -> dict[str, Distribution]:
    """Where random search draws the options that all methods share."""
    if data.small or data.tensors:
        return SEARCH_SMALL
    return SEARCH_PHOTOGRAPHS | SEARCH_DATASETS.get(data.name, {})


def search_seed(draw: int, trial: int, same_draws: bool) -> int:
    """The seed of one random configuration: DomainBed's, or that of trial 0 in all trials."""
    return seed_hash(draw, 0 if same_draws else trial)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, int | float) else str(value)

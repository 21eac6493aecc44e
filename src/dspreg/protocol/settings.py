"""One training as a value: every option with its range, and the defaults of data set and protocol."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, Protocol

from dspreg.distributions import Choice, Distribution, LogUniform
from dspreg.domainbed.seeds import seed_hash
from dspreg.errors import ConfigError
from dspreg.io.text import did_you_mean

PROTOCOLS = {
    "domainbed": "DomainBed's classic protocol; source validation images are augmented like training images",
    "domainbed-stratified": "as domainbed, but every class is split 80/20 by itself",
    "swad": "SWAD's, MIRO's and SAGM's: plain validation images, 15,001 steps on DomainNet",
}


CHANNELS_LAST = "channels-last"

ALIASES = {  # what others call them, for the hint
    "learning_rate": "lr", "wd": "weight_decay", "bs": "batch_size", "batch": "batch_size", "seed": "trial",
    "epochs": "steps", "iterations": "steps", "backbone": "model", "arch": "model", "data": "dataset", "gpu": "device",
}  # fmt: skip


class Facts(Protocol):
    """What the defaults depend on; every `DomainDataset` has it."""

    name: str
    steps: int
    evaluate_every: int
    image_size: int
    small: bool


def option(says: str, default: Any = MISSING, **limits: Any) -> Any:
    """A field of `Settings` or `Execution`: `at_least`, `above`, `at_most`, `below`, `choices` are its range."""
    return field(default=default, metadata={"help": says, **limits})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is trained: everything here decides the result. Defaults not given here come from data set and protocol."""

    dataset: str = option("digits, PACS, VLCS, OfficeHome, TerraIncognita, DomainNet, folder:PATH, index:FILE.csv")
    targets: tuple[str, ...] = option("domains that training never sees", ())
    algorithm: str = option("a spec such as ERM, DSPReg or CORAL(weight=0.5)+DSPReg", "DSPReg")
    protocol: str = option("how is trained and validated", "domainbed", choices=tuple(PROTOCOLS))
    trial: int = option("another trial is another split, start and order", 0, at_least=0)
    draw: int = option("0: default options; n: the n-th random draw of them", 0, at_least=0)
    same_draws: bool = option("draw n is the same in all trials; DomainBed draws anew in each", False)
    model: str = option("any timm name, or small-cnn")
    weights: str = option("pretrained weights: default (the hub's), none, or a safetensors file")
    image_size: int = option("pixels, both sides", at_least=1, at_most=4096)
    steps: int = option("training steps", at_least=1)
    batch_size: int = option("images per source domain and step", at_least=1)
    lr: float = option("learning rate of Adam", above=0, at_most=1e6)
    weight_decay: float = option("of Adam", at_least=0)
    dropout: float = option("after the pooled features", at_least=0, below=1)
    frozen_bn: bool = option("keep batch-norm statistics as they came, not with --weights none; scale and shift train")
    augment: bool = option("crop, flip, colour and grey at random while training")
    augment_validation: bool = option("augment the validation images of source domains, as DomainBed does")
    split: str = option("how a domain is cut into training and validation", choices=("domainbed", "stratified"))
    holdout: float = option("share of a domain held out for validation", above=0, below=1)
    evaluate_every: int = option("steps between evaluations; the first and last step always", at_least=1)
    evaluate: str = option("what selection needs, or all splits of all domains", "needed", choices=("needed", "all"))
    evaluation_batch: int = option("images per batch when evaluating", at_least=1)

    def __post_init__(self) -> None:
        check(vars(self))
        for each in fields(self):
            if each.type == "float":  # 0 and 0.0 are one training, and the id of a run is made of what is written
                object.__setattr__(self, each.name, float(getattr(self, each.name)))


@dataclass(frozen=True, kw_only=True)
class Execution:
    """How it is run. Only device, threads, precision and layout touch the result; a finished run says which."""

    root: str | None = option("folder that holds the data sets (default: data)", None)
    name: str | None = option("name of a folder: or index: data set (default: the last part of its path)", None)
    device: str = option("cpu, cuda, cuda:1, mps", "cpu")
    threads: int | None = option("CPU threads (default: all cores); another number gives other bits", None, at_least=1)
    precision: str = option("bf16 runs the network under autocast", "float32", choices=("float32", "bf16"))
    layout: str = option("how images lie in memory; convolutions on a CPU are often faster on channels-last",
                         "channels-first", choices=("channels-first", CHANNELS_LAST))  # fmt: skip
    workers: int | None = option("processes that read images; any number gives the same bits", None, at_least=0)
    cache: str = option("keep decoded images between runs", "none", choices=("none", "ram", "disk"))
    keep: str = option("models kept: none, selected and last, or all evaluated ones", "best",
                       choices=("none", "best", "all"))  # fmt: skip
    save_every: int | None = option("steps between checkpoints (default: at evaluations and every two minutes)",
                                    None, at_least=1)  # fmt: skip
    profile: str = option("measure c before and after training: with DSPReg (auto), always, never", "auto",
                          choices=("auto", "always", "never"))  # fmt: skip
    check_images: str = option("decode every image once before the first training on it", "once",
                               choices=("once", "never"))  # fmt: skip
    tensorboard: bool = option("also write TensorBoard events", False)
    domainbed_records: bool = option("also write results.jsonl in DomainBed's layout; evaluates all splits", False)
    allow_changed_environment: bool = option("resume although versions, threads or device changed; bits will differ",
                                             False)  # fmt: skip

    def __post_init__(self) -> None:
        check(vars(self))


SMALL_LR = 1e-3  # of networks that are not pretrained

RULES: dict[str, Callable[[Any, Any], bool]] = {
    "at_least": lambda value, limit: value >= limit,
    "above": lambda value, limit: value > limit,
    "at_most": lambda value, limit: value <= limit,
    "below": lambda value, limit: value < limit,
    "choices": lambda value, limit: value in limit,
}


def check(values: Mapping[str, Any]) -> None:
    """Refuse an unknown name, and a value of the wrong type or outside its range."""
    for name, value in values.items():
        each = FIELDS[known(name)]
        kind, *optional = str(each.type).split(" | ")
        if value is None and optional:
            continue
        number = isinstance(value, int | float) and not isinstance(value, bool)
        fits = {
            "str": isinstance(value, str),
            "bool": isinstance(value, bool),
            "int": number and isinstance(value, int),
            "float": number and abs(value) < float("inf"),
            "tuple[str, ...]": isinstance(value, tuple) and all(isinstance(v, str) for v in value),
        }[kind]
        if not fits or not all(rule(value, each.metadata[r]) for r, rule in RULES.items() if r in each.metadata):
            raise ConfigError(f"{name}={value!r}; wanted {wanted(each)}")
    targets = values.get("targets", ())
    if len(set(targets)) < len(targets):
        raise ConfigError(f"targets {', '.join(targets)}: one domain twice")


def known(name: str, place: str = "", also: Iterable[str] = ()) -> str:
    """The name of an option, or an error with the nearest one."""
    if name not in FIELDS:
        names = [*FIELDS, *also]
        hint = f" Did you mean {ALIASES[name]!r}?" if name in ALIASES else did_you_mean(name, names)
        raise ConfigError(f"{place}unknown option {name!r}.{hint} Known: {', '.join(names)}")
    return name


def wanted(each: Field[Any]) -> str:
    """The range of an option, in words."""
    if "choices" in each.metadata:
        return "one of " + ", ".join(each.metadata["choices"])
    kind = str(each.type).removesuffix(" | None")
    words = {"str": "text", "bool": "true or false", "int": "a whole number", "float": "a number"}
    limits = {"at_least": "at least", "above": "above", "at_most": "at most", "below": "below"}
    parts = [f"{word} {each.metadata[name]}" for name, word in limits.items() if name in each.metadata]
    return " ".join([words.get(kind, "a list of names"), " and ".join(parts)]).strip()


FIELDS = {each.name: each for kind in (Settings, Execution) for each in fields(kind)}


def resolved(given: Mapping[str, Any], data: Facts) -> Settings:
    """All options filled in: given ones, then the random draw, then the defaults of data set and protocol."""
    given = {n: tuple(v) if isinstance(v, list) else v for n, v in given.items() if v is not None}
    check(given)
    for name in given:
        if name not in {each.name for each in fields(Settings)}:
            raise ConfigError(f"{name!r} says how it is run and not what is trained; give it to Execution")
    protocol, draw = given.get("protocol", "domainbed"), given.get("draw", 0)
    values = defaults(protocol, data)
    usual = values["steps"]
    if draw:
        seed = search_seed(draw, given.get("trial", 0), given.get("same_draws", False))
        values |= {name: prior.draw(seed, name) for name, prior in space(data).items()}
    values |= given
    if given.get("model") == "small-cnn" and "lr" not in given and not draw:
        values["lr"] = SMALL_LR  # it starts from nothing, whatever the images
    if not values["augment"] and "augment_validation" not in given:
        values["augment_validation"] = False
    if "frozen_bn" not in given and values["weights"] == "none":
        values["frozen_bn"] = False  # statistics that nobody trained are not worth keeping
    if "evaluate_every" not in given and values["steps"] < usual:
        values["evaluate_every"] = max(1, round(values["evaluate_every"] * values["steps"] / usual))
    if protocol == "swad" and "steps" not in given:  # so that the last step is an evaluated one
        values["steps"] = values["steps"] // values["evaluate_every"] * values["evaluate_every"] + 1
    return Settings(**values)


def search_seed(draw: int, trial: int, same_draws: bool) -> int:
    """Of one random configuration: DomainBed's, or that of trial 0 in all trials."""
    return seed_hash(draw, 0 if same_draws else trial)


def defaults(protocol: str, data: Facts) -> dict[str, Any]:
    """Of everything that may be left open."""
    swad = protocol == "swad"
    large = data.name == "DomainNet"
    return {
        "model": "small-cnn" if data.small else "resnet50.tv_in1k",
        "weights": "default",
        "image_size": data.image_size,
        "steps": 15_001 if swad and large else data.steps,
        "batch_size": 32,
        "lr": SMALL_LR if data.small else 5e-5,
        "weight_decay": 0.0,
        "dropout": 0.0,
        "frozen_bn": True,
        "augment": not data.small,
        "augment_validation": not swad and not data.small,
        "split": "stratified" if protocol == "domainbed-stratified" else "domainbed",
        "holdout": 0.2,
        "evaluate_every": (1_000 if large else 200) if swad and not data.small else data.evaluate_every,
        "evaluation_batch": 128 if swad else 64,
    }


def space(data: Facts) -> dict[str, Distribution]:
    """Where DomainBed's random search draws the options that all methods share."""
    if data.small:
        return {"lr": LogUniform(-4.5, -2.5, key="lr"), "batch_size": LogUniform(3, 9, "batch_size", True, 2)}
    return {
        "lr": LogUniform(-5, -3.5, key="lr"),
        "weight_decay": LogUniform(-6, -2, key="weight_decay"),
        "batch_size": LogUniform(3, 5 if data.name == "DomainNet" else 5.5, "batch_size", True, 2),
        "dropout": Choice(0.0, 0.1, 0.5, key="resnet_dropout"),
    }

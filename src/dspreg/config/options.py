"""Options as fields of a dataclass, declared once: type, range, default and help.

Checks, YAML, `key=value` and the flags of the command line all read the declaration.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

from dspreg.errors import ConfigError
from dspreg.io.text import did_you_mean, nearest, shorten

LIMITS: dict[str, Callable[[Any, Any], bool]] = {
    "at_least": lambda value, limit: value >= limit,
    "above": lambda value, limit: value > limit,
    "at_most": lambda value, limit: value <= limit,
    "below": lambda value, limit: value < limit,
    "choices": lambda value, limit: value in limit,
    "form": lambda value, limit: limit.fits(value),
}
WORDS = {str: "text", bool: "true or false", int: "a whole number", float: "a number", tuple: "a list of names"}

# The largest value of a number, and why: above it something breaks, or nothing can come of it. One table for options of
# a training and of the command line; `--help` and every refusal show it.
MOST: dict[str, tuple[float, str]] = {
    "attempts": (1_000, "what fails a thousand times fails always"),
    "batch_size": (65_536, "it is read into memory at once, for each domain"),
    "channels": (256, "no network for images is made for so many"),
    "draw": (2**63 - 1, "a seed has 64 bits"),
    "draws": (1_000_000, "each is a training"),
    "evaluate_every": (1_000_000_000, "no training is that long"),
    "evaluation_batch": (65_536, "it is read into memory at once"),
    "image_size": (4_096, "an image of that many pixels takes 200 MB"),
    "images": (1_000_000_000, "no data set has that many"),
    "jobs": (10_000, "each is a process that holds torch in memory, about 300 MB"),
    "layer_decay": (1.0, "layers near the image would learn faster than those near the classifier"),
    "lr": (1e6, "the first step would leave no weight as it was"),
    "max_runs": (1_000_000_000, "each is a folder"),
    "save_every": (1_000_000_000, "no training is that long"),
    "patience": (1_000_000_000, "no training has that many evaluations"),
    "port": (65_535, "the network has no more"),
    "seed": (2**63 - 1, "a seed has 64 bits"),
    "steps": (1_000_000_000, "at a millisecond each that is eleven days"),
    "threads": (1_024, "machines have fewer cores, and torch crashes where the system gives it none"),
    "trial": (2**63 - 1, "a seed has 64 bits"),
    "trials": (1_000_000, "each is a training"),
    "warmup": (1_000_000_000, "no training is that long"),
    "weight_decay": (1e4, "a step would do nothing but shrink the weights"),
    "workers": (256, "each is a process that holds Python in memory, about 100 MB"),
}
LONGEST = 4_096  # characters of a text, as of a path


@dataclass(frozen=True)
class Form:
    """What a text may be, where it is more than one of some words.

    Attributes:
        metavar: For `--help`.
        text: In words.
        fits: Whether a text is such a one.
    """

    metavar: str
    text: str
    fits: Callable[[str], bool]


def option(help: str, default: Any = MISSING, **limits: Any) -> Any:
    """A field that is an option: `at_least`, `above`, `at_most`, `below`, `choices` and `form` are its range; `aliases`
    are other words for values. `before` is what all runs had before there was the option: records leave it out where it
    is that, so that ids stay as they were. `resumes` says that its default has changed: where it is left open, a
    training that is resumed goes on with what it was begun with. `recorded` has the values that records write
    otherwise, as they did when the option was of another type.

    The default None of a type that does not include None leaves the option open: it is filled in later.
    """
    return dataclasses.field(default=default, metadata={"help": help, **limits})


@dataclass(frozen=True)
class Option:
    """The declaration of one option.

    Attributes:
        name: Of the field.
        type: `str`, `bool`, `int`, `float`, or `tuple` for a list of names.
        nullable: Whether None is a value of its type.
        default: `MISSING` where it must be given.
        help: One sentence.
        limits: By the names of `LIMITS`.
        aliases: Other words for values, such as earlier ones, that are read as these.
        before: What all runs had before there was the option; `MISSING` of the first options.
        resumes: Whether a resumed training goes on with its own value where the option is left open.
        recorded: Value → what records have instead.
    """

    name: str
    type: type
    nullable: bool
    default: Any
    help: str
    limits: Mapping[str, Any]
    aliases: Mapping[str, str] = dataclasses.field(default_factory=dict)
    before: Any = dataclasses.field(default_factory=lambda: MISSING)  # a plain default of MISSING would be none
    resumes: bool = False
    recorded: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def is_open(self) -> bool:
        """Whether it may be left open, to be filled in later."""
        return self.default is None and not self.nullable

    @property
    def range(self) -> str:
        """Its values in words."""
        if "choices" in self.limits:
            return "one of " + ", ".join(self.limits["choices"])
        if "form" in self.limits:
            return str(self.limits["form"].text)
        words = {"at_least": "at least", "above": "above", "at_most": "at most", "below": "below"}
        parts = [f"{word} {format_limit(self.limits[name])}" for name, word in words.items() if name in self.limits]
        return " ".join([WORDS[self.type], " and ".join(parts)]).strip()

    def to_record(self, value: Any) -> Any:
        """The value as records and ids have it."""
        return self.recorded.get(value, value) if self.recorded else value

    def from_record(self, value: Any) -> Any:
        """The value of a record, of this or of an earlier version."""
        words = (word for word, then in self.recorded.items() if type(then) is type(value) and then == value)
        return next(words, value)

    def check(self, value: Any) -> None:
        """Refuse a value of another type or outside the range. What records have is one, too."""
        value = self.from_record(value)
        if value is None and self.nullable:
            return
        if not self._is_typed(value) or not all(LIMITS[name](value, limit) for name, limit in self.limits.items()):
            raise ConfigError(f"{self.name}={shorten(value)}; wanted {self.range}{reason_against(self.name, value)}")
        for text in (value,) if self.type is str else value if self.type is tuple else ():
            check_text(self.name, text)
        if self.type is tuple and len(set(value)) < len(value):
            raise ConfigError(f"{self.name} {', '.join(value)}: one domain twice")

    def _is_typed(self, value: Any) -> bool:
        if self.type is tuple:
            return isinstance(value, tuple) and all(isinstance(each, str) for each in value)
        if self.type is float:  # a whole number is a number, and all are finite
            return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < float("inf")
        return isinstance(value, self.type) and (self.type is bool or not isinstance(value, bool))


def declared_options(cls: type) -> dict[str, Option]:
    """The options of a dataclass, by name."""
    hints = get_type_hints(cls)
    found = {}
    for field in dataclasses.fields(cls):
        each = dict(field.metadata)
        kinds = [kind for kind in (get_args(hints[field.name]) or (hints[field.name],)) if kind is not NoneType]
        if get_origin(hints[field.name]) is tuple:
            kinds = [tuple]
        assert len(kinds) == 1, f"{cls.__name__}.{field.name}: {hints[field.name]} is no type of an option"
        nullable = NoneType in get_args(hints[field.name])
        if field.name in MOST and kinds[0] in (int, float):
            each["at_most"] = MOST[field.name][0]
        says, before = each.pop("help"), each.pop("before", MISSING)
        words = each.pop("aliases", {}), before, each.pop("resumes", False), each.pop("recorded", {})
        found[field.name] = Option(field.name, kinds[0], nullable, field.default, says, each, *words)
    return found


def format_limit(limit: float) -> str:
    """The end of a range for people: 65,536."""
    return f"{limit:,.0f}" if limit == int(limit) and limit >= 10_000 else f"{limit:g}"


def reason_against(name: str, value: Any) -> str:
    """Why a number is too large, for a message; nothing if it is not."""
    if isinstance(value, int | float) and name in MOST and value > MOST[name][0]:
        return f": {MOST[name][1]}"
    return ""


def check_text(name: str, text: str) -> None:
    """Refuse text that no file system or file of ours can hold."""
    if len(text) > LONGEST:
        raise ConfigError(f"{name}={shorten(text)}; wanted at most {LONGEST:,} characters")
    if "\0" in text:
        raise ConfigError(f"{name}={shorten(text)} has a null character in it, which no name or path can have")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{name}={shorten(text)} is not UTF-8; rename the file or folder") from None


def require_option(name: str, known: Iterable[str], place: str = "") -> str:
    """`name`, or an error with the nearest option if there is none of that name."""
    names = list(known)
    if name not in names:
        hint = did_you_mean(name, names) or hint_of_method(name)
        raise ConfigError(f"{place}unknown option {shorten(name)}.{hint} Known: {', '.join(names)}")
    return name


def hint_of_method(name: str) -> str:
    """For a message, where an option of a training was wanted and one of a method came."""
    if nearest(name, ["weight"]) is None:
        return ""
    return " Options of a method go into its spec: --algorithm 'DSPReg(weight=0.1)'."

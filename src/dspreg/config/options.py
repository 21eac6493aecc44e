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
from dspreg.io.text import did_you_mean

LIMITS: dict[str, Callable[[Any, Any], bool]] = {
    "at_least": lambda value, limit: value >= limit,
    "above": lambda value, limit: value > limit,
    "at_most": lambda value, limit: value <= limit,
    "below": lambda value, limit: value < limit,
    "choices": lambda value, limit: value in limit,
}
WORDS = {str: "text", bool: "true or false", int: "a whole number", float: "a number", tuple: "a list of names"}
ALIASES = {  # what others call them, for the hint
    "learning_rate": "lr", "wd": "weight_decay", "bs": "batch_size", "batch": "batch_size", "seed": "trial",
    "epochs": "steps", "iterations": "steps", "backbone": "model", "arch": "model", "data": "dataset", "gpu": "device",
}  # fmt: skip


def option(help: str, default: Any = MISSING, **limits: Any) -> Any:
    """A field that is an option: `at_least`, `above`, `at_most`, `below` and `choices` are its range.

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
    """

    name: str
    type: type
    nullable: bool
    default: Any
    help: str
    limits: Mapping[str, Any]

    @property
    def is_open(self) -> bool:
        """Whether it may be left open, to be filled in later."""
        return self.default is None and not self.nullable

    @property
    def range(self) -> str:
        """Its values in words."""
        if "choices" in self.limits:
            return "one of " + ", ".join(self.limits["choices"])
        words = {"at_least": "at least", "above": "above", "at_most": "at most", "below": "below"}
        parts = [f"{word} {self.limits[name]}" for name, word in words.items() if name in self.limits]
        return " ".join([WORDS[self.type], " and ".join(parts)]).strip()

    def check(self, value: Any) -> None:
        """Refuse a value of another type or outside the range."""
        if value is None and self.nullable:
            return
        if not self._is_typed(value) or not all(LIMITS[name](value, limit) for name, limit in self.limits.items()):
            raise ConfigError(f"{self.name}={value!r}; wanted {self.range}")
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
        found[field.name] = Option(field.name, kinds[0], nullable, field.default, each.pop("help"), each)
    return found


def require_option(name: str, known: Iterable[str], place: str = "") -> str:
    """`name`, or an error with the nearest option if there is none of that name."""
    names = list(known)
    if name not in names:
        hint = f" Did you mean {ALIASES[name]!r}?" if name in ALIASES else did_you_mean(name, names)
        raise ConfigError(f"{place}unknown option {name!r}.{hint} Known: {', '.join(names)}")
    return name

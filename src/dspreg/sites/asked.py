"""What the user fixes of an estimate, checked before torch is loaded or an image is read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from dspreg.config.options import require_option
from dspreg.config.train_config import TRAIN_OPTIONS
from dspreg.errors import ConfigError
from dspreg.io.text import format_duration, shorten

FLAGS = ("methods", "budget", "model", "image_size", "steps", "trials", "select_by")  # all others go through --set
SEEN = "may have seen the sites that are held out, which a forecast must not"
OWNED = {  # options of a training that are not open here: why, or what to give instead
    "dataset": "it stands after estimate",
    "targets": "every site is held out in turn",
    "algorithm": "give --methods",
    "trial": "give --trials",
    "draw": "methods are compared with their default options",
    "same_draws": "methods are compared with their default options",
    "patience": "every training takes all its steps, as the final one does, whose number is theirs",
    "init": f"a run {SEEN}; for pretrained weights give weights",
    **{name: f"give --{name.replace('_', '-')}" for name in ("model", "image_size", "steps")},
}


@dataclass(frozen=True)
class Asked:
    """What the user fixed; None or empty: left open.

    Raises:
        ConfigError: `options` has one that is not open, that there is not, or a value that it can't have.
    """

    methods: tuple[str, ...] = ()
    budget: float | None = None
    model: str | None = None
    image_size: int | None = None
    steps: int | None = None
    trials: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)  # further ones, by the names of `TrainConfig`

    def __post_init__(self) -> None:
        check_options(self.options)
        for name in ("model", "image_size", "steps"):
            if (value := getattr(self, name)) is not None:
                TRAIN_OPTIONS[name].check(value)
        if self.trials is not None and (type(self.trials) is not int or self.trials < 1):
            raise ConfigError(f"trials={shorten(self.trials)}; wanted a whole number of at least 1")

    def to_json(self) -> dict[str, Any]:
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items() if v not in (None, (), {})}


def check_options(options: Mapping[str, Any], place: str = "") -> None:
    """Refuse what an estimate decides by itself, and what no training has."""
    for name, value in options.items():
        require_option(name, TRAIN_OPTIONS, place)
        if name in OWNED:
            raise ConfigError(f"{place}{name}: {OWNED[name]}")
        TRAIN_OPTIONS[name].check(value)
        if name == "holdout" and not value:
            raise ConfigError(
                f"{place}holdout=0: methods are compared on held-out images of the sources, so give a share, or leave "
                "it out; the final model sees all images anyway"
            )
        if name == "train" and str(value).startswith("mask:"):
            raise ConfigError(f"{place}train={shorten(value)}: the images of the profile {SEEN}")


def flat(asked: Mapping[str, Any]) -> dict[str, Any]:
    """`Asked.to_json` with the options beside the rest."""
    return {name: v for name, v in asked.items() if name != "options"} | dict(asked.get("options", {}))


def in_words(name: str, value: Any) -> str:
    """What was asked for, as it is typed."""
    if name == "budget":
        return format_duration(value)
    return " ".join(value) if isinstance(value, list) else shorten(value)


def parse_budget(text: str) -> float:
    """Seconds of `2h`, `90min`, `1.5 h`, `45s`, `1h30min`."""
    parts = re.findall(
        r"(\d+(?:\.\d+)?)\s*(days?|d|hours?|h|minutes?|min|m|seconds?|sec|s)\b\s*|(\S)", spaced_units(text)
    )
    sizes = {"d": 86400, "h": 3600, "m": 60, "s": 1}
    if not parts or any(stray for _, _, stray in parts):
        raise ConfigError(f"--budget {shorten(text)}; wanted a time such as 2h, 90min or 1h30min")
    seconds = sum(float(number) * sizes[unit[0]] for number, unit, _ in parts)
    if not 0 < seconds < 1e8:
        raise ConfigError(f"--budget {shorten(text)}; wanted a time such as 2h, 90min or 1h30min")
    return seconds


def spaced_units(text: str) -> str:
    """`1h30min` as `1h 30min`."""
    return re.sub(r"(?<=[a-z])(?=\d)", " ", text.strip().lower())

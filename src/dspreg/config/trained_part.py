"""What stands after `--train`: `all`, `head`, `last:N`, `lora(r=8)` or `mask:FILE`; and files that options name."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from dspreg.errors import ConfigError
from dspreg.io.text import did_you_mean, shorten
from dspreg.specs import format_term, parse_term

MASK = re.compile(r"mask:(.+?)(\(.*\))?", re.DOTALL)
WHICH, CONTROLS = ("least", "most"), ("none", "shuffled", "matched")
WANTED = "wanted all, head, last:N, lora, lora(r=8, alpha=16, modules='*qkv') or mask:FILE(which='least', quantile=0.5)"
HIGHEST_RANK = 4_096
SHA = 16  # characters of a file's SHA-256 that stand for it


@dataclass(frozen=True)
class TrainedPart:
    """Which parameters of the network a training moves. Parts that methods put beside it are always trained.

    Attributes:
        kind: `"all"`; `"head"`, the classifier alone; `"last"`, it and the last blocks; `"lora"`, it and low-rank
            adapters; `"mask"`, it and those entries of the backbone that a profile selects.
        blocks: Of `last`: how many.
        r, alpha: Of `lora`: rank, and scale alpha/r.
        modules: Of `lora`: pattern on the names of modules; None for all linear layers of the backbone.
        file: Of `mask`: a profile of the backbone.
        which: Of `mask`: `"least"` trains where c is below its quantile, `"most"` where it is not.
        quantile: Of `mask`.
        control: Of `mask`: the same number of entries of each tensor elsewhere: `"shuffled"`, or `"matched"`, shuffled
            among entries of similar s.
    """

    kind: str
    blocks: int = 0
    r: int = 8
    alpha: float = 16.0
    modules: str | None = None
    file: str = ""
    which: str = "least"
    quantile: float = 0.5
    control: str = "none"

    @classmethod
    def parse(cls, text: str) -> TrainedPart:
        """From text.

        Raises:
            ConfigError: It is not of that form.
        """
        if text in ("all", "head"):
            return cls(text)
        if text.startswith("last:"):
            count = text.removeprefix("last:")
            if not (count.isascii() and count.isdecimal() and len(count) < 5 and int(count)):
                raise ConfigError(
                    f"train={shorten(text)}; wanted last:N with a number of blocks from 1, or head for none"
                )
            return cls("last", int(count))
        if found := MASK.fullmatch(text):
            return cls("mask", file=found[1].strip(), **_options(text, f"mask{found[2] or ''}"))._checked(text)
        if text.partition("(")[0].strip() == "lora":
            return cls("lora", **_options(text, text))._checked(text)
        raise ConfigError(
            f"train={shorten(text)}; {WANTED}.{did_you_mean(text, ('all', 'head', 'last', 'lora', 'mask'))}"
        )

    def _checked(self, text: str) -> TrainedPart:
        wrong = {
            f"r from 1 to {HIGHEST_RANK:,}": not 1 <= self.r <= HIGHEST_RANK,
            "alpha above 0": not 0 < self.alpha < float("inf"),
            f"which of {', '.join(WHICH)}": self.which not in WHICH,
            "a quantile above 0 and below 1": not 0 < self.quantile < 1,
            f"control of {', '.join(CONTROLS)}": self.control not in CONTROLS,
        }
        for wanted, is_wrong in wrong.items():
            if is_wrong:
                raise ConfigError(f"train={shorten(text)}; wanted {wanted}")
        return self

    def __str__(self) -> str:
        """The one text of it, options that have their defaults left out."""
        if self.kind == "last":
            return f"last:{self.blocks}"
        if self.kind not in OPTIONS:
            return self.kind
        given = {name: getattr(self, name) for name in OPTIONS[self.kind]}
        term = format_term(self.kind, {n: v for n, v in given.items() if v != getattr(TrainedPart, n)})
        return f"mask:{self.file}{term.removeprefix('mask')}" if self.kind == "mask" else term


OPTIONS: dict[str, dict[str, type]] = {
    "lora": {"r": int, "alpha": float, "modules": str},
    "mask": {"which": str, "quantile": float, "control": str},
}


def _options(text: str, written: str) -> dict[str, Any]:
    """The options of `lora(…)` or of `mask…(…)`, each of its type."""
    try:
        term = parse_term(written)
    except (SyntaxError, ValueError) as error:
        raise ConfigError(f"train={shorten(text)} can't be read ({getattr(error, 'msg', error)}); {WANTED}") from None
    known, found = OPTIONS[term.name], {}
    if term.arguments:
        raise ConfigError(f"train={shorten(text)}: options are given by name, such as {next(iter(known))}=…")
    for name, value in term.options.items():
        if name not in known:
            raise ConfigError(
                f"train={shorten(text)}: {term.name} has no option {name!r}.{did_you_mean(name, known)} "
                f"It has: {', '.join(known)}"
            )
        if known[name] is float and type(value) is int:
            value = float(value)
        if type(value) is not known[name]:
            wanted = {int: "a whole number", float: "a number", str: "a quoted string"}[known[name]]
            raise ConfigError(f"train={shorten(text)}: {name}={value!r}; wanted {wanted}")
        found[name] = value
    return found


# Options that name a file: no id depends on where it lies, and run.json has its SHA-256.


def files_of(options: Mapping[str, Any]) -> dict[str, str]:
    """Option → the file that it names, of those that name one."""
    found = {}
    if (weights := options.get("weights", "none")) not in ("default", "none", None):
        found["weights"] = weights
    if (head := options.get("head", "random")) not in ("random", None):
        found["head"] = head
    if (init := options.get("init", "none")) not in ("none", None):
        found["init"] = init  # the folder of a run, whose model it is
    part = TrainedPart.parse(options.get("train") or "all")
    return found | ({"train": part.file} if part.kind == "mask" else {})


def with_files(options: Mapping[str, Any], rename: Callable[[str], str]) -> dict[str, Any]:
    """The same options with other names for the files."""
    found = dict(options)
    for name, file in files_of(options).items():
        part = TrainedPart.parse(options["train"]) if name == "train" else None
        found[name] = rename(file) if part is None else str(replace(part, file=rename(file)))
    return found


def without_paths(options: Mapping[str, Any]) -> dict[str, Any]:
    """For ids: `"file"` in the place of each."""
    return with_files(options, lambda _: "file")


def with_absolute_paths(options: Mapping[str, Any]) -> dict[str, Any]:
    """For other machines that see the same folders."""
    return with_files(options, os.path.abspath)


def named_by_contents(file_sha256: str) -> str:
    """What stands in records for a file."""
    return f"sha256={file_sha256[:SHA]}"

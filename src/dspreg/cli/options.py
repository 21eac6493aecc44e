"""Flags that several commands have, and flags made from the declaration of an option."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import MISSING
from typing import Any

from dspreg.config.dataset_ref import COLUMNS, OPTIONAL, REQUIRED, DatasetRef, check_group, parse_columns
from dspreg.config.defaults import PROTOCOLS, default_text
from dspreg.config.options import Option
from dspreg.config.parse import parse_integer
from dspreg.config.train_config import EXECUTION_OPTIONS
from dspreg.errors import ConfigError
from dspreg.io.text import shorten

METAVARS = {"root": "DIR", "weights": "FILE", "algorithm": "SPEC", "device": "DEVICE"}  # else by type


def add_option(group: argparse._ActionsContainer, each: Option, help: str | None = None) -> None:
    """The flag of an option; its value stays text, which `dspreg.config.parse` reads.

    Args:
        group: Where the flag goes.
        each: The option.
        help: Instead of the option's own, with its default.
    """
    flag = "--target" if each.name == "targets" else f"--{each.name.replace('_', '-')}"
    how: dict[str, Any] = {}
    if each.type is tuple:
        how = {"nargs": "+"}
    if each.type is bool or each.recorded:  # what was yes or no is still yes where it stands alone
        how = {"nargs": "?", "const": "true"}
    text = help_text(each) if help is None else help
    group.add_argument(flag, dest=each.name, metavar=metavar(each), help=text.replace("%", "%%"), **how)


def metavar(each: Option) -> str:
    if "choices" in each.limits:
        return "|".join(each.limits["choices"])
    if "form" in each.limits:
        return str(each.limits["form"].metavar)
    by_type = {int: "N", float: "X", bool: "yes|no", str: "NAME", tuple: "DOMAIN"}
    return METAVARS.get(each.name, by_type[each.type])


def help_text(each: Option) -> str:
    """The help of an option, with its default."""
    text = each.help
    if each.name == "protocol":
        text = "; ".join(f"{name}: {protocol.help}" for name, protocol in PROTOCOLS.items())
    if each.name == "targets":
        text += "; none: train on all of them"
    if each.is_open:
        return f"{text} (default: {default_text(each.name)})"
    if each.default in (MISSING, None, ()) or isinstance(each.default, bool):
        return text
    return f"{text} (default: {each.default})"


def which(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--which",
        metavar="selected|last|STEP",
        type=_which,
        default="selected",
        help="the model that source validation selected, that of the last step, or that of an evaluated step, which "
        "needs a training with --keep all (default: selected)",
    )


def _which(text: str) -> str:
    if text in ("selected", "last") or (text.isdecimal() and len(text) < 12):
        return text
    raise argparse.ArgumentTypeError(f"{shorten(text)}; wanted selected, last or the number of a step")


def device_flag(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--device", metavar="DEVICE", default="auto", help=help_text(EXECUTION_OPTIONS["device"]))


def choose_device(asked: str, *, float64: bool = False) -> str:
    """The device that `--device` means here, as `resolve_device` has it, said."""
    from dspreg.devices import resolve_device

    found = resolve_device(asked, float64=float64)
    say_device(found)
    return found


def say_device(device: str) -> None:
    """On stderr: what is on stdout may be CSV, JSON or LaTeX."""
    from dspreg.devices import describe_device

    print(f"device: {describe_device(device)}", file=sys.stderr, flush=True)


def say_progress(text: str) -> None:
    """A line for the log of a job, on stderr."""
    with suppress(OSError):  # the terminal may be gone, which must not end a training
        print(f"dspreg: {text}", file=sys.stderr, flush=True)


def trust(parser: argparse._ActionsContainer) -> None:
    """Whose code the files of a run may have imported."""
    says = "a module or package that the run's files may have imported, for a method or data set of your own; may be "
    says += "given several times (default: dspreg alone)"
    parser.add_argument("--trust", metavar="MODULE", action="append", default=[], help=says)


def dataset(parser: argparse._ActionsContainer) -> None:
    """The images that a trained run is used on."""
    parser.add_argument("--dataset", metavar="NAME", help="as in dspreg train (default: the run's own)")
    parser.add_argument("--root", metavar="DIR", help="folder that holds the data sets (default: data, or the run's)")
    text = "name of a folder: or index: data set (default: the last part of its path)"
    parser.add_argument("--name", metavar="NAME", help=text)
    columns(parser)


def hub_columns(parser: argparse._ActionsContainer) -> None:
    """Which columns of a data set of the hub are what."""
    for what in COLUMNS:
        text = f"the {what} in a data set hf:owner/set (default: guessed, and said)"
        parser.add_argument(f"--{what}-column", metavar="NAME", help=text)


def columns(parser: argparse._ActionsContainer) -> None:
    """Which columns of a table are what, and which images belong together."""
    hub_columns(parser)
    text = f"which columns of index:FILE.csv are {', '.join(REQUIRED)}, and, if there are any, {', '.join(OPTIONAL)}"
    parser.add_argument("--columns", metavar="OURS=YOURS,…", help=f"{text}: path=filename,label=class,domain=site")
    text = (
        "of folder:PATH: the group (patient, part, video) of an image by a regular expression on its path within PATH"
    )
    text += ", its first group or all that matches; a group is never on both sides of a split"
    parser.add_argument("--group", metavar="REGEX", help=text)


def dataset_with_columns(text: str | None, given: Any) -> str:
    """A data set with what was said of it beside it, as part of its text; "" without a data set."""
    chosen = {what: value for what in COLUMNS if (value := getattr(given, f"{what}_column", None))}
    if chosen and not text:
        raise ConfigError("columns are chosen of a data set of the hub; add --dataset hf:owner/set")
    said = parse_columns(given.columns) if getattr(given, "columns", None) else {}
    if regex := getattr(given, "group", None):
        check_group(regex)
        said["group"] = regex
    if said and not text:
        raise ConfigError("--columns and --group go with a data set; add --dataset index:FILE.csv or folder:PATH")
    ref = DatasetRef.parse(text or "")
    if regex and ref.kind != "folder":
        raise ConfigError(f"--group is for folder:PATH; of {str(ref)!r} name a column: --columns group=NAME")
    if said and not regex and ref.kind != "index":
        raise ConfigError(f"--columns is for index:FILE.csv, and not for {str(ref)!r}")
    if not chosen and not said:
        return text or ""
    return str(ref.with_columns(chosen) if chosen else ref.with_names(said))


def integer(of: str, at_least: int = 1) -> Callable[[str], int]:
    """For argparse's `type`: a whole number from `at_least` to the most that there may be `of` it."""

    def parse(text: str) -> int:
        try:
            return parse_integer(text, at_least, of)
        except ConfigError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse


def positive(text: str) -> float:
    """A finite number, 0 or more."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if 0 <= value < float("inf"):
        return value
    raise argparse.ArgumentTypeError(f"{shorten(text)}; wanted a number, 0 or more")


def share(text: str) -> float:
    """A probability: a number from 0 to 1."""
    value = positive(text)
    if value <= 1:
        return value
    raise argparse.ArgumentTypeError(f"{shorten(text)}; wanted a probability from 0 to 1")

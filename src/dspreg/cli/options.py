"""Options that several commands have."""

from __future__ import annotations

import argparse


def which(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--which",
        metavar="selected|last|STEP",
        type=_which,
        default="selected",
        help="the model that source validation chose, of the last step, or of an evaluated one, which needs the "
        "training's --keep all (default: selected)",
    )


def _which(text: str) -> str:
    if text in ("selected", "last") or text.isdecimal():
        return text
    raise argparse.ArgumentTypeError(f"{text!r}; wanted selected, last or the number of a step")


def device(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--device", metavar="DEVICE", default="cpu", help="cpu, cuda, cuda:1, mps (default: cpu)")


def natural(text: str) -> int:
    """1, 2, 3, …"""
    return _whole(text, 1)


def count(text: str) -> int:
    """0, 1, 2, …"""
    return _whole(text, 0)


def positive(text: str) -> float:
    """A finite number, 0 or more."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if 0 <= value < float("inf"):
        return value
    raise argparse.ArgumentTypeError(f"{text!r}; wanted a number, 0 or more")


def _whole(text: str, least: int) -> int:
    if text.isascii() and text.isdigit() and int(text) >= least:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r}; wanted a whole number, at least {least}")

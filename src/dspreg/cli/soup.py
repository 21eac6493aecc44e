"""`dspreg soup`: average the weights of finished runs."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dspreg.cli.options import add_option, choose_device, dataset, device_flag, integer, trust, which
from dspreg.cli.parser import Commands, add_command
from dspreg.config.parse import parse_integer
from dspreg.config.train_config import EXECUTION_OPTIONS
from dspreg.errors import ConfigError
from dspreg.io.text import align_columns, escape_terminal, shorten

EXAMPLES = """examples:
  dspreg soup runs/a runs/b runs/c --uniform --out runs/soup      the mean of all (DiWA)
  dspreg soup runs/a runs/b runs/c --greedy --out runs/soup       of those that source validation accepts
  dspreg soup runs/a --toward start --alpha 0.5 --out runs/half   between its start and the run (WiSE-FT)
  dspreg soup runs/a --toward start --alpha 0.25 0.5 0.75 --out runs/between

members are runs on the same images and with the same network. Images of the target choose nothing. What is written
is a run: dspreg evaluate, predict, export, measure and report read it."""


def add(commands: Commands) -> None:
    parser = add_command(commands, "soup", "average the weights of finished runs", EXAMPLES)
    parser.add_argument("runs", metavar="RUN", nargs="+", help="folders that dspreg train left")
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--uniform", action="store_true", help="the mean of all runs")
    says = "runs in the order of their source-validation accuracy, each kept if the mean does not get worse by it"
    how.add_argument("--greedy", action="store_true", help=says)
    says = "between the weights that one run started from and its own; needs --alpha"
    how.add_argument("--toward", choices=("start",), help=says)
    says = "with --toward start: share of the trained weights, 0 … 1; of several, source validation selects one"
    parser.add_argument("--alpha", metavar="X", nargs="+", type=share, default=[], help=says)
    parser.add_argument("--out", metavar="DIR", required=True, help="folder of the new run")
    says = "with --toward start: file of the weights that the run started from, if it has moved"
    parser.add_argument("--weights", metavar="FILE", help=says)
    dataset(parser)
    parser.add_argument("--workers", metavar="N", type=integer("workers", 0), help="processes that read images")
    add_option(parser, EXECUTION_OPTIONS["threads"])
    which(parser)
    trust(parser)
    device_flag(parser)
    parser.set_defaults(run=run)


def share(text: str) -> float:
    """A number from 0 to 1."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if 0 <= value <= 1:
        return value
    raise argparse.ArgumentTypeError(f"{shorten(text)}; wanted a number from 0 to 1")


def run(given: Any) -> int:
    from rich.console import Console
    from rich.progress import Progress

    from dspreg.config.train_config import Execution
    from dspreg.inference.soup import average_runs, interpolate_to_start

    check_flags(given)
    threads = parse_integer(given.threads, 1, "threads") if given.threads is not None else None
    execution = Execution(device=choose_device(given.device), workers=given.workers, threads=threads)
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("scoring averages", total=None)
        common: dict[str, Any] = {
            "which": given.which, "dataset": given.dataset, "root": given.root, "name": given.name,
            "execution": execution, "trust": given.trust,
            "progress": lambda done, total: bar.update(task, completed=done, total=total),
        }  # fmt: skip
        if given.toward:
            found = interpolate_to_start(given.runs[0], given.out, given.alpha, weights=given.weights, **common)
        else:
            found = average_runs(given.runs, given.out, greedy=given.greedy, **common)
    print("\n".join(text(given, found)))
    return 0


def check_flags(given: Any) -> None:
    """Flags that do not go together."""
    if given.toward and not given.alpha:
        raise ConfigError("--toward start needs --alpha, the share of the trained weights, such as --alpha 0.5")
    if given.toward and len(given.runs) > 1:
        raise ConfigError(f"--toward start takes one run; {len(given.runs)} are given")
    for flag, value in (("--alpha", given.alpha), ("--weights", given.weights)):
        if value and not given.toward:
            raise ConfigError(f"{flag} goes with --toward start")


def text(given: Any, found: Mapping[str, Any]) -> Iterator[str]:
    """What was averaged, and how it scores."""
    from dspreg.runs.folder import RunFolder

    if given.toward:
        yield from align_columns(list(_alphas(RunFolder(given.out).contents().records, found)), left=1)
    elif given.greedy:
        yield from align_columns(list(_members(given.runs, found["soup"]["members"])), left=1)
        yield "validation: mean accuracy on held-out images of the sources; with it: of the average that it would join"
    taken = sum(each["accepted"] for each in found["soup"]["members"])
    what = "" if given.toward else f"{taken} of {len(given.runs)} runs averaged; "
    chosen = found["selected"]
    yield f"{what}validation {_percent(chosen['validation'])}{_target(found, chosen)}"
    yield f"a run of its own: {escape_terminal(str(given.out))}"


def _alphas(records: Sequence[Mapping[str, Any]], found: Mapping[str, Any]) -> Iterator[list[str]]:
    yield ["alpha", "step", "validation", ""]
    for each in records:
        mark = "selected" if each["step"] == found["selected"]["step"] else ""
        yield [f"{each['log']['alpha']:g}", str(each["step"]), _percent(each["validation"]), mark]


def _members(runs: Sequence[str], members: Sequence[Mapping[str, Any]]) -> Iterator[list[str]]:
    yield ["run", "validation", "with it", ""]
    for name, each in sorted(zip(runs, members, strict=True), key=lambda pair: -pair[1]["validation"]):
        mark = "averaged" if each["accepted"] else "left out"
        yield [escape_terminal(name), _percent(each["validation"]), _percent(each["average"]), mark]


def _target(found: Mapping[str, Any], chosen: Mapping[str, Any]) -> str:
    scores = [f"{escape_terminal(name)} {_percent(chosen['accuracy'][name]['in'])}" for name in found["targets"]]
    return f"; target {', '.join(scores)}" if scores else ""


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"

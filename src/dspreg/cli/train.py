"""`dspreg train`: one model, from folders to a run that can be used."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from dspreg.cli.parser import Commands, described
from dspreg.errors import ConfigError, Notice, Preempted
from dspreg.protocol.reading import assignment, made, read, targets, valued, written
from dspreg.protocol.settings import PROTOCOLS, Execution, Settings, defaults, resolved

EXAMPLES = """examples:
  dspreg train --dataset digits --target print --out runs/print
  dspreg train --dataset PACS --root data --target sketch --algorithm "CORAL(weight=0.5)+DSPReg" --out runs/pacs
  dspreg train --dataset folder:photos --target site-4 --model resnet18.tv_in1k --steps 500 --out runs/site-4
  dspreg train --config run.yaml --set lr=1e-4 --trial 1 --out runs/trial-1
  dspreg train --dataset PACS --target sketch --print-config > run.yaml

run the same command again to resume; a finished run is verified and left as it is.
options come from the command line, then --config, then a random draw, then the defaults of data set and protocol."""


def add(commands: Commands) -> None:
    parser = described(commands, "train", "train one model and leave it, its records and a card in a folder", EXAMPLES)
    parser.usage = "dspreg train --dataset NAME --target DOMAIN --out DIR [options]; all of them: dspreg train --help"
    parser.add_argument("--out", metavar="DIR", help="the run's folder: new, or of the same training to resume it")
    parser.add_argument("--config", metavar="FILE", help="options from a YAML file")
    parser.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], help="one option, by its name below")
    parser.add_argument("--print-config", action="store_true", help="print all options as YAML, defaults included")
    for title, kind in (("what is trained", Settings), ("how it is run", Execution)):
        group = parser.add_argument_group(title)
        for each in dataclasses.fields(kind):
            flag = "--target" if each.name == "targets" else f"--{each.name.replace('_', '-')}"
            how: dict[str, Any] = {"nargs": "+"} if each.name == "targets" else {}
            if str(each.type) == "bool":
                how = {"nargs": "?", "const": "true"}
            group.add_argument(flag, dest=each.name, metavar=metavar(each), help=says(each), **how)
    parser.set_defaults(run=run)


def metavar(each: dataclasses.Field[Any]) -> str:
    if "choices" in each.metadata:
        return "|".join(each.metadata["choices"])
    kind = str(each.type).removesuffix(" | None")
    known = {"root": "DIR", "weights": "FILE", "algorithm": "SPEC", "dataset": "NAME"}
    return known.get(each.name, {"int": "N", "float": "X", "bool": "yes|no", "str": "NAME"}.get(kind, "DOMAIN"))


def says(each: dataclasses.Field[Any]) -> str:
    text = str(each.metadata["help"]).replace("%", "%%")
    if each.name == "protocol":
        text = "; ".join(f"{name}: {what}" for name, what in PROTOCOLS.items()).replace("%", "%%")
    if each.name == "targets":
        text += "; none: train on all of them"
    if each.default is dataclasses.MISSING:
        return text if each.name == "dataset" else f"{text} (default: {usual(each.name)})"
    shown = isinstance(each.default, str | int) and not isinstance(each.default, bool)
    return f"{text} (default: {each.default})" if shown else text


def usual(name: str) -> str:
    """The default that all trainings share, or what it depends on."""
    data = (
        SimpleNamespace(name="", steps=2, evaluate_every=2, image_size=2, small=False),
        SimpleNamespace(name="", steps=1, evaluate_every=1, image_size=1, small=True),
    )
    if len({defaults("domainbed", each)[name] for each in data}) > 1:
        return "by data set"
    found = {defaults(protocol, data[0])[name] for protocol in PROTOCOLS}
    if len(found) > 1:
        return "by protocol"
    value = found.pop()
    return ("yes" if value else "no") if isinstance(value, bool) else f"{value:g}" if value != str(value) else value


def run(given: Any) -> int:
    with stopping() as pause:  # first of all: loading torch takes seconds in which a signal may come
        return trained(given, pause)


def trained(given: Any, pause: Any) -> int:
    settings, execution = made(stated(given))
    filled = looked_at(settings, execution)
    if given.print_config:
        print(written(with_method_options(filled), execution), end="")
        return 0
    if not given.out:
        raise ConfigError("where should the run go? Add --out DIR")
    if "targets" not in settings:
        raise ConfigError("which domain is held out? Add --target DOMAIN, or --target none to train on all of them")
    from rich.console import Console

    from dspreg.training.callbacks import ProgressBar
    from dspreg.training.loop import train

    console = Console(stderr=True)
    callbacks = [ProgressBar(console)] if console.is_terminal else []
    finished_before = (Path(given.out) / "result.json").exists()
    result = train(settings, execution, given.out, callbacks=callbacks, pause=pause)
    print(summary(result, Path(given.out), finished_before))
    return 0


def looked_at(settings: dict[str, Any], execution: Execution) -> Settings:
    """All options, once the data set and its domains are known to be there: seconds before torch is."""
    from dspreg.data.named import dataset_named

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)  # training says them
        data = dataset_named(settings["dataset"], execution.root, execution.name)
    for name in settings.get("targets", ()):
        data.check_domain(name)
    return resolved(settings, data)


def with_method_options(settings: Settings) -> Settings:
    """The method's own options, too, where they are drawn at random or scaled to a short run."""
    from dspreg.training.experiment import filled_in

    return dataclasses.replace(settings, algorithm=filled_in(settings)[0])


def stated(given: Any) -> dict[str, Any]:
    """What the configuration file, `--set` and the flags say, later ones winning."""
    values = read(given.config) if given.config else {}
    values |= dict(assignment(text) for text in given.set)
    for kind in (Settings, Execution):
        for each in dataclasses.fields(kind):
            value = getattr(given, each.name)
            if value is not None:
                flag = f"--{each.name.replace('_', '-')}"
                values[each.name] = (
                    targets(part for text in value for part in text.split(","))
                    if each.name == "targets"
                    else valued(each.name, value, flag)
                )
    return values


def summary(result: dict[str, Any], out: Path, finished_before: bool) -> str:
    chosen = result["selected"]
    unseen = [f"{name} {100 * chosen['accuracy'][name]['in']:.1f} %" for name in result["targets"]]
    lines = [f"held-out sources {100 * chosen['validation']:.1f} %, selected at step {chosen['step']}"]
    if unseen:
        lines.insert(0, f"unseen {', '.join(unseen)}")
    where = f"{out} was finished before; every file is as it was" if finished_before else f"see {out / 'README.md'}"
    return "; ".join(lines) + f"\n{where}"


@contextmanager
def stopping() -> Iterator[Any]:
    """A signal stops at the next safe point, with a checkpoint; a second Ctrl-C at once.

    A second SIGTERM does not: schedulers send it to a process and to its group, and it is the checkpoint they wait for.
    """
    received: list[int] = []

    def note(number: int, _frame: Any) -> None:
        if number == signal.SIGINT and signal.SIGINT in received:
            os._exit(130)  # the last checkpoint is whole: nothing is lost but steps
        if not received:
            again = "; Ctrl-C once more to stop at once" if number == signal.SIGINT else ""
            print(f"\ndspreg: stopping after this step{again}", file=sys.stderr)
        received.append(number)

    def pause() -> None:
        if received:
            stopped = Preempted("stopped; run the same command again to go on")
            stopped.exit_code = 130 if received[0] == signal.SIGINT else 75
            raise stopped

    before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield pause
    finally:
        for number, handler in before.items():
            if number not in received:  # a second one may come while the process ends: it must not be spoiled by that
                signal.signal(number, handler)

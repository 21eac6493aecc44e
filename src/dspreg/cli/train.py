"""`dspreg train`: train one model."""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dspreg.cli.options import add_option, columns, dataset_with_columns, say_device, say_progress
from dspreg.cli.parser import Commands, add_command
from dspreg.config.parse import format_config, parse_assignment, parse_option, parse_targets, read_options, split_config
from dspreg.config.train_config import EXECUTION_OPTIONS, OPTIONS, TRAIN_OPTIONS, Execution, TrainConfig, resolve_config
from dspreg.errors import ConfigError, Notice, Preempted
from dspreg.io.text import escape_terminal
from dspreg.kinds import KINDS, figures_of, kind_of
from dspreg.runs.folder import RunFolder

if TYPE_CHECKING:
    from rich.console import Console

    from dspreg.data import DomainDataset
    from dspreg.training.callbacks import Callback

EXAMPLES = """examples:
  dspreg train --dataset digits --target print --out runs/print
  dspreg train --dataset PACS --root data --target sketch --algorithm "CORAL(weight=0.5)+DSPReg" --out runs/pacs
  dspreg train --dataset folder:photos --target site-4 --model resnet18.tv_in1k --steps 500 --out runs/site-4
  dspreg train --config run.yaml --set lr=1e-4 --trial 1 --out runs/trial-1
  dspreg train --dataset PACS --target sketch --print-config > run.yaml

run the same command again to resume; a finished run is verified and left as it is.
options come from the command line, then --config, then a random draw, then the defaults of data set and protocol."""


def add(commands: Commands) -> None:
    parser = add_command(
        commands, "train", "train one model and leave it, its records and a card in a folder", EXAMPLES
    )
    parser.usage = "dspreg train --dataset NAME --target DOMAIN --out DIR [options]; all of them: dspreg train --help"
    parser.add_argument("--out", metavar="DIR", help="the run's folder: new, or of the same training to resume it")
    parser.add_argument("--config", metavar="FILE", help="options from a YAML file")
    parser.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], help="one option, by its name below")
    parser.add_argument("--print-config", action="store_true", help="print all options as YAML, defaults included")
    says = "at the end find the temperature of the probabilities on held-out images of the sources, and keep it in the "
    says += "run: predict, evaluate and export use it"
    parser.add_argument("--calibrate", action="store_true", help=says)
    for title, options in (("what is trained", TRAIN_OPTIONS), ("how it is run", EXECUTION_OPTIONS)):
        group = parser.add_argument_group(title)
        for each in options.values():
            add_option(group, each)
    columns(group)
    parser.set_defaults(run=run)


def run(given: Any) -> int:
    with stopping() as pause:  # first of all: loading torch takes seconds in which a signal may come
        return train_one(given, pause)


def train_one(given: Any, pause: Any) -> int:
    values = collect_options(given)
    asked, execution = split_config(values)
    data = open_data(asked, execution, quiet=given.print_config)
    config = resolve_config(asked, data, RunFolder(given.out).begun_settings() if given.out else None)
    data.read_as(config.reading)
    if given.print_config:
        print(format_config(with_method_options(config), execution), end="")
        return 0
    if not given.out:
        raise ConfigError("where should the run go? Add --out DIR")
    if "targets" not in values:
        raise ConfigError("which domain is held out? Add --target DOMAIN, or --target none to train on all of them")
    if given.calibrate and (config.holdout == 0 or execution.keep == "none"):
        why = "--holdout 0 holds no images out" if config.holdout == 0 else "--keep none keeps no model"
        raise ConfigError(
            f"--calibrate compares a model's probabilities with held-out images, and {why}; leave one out"
        )
    from rich.console import Console

    from dspreg.training.execution import resolve_execution
    from dspreg.training.loop import train

    execution = resolve_execution(execution, config.algorithm)
    say_device(execution.device)
    say_cache(execution, data, config)
    callbacks = progress_callbacks(Console(stderr=True))
    before = finished_run(Path(given.out))
    # what was asked for, and not what follows from it today: a run that was begun goes on as it was begun
    result = train(asked, execution, given.out, callbacks=callbacks, pause=pause, data=data)
    print(summary(result, Path(given.out), finished_before=result["run"] == before))
    sys.stdout.flush()  # before the remarks on stderr, if both go to one terminal
    for each in result.get("remarks", []):
        print(f"dspreg: {escape_terminal(each)}", file=sys.stderr)
    if given.calibrate:
        calibrate(asked, execution, given.out)
    return 0


def finished_run(out: Path) -> str | None:
    """The id of the run that is finished there, which it has no more if it is prolonged."""
    from dspreg.runs.folder import RunFolder

    return str(RunFolder(out).description()["id"]) if (out / "result.json").exists() else None


def calibrate(config: TrainConfig, execution: Execution, out: str) -> None:
    """Find the temperature of the selected model, and keep it in the run."""
    from dspreg.cli.evaluate import calibration_text
    from dspreg.inference.calibrate import calibrate_run

    typed = [name.partition(".")[0] for name in re.findall(r"[\w.]+", config.algorithm or "") if "." in name]
    found = calibrate_run(
        out, dataset=config.dataset, root=execution.root, name=execution.name, device=execution.device,
        workers=execution.workers, trust=typed,
    )  # fmt: skip
    print(calibration_text(found))


def say_cache(execution: Execution, data: DomainDataset, config: TrainConfig) -> None:
    """On stderr, where decoded images are kept if that was left open."""
    from dspreg.data.cache_choice import choose_cache

    chosen = choose_cache(execution.cache, data, config.image_size or data.image_size)
    if chosen.reason and not data.small:
        print(f"decoded images: --cache {chosen.kind}, {chosen.reason}", file=sys.stderr, flush=True)


def progress_callbacks(console: Console) -> list[Callback]:
    """What is left, as a bar on a terminal and as lines in a log."""
    from dspreg.training.callbacks import ProgressBar
    from dspreg.training.time_left import RunClock, TimeLeftLog

    if not console.is_terminal:
        clock = RunClock()
        return [clock, TimeLeftLog(say_progress, clock)]
    bar = ProgressBar(console)
    return [bar, TimeLeftLog(bar.progress.console.print, bar.clock)]


def open_data(config: TrainConfig, execution: Execution, *, quiet: bool) -> DomainDataset:
    """The data set, with the targets checked: mistakes are reported before torch is loaded, which takes seconds."""
    from dspreg.data.registry import open_dataset

    with warnings.catch_warnings():
        if quiet:
            warnings.simplefilter("ignore", Notice)
        data = open_dataset(config.dataset, execution.root, execution.name)
    for name in config.targets:
        data.check_domain(name)
    return data


def with_method_options(config: TrainConfig) -> TrainConfig:
    """The options with those of the method, if they are drawn at random or scaled to a short run."""
    from dspreg.algorithms.registry import StackSpec
    from dspreg.training.experiment import resolve_stack

    return dataclasses.replace(config, algorithm=str(resolve_stack(StackSpec.parse(config.algorithm), config)[0]))


def collect_options(given: Any) -> dict[str, Any]:
    """Options from the configuration file, `--set` and the flags; later ones win."""
    values = read_options(given.config) if given.config else {}
    values |= dict(parse_assignment(text) for text in given.set)
    for name in OPTIONS:
        value = getattr(given, name)
        if name == "targets" and value is not None:
            values[name] = parse_targets(part for text in value for part in text.split(","))
        elif value is not None:
            values[name] = parse_option(name, value, f"--{name.replace('_', '-')}")
    if named := dataset_with_columns(values.get("dataset"), given):
        values["dataset"] = named
    return values


def summary(result: dict[str, Any], out: Path, finished_before: bool) -> str:
    chosen = result["selected"]
    kind, figures, held_out = KINDS[kind_of(chosen)], figures_of(chosen), chosen["validation"]
    unseen = [f"{escape_terminal(name)} {kind.phrase(figures[name]['in'])}" for name in result["targets"]]
    lines = [
        f"trained on all images of the sources; the model is that of step {chosen['step']}"
        if held_out is None
        else f"held-out sources {kind.phrase(held_out)}, selected at step {chosen['step']}"
    ]
    if unseen:
        lines.insert(0, f"unseen {', '.join(unseen)}")
    where = f"{out} was finished before; every file is as it was" if finished_before else f"see {out / 'README.md'}"
    return "; ".join(lines) + f"\n{where}"


@contextmanager
def stopping() -> Iterator[Any]:
    """A signal stops at the next safe point, with a checkpoint; a second Ctrl-C stops immediately.

    A second SIGTERM does not: schedulers send it both to a process and to its group, and wait for the checkpoint.
    SIGHUP, of a terminal that was closed, is treated as SIGTERM, unless it is ignored, as under `nohup`.
    """
    received: list[int] = []

    def note(number: int, _frame: Any) -> None:
        if number == signal.SIGINT and signal.SIGINT in received:
            os._exit(130)  # the last checkpoint is intact: only steps are lost
        if not received:
            again = "; Ctrl-C once more to stop at once" if number == signal.SIGINT else ""
            with suppress(OSError):  # the terminal may be gone
                print(f"\ndspreg: stopping after this step{again}", file=sys.stderr)
        received.append(number)

    def pause() -> None:
        if received:
            stopped = Preempted("stopped; run the same command again to resume")
            stopped.exit_code = 130 if received[0] == signal.SIGINT else 75
            raise stopped

    numbers = [signal.SIGTERM, signal.SIGINT]
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, note) for number in numbers}
    try:
        yield pause
    finally:
        for number, handler in before.items():
            if number not in received:  # a second signal must not disturb the end of the process
                signal.signal(number, handler)

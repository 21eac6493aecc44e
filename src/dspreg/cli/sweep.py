"""`dspreg sweep`: many runs, from a file, a recipe or the command line."""

from __future__ import annotations

import dataclasses
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from dspreg.cli.parser import Commands, described
from dspreg.cli.plan_text import plan_text
from dspreg.cli.train import metavar, says, stopping
from dspreg.errors import ConfigError, Notice
from dspreg.names import shown
from dspreg.protocol import reading, sweep
from dspreg.protocol.settings import Execution
from dspreg.protocol.sweep import HOW, KEYS, Sweep
from dspreg.runs.run import Run
from dspreg.runs.store import RunStore, Standing

EXAMPLES = """examples:
  dspreg sweep --dataset digits --algorithms ERM DSPReg --trials 3 --draws 1 --only training --store runs/digits
  dspreg sweep pacs.yaml --store runs/pacs --dry-run
  dspreg sweep pacs.yaml --store runs/pacs --set steps=300 --device cuda
  dspreg sweep dspreg.paper.items:components --root data --store runs/ablations

pacs.yaml:
  datasets: [PACS]
  algorithms: [ERM, "CORAL(weight=0.5)+DSPReg"]
  targets: all            # or [sketch, photo]
  trials: 3
  draws: 20               # random configurations, the defaults among them
  only: training          # without it also the pairs of domains that leave-one-out selection needs
  settings: {steps: 5001}
  execution: {root: data, keep: none}

run the same command again to go on; several at once on one store share the work.
"""

GIVEN = {
    "datasets": "data sets, as for train",
    "algorithms": "specs such as ERM or CORAL+DSPReg",
    "targets": "domains held out, or all, each in turn (default: all)",
    "trials": "number of trials (default: 3)",
    "draws": "number of random configurations, the defaults among them (default: 20)",
    "only": "leave out the pairs of domains that only leave-one-domain-out selection needs",
}
OTHERWISE = {  # defaults that differ from those of train
    "threads": "CPU threads of each run (default: 1, so that all machines give the same bits)",
    "workers": "processes that read images, for each run (default: 0, or up to 4 with a GPU)",
}
FLAGS = {"datasets": "--dataset", "algorithms": "--algorithms", "targets": "--targets"}


def add(commands: Commands) -> None:
    parser = described(commands, "sweep", "train many models: data sets × algorithms × targets × trials", EXAMPLES)
    parser.usage = "dspreg sweep FILE|--dataset NAME… --algorithms SPEC… --store DIR [options]; all of them: --help"
    parser.add_argument("file", metavar="FILE", nargs="?", help="a sweep in YAML, a recipe.py, or a function's path")
    parser.add_argument("--store", metavar="DIR", help="where the runs go: new, or of earlier sweeps")
    parser.add_argument("--dry-run", action="store_true", help="print runs, hours and gigabytes, and train nothing")
    parser.add_argument("--set", metavar="KEY=VALUE", action="append", default=[],
                        help="one option of train, for all runs")  # fmt: skip
    group = parser.add_argument_group("what is trained")
    for name, text in GIVEN.items():
        many = {"nargs": "+"} if name in FLAGS else {}
        shape = {"trials": "N", "draws": "N", "only": "training"}.get(name, "NAME")
        group.add_argument(FLAGS.get(name, f"--{name}"), dest=name, metavar=shape, help=text, **many)  # type: ignore[arg-type]
    group.add_argument("--same-draws", action="store_const", const="true",
                       help="draw n is the same in all trials; DomainBed draws anew in each")  # fmt: skip
    group = parser.add_argument_group("how it is run")
    add_where(group)
    for each in dataclasses.fields(Execution):
        how: dict[str, Any] = {"nargs": "?", "const": "true"} if str(each.type) == "bool" else {}
        flag = f"--{each.name.replace('_', '-')}"
        text = OTHERWISE.get(each.name) or says(each)
        group.add_argument(flag, dest=each.name, metavar=metavar(each), help=text, **how)
    parser.set_defaults(run=run)


def add_where(group: Any) -> None:
    """The flags that `swept` takes."""
    says_jobs = "runs at once (default: one per GPU, or core, of all machines); 0: one after the other, in this process"
    group.add_argument("--jobs", metavar="N", help=says_jobs)
    says_on = "this machine, or a Ray cluster (needs the extra ray)"
    group.add_argument("--on", choices=("local", "ray"), default="local", help=says_on)
    says_address = "HOST:PORT, auto or local (default: RAY_ADDRESS, or one on this machine, or else a new one)"
    group.add_argument("--ray-address", metavar="ADDR", help=says_address)
    group.add_argument("--attempts", metavar="N", default="3", help="how often a run may fail (default: 3)")


def run(given: Any) -> int:
    runs, execution = planned(given)
    store = store_for(runs, given, execution)
    if store is None:
        return 0
    with stopping() as pause:
        return swept(runs, store, given, execution, pause)


def store_for(runs: Sequence[Run], given: Any, execution: Execution) -> RunStore | None:
    """Where `--store` says, if runs may go there; None once `--dry-run` has printed what they are."""
    check_specs(runs)
    store = RunStore(given.store) if given.store else None
    if store is not None:
        store.require_free()
    if given.dry_run:
        print(plan_text(runs, store, execution))
        return None
    if store is None:
        raise ConfigError("where should the runs go? Add --store DIR, or --dry-run to see what they are")
    return store


def planned(given: Any) -> tuple[list[Run], Execution]:
    """The runs, and how they are run."""
    written = {name: sweep.valued(name, value, _flag(name)) for name in KEYS
               if name not in ("settings", "execution") and (value := getattr(given, name)) is not None}  # fmt: skip
    further = dict(reading.assignment(text) for text in given.set)
    further |= {name: reading.valued(name, value, _flag(name)) for name in HOW
                if (value := getattr(given, name)) is not None}  # fmt: skip
    how = {name: value for name, value in further.items() if name in HOW}
    settings = {name: value for name, value in further.items() if name not in HOW}
    file = given.file
    if file and Path(file).suffix not in (".yaml", ".yml"):
        if written or settings:
            name = next(iter([*written, *settings]))
            raise ConfigError(f"a recipe says itself what is trained; leave out {name}, or write a sweep in YAML")
        return sweep.recipe(file), Execution(**how)
    values = sweep.read(file) if file else {}
    values = {**values, **written}
    values["settings"] = {**values.get("settings", {}), **settings}
    values["execution"] = {**values.get("execution", {}), **how}
    made = Sweep(**values)
    execution = Execution(**made.execution)
    return made.runs(lambda data: domains_of(data, execution)), execution


def domains_of(data: str, execution: Execution) -> Sequence[str]:
    """Those of a benchmark are known; others are read."""
    from dspreg.data.named import dataset_named, known_class

    known = known_class(data)
    if known is not None:
        return known.domains
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)  # training says them
        placed = data.startswith(("folder:", "index:"))
        return dataset_named(data, execution.root, execution.name if placed else None).domains


def check_specs(runs: Sequence[Run]) -> None:
    """Whether the algorithms exist and have these options: before the first run, not in the middle of the night."""
    from dspreg.algorithms.spec import parse

    for spec in dict.fromkeys(run.algorithm for run in runs):
        parse(spec)


def swept(
    runs: list[Run],
    store: RunStore,
    given: Any,
    execution: Execution,
    pause: Any,
    say: Callable[[str], None] = lambda text: print(text, flush=True),
) -> int:
    """Train what is left of the runs, and tell how each ended; returns the exit code."""
    say = heard_or_not(say)
    from rich.console import Console

    from dspreg.launch.board import Bars, Board
    from dspreg.launch.on_ray import on_ray
    from dspreg.launch.pool import pool, settled
    from dspreg.launch.serial import serial
    from dspreg.launch.work import Work
    from dspreg.training.display import Bar, Display
    from dspreg.training.experiment import check_device

    far = given.on == "ray"
    if given.ray_address is not None and not far:
        raise ConfigError(f"--ray-address {given.ray_address} is for --on ray")
    asked = None if given.jobs is None else whole("--jobs", given.jobs, 1 if far else 0)
    alone = asked == 0
    attempts = whole("--attempts", given.attempts, 1)
    if not far:
        check_device(execution.device)  # here, once: each run would use up its attempts on it
    store.make()
    store.plan(runs)
    console = Console(stderr=True)
    board = Bars(console, len(runs)) if console.is_terminal and not alone else Board()

    def told(run: Run, standing: Standing, before: bool) -> None:
        when, number, n = ", as before" if before else "", len(work.ended), standing.attempts
        again = "" if standing.settled(attempts) else f"; attempt {n} of {attempts}, tried again later"
        board.settled(number)
        say(f"[{number}/{len(runs)}] {shown(str(run))}: {outcome(standing)}{when}{again}")

    def display(run: Run) -> Display:
        return Bar(console, shown(str(run))) if console.is_terminal else Display()

    with Work(runs, store, attempts=attempts, told=told) as work:
        if far:
            on_ray(work, execution, address=given.ray_address, jobs=asked, pause=pause, board=board, say=console.print)
        else:
            execution, jobs = settled(execution, asked)
            if alone:
                serial(work, execution, pause=pause, display=display)
            else:
                pool(work, execution, jobs=jobs, pause=pause, board=board)
    ended = work.ended
    bad = [run for run in runs if ended[run.id].state != "finished"]
    say(f"{len(runs) - len(bad)} of {len(runs)} runs finished in {store.path}")
    if not bad:
        return 0
    say(f"{len(bad)} did not:")
    for each in bad:
        say(f"  {each.id}  {shown(str(each))}: {outcome(ended[each.id])}")
    standings = [ended[each.id] for each in bad]
    again = [each for each in standings if each.state == "cancelled" or (each.state == "failed" and each.attempts)]
    if again:
        say(f"dspreg retry {store.path} gives {len(again)} of them their attempts again")
    return 0 if all(each.state == "cancelled" for each in standings) else 5


def heard_or_not(say: Callable[[str], None]) -> Callable[[str], None]:
    """Whoever read the output may be gone; runs are trained for the store, and go on."""

    def told(text: str) -> None:
        with suppress(BrokenPipeError):
            say(text)
            return
        try:
            sys.stdout.flush()
        except BrokenPipeError:  # or Python would fail with what is left in it, at the end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    return told


def whole(flag: str, given: str, least: int) -> int:
    if not given.isdecimal() or int(given) < least:
        raise ConfigError(f"{flag} {given}; wanted a whole number at least {least}")
    return int(given)


def outcome(standing: Standing) -> str:
    """How a run ended, in a few words."""
    if standing.result is None:
        return f"{standing.state}: {shown(standing.reason)}"
    accuracy, targets = standing.result["selected"]["accuracy"], standing.result["targets"]
    return "unseen " + ", ".join(f"{shown(name)} {100 * accuracy[name]['in']:.1f} %" for name in targets)


def _flag(name: str) -> str:
    return FLAGS.get(name, f"--{name.replace('_', '-')}")

"""`dspreg sweep`: many runs, defined by a file, a recipe or flags."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dspreg.cli.options import add_option, columns, dataset_with_columns, say_device, say_progress
from dspreg.cli.parser import Commands, add_command
from dspreg.cli.plan_text import large_plan_text, plan_text
from dspreg.cli.train import stopping
from dspreg.config.parse import parse_assignment, parse_integer, parse_option
from dspreg.config.train_config import EXECUTION_OPTIONS, TRAIN_OPTIONS, Execution
from dspreg.errors import ConfigError
from dspreg.io.text import escape_terminal
from dspreg.kinds import KINDS, figures_of, kind_of
from dspreg.launch.launcher import Launcher, check_specs, domains_of, make_launcher
from dspreg.launch.launcher import sweep as launch_sweep
from dspreg.protocol.sweep_file import KEYS, Sweep, load_recipe, parse_sweep_value, read_sweep
from dspreg.runs.run import Run
from dspreg.runs.status import ATTEMPTS, RunState, RunStatus
from dspreg.runs.store import RunStore

if TYPE_CHECKING:
    from dspreg.launch.probe import Prober

EXAMPLES = """examples:
  dspreg sweep --dataset digits --algorithms ERM DSPReg --trials 3 --draws 1 --only training --store runs/digits
  dspreg sweep pacs.yaml --store runs/pacs --dry-run --probe
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

run the same command again to resume; several sweeps on one store share the work.
"""

MAX_RUNS = 10_000  # that start without a word: more than a benchmark of one method, fewer than a slip of the finger

GIVEN = {
    "datasets": "data sets, as for train",
    "algorithms": "specs such as ERM or CORAL+DSPReg",
    "targets": "domains held out, or all, each in turn (default: all)",
    "trials": "number of trials (default: 3)",
    "draws": "number of random configurations, the defaults among them (default: 20)",
    "only": "leave out the pairs of domains that only leave-one-domain-out selection needs",
}
OTHERWISE = {  # defaults that differ from those of train
    "threads": "CPU threads of each run (default: 1, so that results do not depend on the number of cores)",
    "workers": "processes that read images, for each run (default: 0, or up to 4 with a GPU)",
}
SETTINGS = ("select_by",)  # of train, for all runs, with a flag of their own beside --set
FLAGS = {"datasets": "--dataset", "algorithms": "--algorithms", "targets": "--targets"}


def add(commands: Commands) -> None:
    parser = add_command(commands, "sweep", "train many models: data sets × algorithms × targets × trials", EXAMPLES)
    parser.usage = "dspreg sweep FILE|--dataset NAME… --algorithms SPEC… --store DIR [options]; all of them: --help"
    parser.add_argument("file", metavar="FILE", nargs="?", help="a sweep in YAML, a recipe.py, or a function's path")
    parser.add_argument("--store", metavar="DIR", help="where the runs go: new, or of earlier sweeps")
    parser.add_argument("--dry-run", action="store_true", help="print runs, hours and gigabytes, and train nothing")
    parser.add_argument("--probe", action="store_true",
                        help="with --dry-run: hours by a few steps, where no run is finished")  # fmt: skip
    parser.add_argument("--set", metavar="KEY=VALUE", action="append", default=[],
                        help="one option of train, for all runs")  # fmt: skip
    group = parser.add_argument_group("what is trained")
    for name, text in GIVEN.items():
        many = {"nargs": "+"} if name in FLAGS else {}
        shape = {"trials": "N", "draws": "N", "only": "training"}.get(name, "NAME")
        group.add_argument(FLAGS.get(name, f"--{name}"), dest=name, metavar=shape, help=text, **many)  # type: ignore[arg-type]
    group.add_argument("--same-draws", action="store_const", const="true",
                       help="draw n is the same in all trials; DomainBed draws anew in each")  # fmt: skip
    for name in SETTINGS:
        add_option(group, TRAIN_OPTIONS[name])
    group = parser.add_argument_group("how it is run")
    add_launch_options(group)
    for each in EXECUTION_OPTIONS.values():
        add_option(group, each, OTHERWISE.get(each.name))
    columns(group)
    parser.set_defaults(run=run)


def add_launch_options(group: Any) -> None:
    """The flags that `launch` takes."""
    says_jobs = "parallel runs (default: one per GPU or core of all machines); 0: one after the other, in this process"
    group.add_argument("--jobs", metavar="N", help=says_jobs)
    says_on = "this machine, or a Ray cluster (needs the extra ray)"
    group.add_argument("--on", choices=("local", "ray"), default="local", help=says_on)
    says_address = "HOST:PORT, auto or local (default: RAY_ADDRESS, or one on this machine, or else a new one)"
    group.add_argument("--ray-address", metavar="ADDR", help=says_address)
    says_attempts = f"how often a run may fail (default: {ATTEMPTS})"
    says_most = f"start no more than so many runs (default: {MAX_RUNS:,}); a larger sweep needs this word"
    group.add_argument("--max-runs", metavar="N", help=says_most)
    group.add_argument("--attempts", metavar="N", default=str(ATTEMPTS), help=says_attempts)


def run(given: Any) -> int:
    if given.datasets:
        given.datasets = [dataset_with_columns(text, given) for text in given.datasets]
    plan, execution = read_plan(given)
    prober = make_prober(given, execution)
    runs = list_few(plan, execution, given, prober) if isinstance(plan, Sweep) else plan
    store = None if runs is None else open_store(runs, given, execution, prober)
    if runs is None or store is None:
        return 0 if prober is None else prober.exit_code
    with stopping() as pause:
        return launch(runs, store, given, execution, pause)


def make_prober(given: Any, execution: Execution) -> Prober | None:
    """What tries a few steps, if `--probe` asks for it."""
    if not given.probe:
        return None
    if not given.dry_run:
        raise ConfigError("--probe says what a sweep will take, and trains none of it: add --dry-run")
    from dspreg.launch.probe import Prober

    return Prober(execution, whole("--jobs", given.jobs or "1", 0) or 1, say_progress)


def list_few(plan: Sweep, execution: Execution, given: Any, prober: Prober | None = None) -> list[Run] | None:
    """The runs of a sweep, once it is known that they are not more than is meant.

    They are counted before they are made, which takes minutes for a million; None once `--dry-run` has said what they
    are without making them.
    """
    domains = cache(lambda data: domains_of(data, execution))
    counts = plan.count(domains)
    total, most = sum(counts.values()), most_runs(given)
    if given.dry_run and total > most:
        store = check_store(given)
        if prober is not None:
            check_specs(plan.algorithms)  # before anything is tried
        parts = large_plan_text(counts, lambda d, a: plan.iterate_part(d, a, domains(d)), store, execution, prober)
        for text in parts:
            print(text, flush=True)
        print(f"to start them: --max-runs {total}")
        check_specs(plan.algorithms)
        return None
    require_at_most(most, total)
    return plan.runs(domains)


def most_runs(given: Any, usual: int = MAX_RUNS) -> int:
    """What `--max-runs` says, or the usual number."""
    return usual if given.max_runs is None else whole("--max-runs", given.max_runs, 1)


def require_at_most(most: int, total: int) -> None:
    """Refuse more runs than are meant, before any is made."""
    if total > most:
        raise ConfigError(
            f"these are {total:,} runs, and at most {most:,} are started unasked. See what they take with --dry-run; "
            f"fewer trials, draws or targets are fewer runs; to start them all add --max-runs {total}"
        )


def check_store(given: Any) -> RunStore | None:
    """Where `--store` says, if runs may go there."""
    store = RunStore(given.store) if given.store else None
    if store is not None:
        store.require_free()
    return store


def open_store(runs: Sequence[Run], given: Any, execution: Execution, prober: Prober | None = None) -> RunStore | None:
    """Where `--store` says, if runs may go there; None once `--dry-run` has printed what they are."""
    check_specs(run.algorithm for run in runs)
    store = check_store(given)
    if given.dry_run:
        print(plan_text(runs, store, execution, prober))
        return None
    if store is None:
        raise ConfigError("where should the runs go? Add --store DIR, or --dry-run to list them")
    return store


def read_plan(given: Any) -> tuple[Sweep | list[Run], Execution]:
    """The sweep, or the runs of a recipe, and how they are run."""
    written = {name: parse_sweep_value(name, value, _flag(name)) for name in KEYS
               if name not in ("settings", "execution") and (value := getattr(given, name)) is not None}  # fmt: skip
    further = dict(parse_assignment(text) for text in given.set)
    further |= {name: parse_option(name, value, _flag(name)) for name in (*SETTINGS, *EXECUTION_OPTIONS)
                if (value := getattr(given, name)) is not None}  # fmt: skip
    how = {name: value for name, value in further.items() if name in EXECUTION_OPTIONS}
    settings = {name: value for name, value in further.items() if name not in EXECUTION_OPTIONS}
    file = given.file
    if file and Path(file).suffix not in (".yaml", ".yml"):
        if written or settings:
            name = next(iter([*written, *settings]))
            raise ConfigError(f"a recipe defines what is trained; leave out {name}, or write a sweep in YAML")
        return load_recipe(file, most_runs(given)), Execution(**how)
    values = read_sweep(file) if file else {}
    values = {**values, **written}
    values["settings"] = {**values.get("settings", {}), **settings}
    values["execution"] = {**values.get("execution", {}), **how}
    made = Sweep(**values)
    return made, Execution(**made.execution)


def launch(
    runs: list[Run],
    store: RunStore,
    given: Any,
    execution: Execution,
    pause: Callable[[], None],
    say: Callable[[str], None] = lambda text: print(text, flush=True),
) -> int:
    """Train the runs that are left, and print how each ended; returns the exit code."""
    from rich.console import Console

    from dspreg.launch.progress import SweepClock, SweepProgressBars, SweepProgressLog
    from dspreg.training.execution import resolve_execution

    console, done = Console(stderr=True), 0
    launcher, attempts = chosen_launcher(given, console.print), whole("--attempts", given.attempts, 1)
    if given.on != "ray":  # which has devices of its own, and says them
        execution = resolve_execution(execution, *(run.algorithm for run in runs))
        say_device(execution.device)

    def on_run(run: Run, state: RunState, already: bool) -> None:
        nonlocal done
        final = state.is_final(attempts)
        done += final
        when = ", as before" if already else ""
        again = "" if final else f"; attempt {state.attempts} of {attempts}, tried again later"
        say(f"[{done}/{len(runs)}] {escape_terminal(str(run))}: {outcome(state)}{when}{again}")

    clock = SweepClock(store, runs, max(1, int(given.jobs or 1)), attempts)
    bars = (
        partial(SweepProgressBars, console, len(runs))
        if console.is_terminal
        else partial(SweepProgressLog, say_progress)
    )
    ended = launch_sweep(
        runs, store, launcher=launcher, execution=execution, attempts=attempts, on_run=on_run, pause=pause,
        progress=bars(clock),
    )  # fmt: skip
    bad = [run for run in runs if ended[run.id].status is not RunStatus.FINISHED]
    say(f"{len(runs) - len(bad)} of {len(runs)} runs finished in {store.path}")
    if not bad:
        return 0
    say(f"{len(bad)} did not:")
    for each in bad:
        say(f"  {each.id}  {escape_terminal(str(each))}: {outcome(ended[each.id])}")
    states = [ended[each.id] for each in bad]
    cancelled = [each for each in states if each.status is RunStatus.CANCELLED]
    again = cancelled + [each for each in states if each.status is RunStatus.FAILED and each.attempts]
    if again:
        say(f"dspreg retry {store.path} gives {len(again)} of them their attempts again")
    return 0 if len(cancelled) == len(states) else 5


def chosen_launcher(given: Any, say: Callable[[str], None]) -> Launcher:
    """By `--on`, `--jobs` and `--ray-address`."""
    on_ray = given.on == "ray"
    jobs = None if given.jobs is None else whole("--jobs", given.jobs, 1 if on_ray else 0)
    if on_ray:
        from dspreg.launch.ray_launcher import RayLauncher

        return RayLauncher(jobs, address=given.ray_address, say=say)
    if given.ray_address is not None:
        raise ConfigError(f"--ray-address {given.ray_address} is for --on ray")
    return make_launcher("serial") if jobs == 0 else make_launcher("pool", jobs=jobs)


def whole(flag: str, given: str, least: int) -> int:
    """The number after a flag."""
    try:
        return parse_integer(given, least, flag.removeprefix("--").replace("-", "_"))
    except ConfigError as error:
        raise ConfigError(f"{flag} {error}") from None


def outcome(state: RunState) -> str:
    """How a run ended, in a few words."""
    if state.result is None:
        return f"{state.status}: {escape_terminal(state.reason)}"
    chosen, targets = state.result["selected"], state.result["targets"]
    kind, figures = KINDS[kind_of(chosen)], figures_of(chosen)
    return "unseen " + ", ".join(f"{escape_terminal(name)} {kind.phrase(figures[name]['in'])}" for name in targets)


def _flag(name: str) -> str:
    return FLAGS.get(name, f"--{name.replace('_', '-')}")

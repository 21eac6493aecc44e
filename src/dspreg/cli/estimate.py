"""`dspreg estimate`: how well a model will do on a new site, which method to take, and the model."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dspreg.cli.options import add_option, columns, dataset_with_columns, say_device, say_progress
from dspreg.cli.parser import Commands, add_command
from dspreg.cli.sweep import OTHERWISE, outcome, whole
from dspreg.cli.train import progress_callbacks, stopping
from dspreg.config.dataset_ref import DatasetRef
from dspreg.config.parse import parse_assignment, parse_option
from dspreg.config.train_config import EXECUTION_OPTIONS, TRAIN_OPTIONS, Execution
from dspreg.errors import ConfigError
from dspreg.io.text import align_columns, escape_terminal
from dspreg.metrics import SELECT_BY
from dspreg.sites.asked import check_options, parse_budget

if TYPE_CHECKING:
    from dspreg.runs.run import Run
    from dspreg.runs.status import RunState
    from dspreg.sites.answer import Estimate

EXAMPLES = """examples:
  dspreg estimate folder:photos --out result                       with photos/site/class/image.jpg
  dspreg estimate folder:photos --out result --dry-run             what it would do, and how long that takes
  dspreg estimate folder:photos --out result --budget 30min --check
  dspreg estimate folder:photos --out result --new folder:inbox    images of a new site, without labels
  dspreg estimate folder:photos --out other --methods SWA CORAL+SWA --model resnet50.tv_in1k --trials 3

every site is held out in turn; result/page.html has the answer, result/model the model, result/store all runs.
run the same command again to go on, or with --check or --new to add to what is there."""
GIVEN = ("model", "image_size", "steps")  # options of train with a flag of their own; --set has the others
AUTO = "auto"
FIXED = (
    "keep",
    "profile",
    "domainbed_records",
    "save_every",
    "check_images",
)  # options of how it is run that are not open


def add(commands: Commands) -> None:
    parser = add_command(commands, "estimate", "say how well a model will do on a new site, and train it", EXAMPLES)
    parser.usage = "dspreg estimate folder:PATH --out DIR [options]; all of them: dspreg estimate --help"
    parser.add_argument(
        "dataset", metavar="DATASET", help="folder:PATH with site/class/image.jpg, or as in dspreg train"
    )
    parser.add_argument("--out", metavar="DIR", help="the answer's folder: new, or of the same images to go on")
    group = parser.add_argument_group("what is done")
    says = "auto, or specs as in dspreg algorithms (default: auto, ERM and Agreement with averaged weights as they fit)"
    group.add_argument("--methods", metavar="SPEC", nargs="+", default=[AUTO], help=says)
    says = "time for all of it, such as 30min; steps, image size, network and trials are chosen by it (default: 2h)"
    group.add_argument("--budget", metavar="TIME", help=says)
    says = "also hold out every two sites together: was the forecast of each from the others right?"
    group.add_argument("--check", action="store_true", help=says)
    group.add_argument("--new", metavar="folder:PATH", help="images of one new site, without labels: what they say")
    group.add_argument("--trials", metavar="N", help="trainings for each method and site (default: as they fit)")
    for name in GIVEN:
        add_option(group, TRAIN_OPTIONS[name], TRAIN_OPTIONS[name].help + " (default: as it fits)")
    says = f"metric that methods are compared by, on held-out images of the sources: {', '.join(SELECT_BY)} "
    group.add_argument("--select-by", metavar="METRIC", help=says + "(default: accuracy)")
    group.add_argument(
        "--set", metavar="KEY=VALUE", action="append", default=[], help="one more option of dspreg train"
    )
    group.add_argument("--no-images", action="store_true", help="show no image in the page")
    group.add_argument(
        "--dry-run", action="store_true", help="say what would be done and how long it takes; write nothing"
    )
    group = parser.add_argument_group("how it is run")
    group.add_argument(
        "--jobs", metavar="N", help="parallel trainings (default: one per GPU or core); 0: in this process"
    )
    for each in EXECUTION_OPTIONS.values():
        if each.name not in FIXED:
            add_option(group, each, OTHERWISE.get(each.name))
    columns(group)
    parser.set_defaults(run=run)


def run(given: Any) -> int:
    with stopping() as pause:
        return answer(given, pause)


def answer(given: Any, pause: Any) -> int:
    if not given.out:
        raise ConfigError("where should the answer go? Add --out DIR")
    dataset = dataset_with_columns(given.dataset, given)
    require_dataset(dataset)
    fixed = read_fixed(given)
    execution = Execution(**{
        name: parse_option(name, value, f"--{name.replace('_', '-')}")
        for name in EXECUTION_OPTIONS if name not in FIXED and (value := getattr(given, name)) is not None
    })  # fmt: skip

    from rich.console import Console

    from dspreg.launch.progress import SweepClock, SweepProgressBars, SweepProgressLog
    from dspreg.launch.resources import default_jobs
    from dspreg.runs.status import RunStatus
    from dspreg.sites.estimate import PAGE, estimate
    from dspreg.training.execution import resolve_execution

    console = Console(stderr=True)
    execution = resolve_execution(execution)
    say_device(execution.device)
    jobs = None if given.jobs is None else whole("--jobs", given.jobs, 0)
    at_a_time = default_jobs(execution) if jobs is None else max(1, jobs)

    def progress(store: Any, runs: Any) -> Any:
        clock = SweepClock(store, runs, at_a_time)
        bars = (
            partial(SweepProgressBars, console, len(runs))
            if console.is_terminal
            else partial(SweepProgressLog, say_progress)
        )
        return bars(clock)

    def on_run(run: Run, state: RunState, already: bool) -> None:
        if not already:
            held_out = escape_terminal(", ".join(run.targets))
            # not the accuracy of its record, which is that of a part of the site, by the model that was selected
            came = "done" if state.status is RunStatus.FINISHED else outcome(state)
            print(f"  {held_out} held out, {escape_terminal(run.algorithm)}, trial {run.trial}: {came}", flush=True)

    found = estimate(
        dataset, given.out, **fixed, check=given.check, new=given.new, images=not given.no_images,
        execution=execution, launcher="serial" if at_a_time == 1 else "pool", jobs=at_a_time, dry_run=given.dry_run,
        say=lambda text: print(escape_terminal(text), flush=True), pause=pause, on_run=on_run, progress=progress,
        callbacks=progress_callbacks(console),
    )  # fmt: skip
    if found is not None:
        print("\n".join(text(found)))
        print(f"\npage: {escape_terminal(str(Path(given.out) / PAGE))}")
    return 0


def require_dataset(dataset: str) -> None:
    """A folder that is not there is said before torch is loaded, which takes seconds."""
    ref = DatasetRef.parse(dataset)
    if ref.is_path and not Path(ref.target).exists():
        from dspreg.data.registry import open_dataset

        open_dataset(dataset)  # raises, with what is wanted there


def read_fixed(given: Any) -> dict[str, Any]:
    """What the flags fix, as arguments of `estimate`."""
    if AUTO in given.methods and len(given.methods) > 1:
        raise ConfigError(f"--methods {' '.join(given.methods)}: auto chooses by itself; give it alone, or specs alone")
    options = dict(parse_assignment(text) for text in given.set)
    check_options(options, "--set ")
    if given.budget is not None:
        parse_budget(given.budget)
    fixed = {name: parse_option(name, value, f"--{name.replace('_', '-')}") for name in GIVEN
             if (value := getattr(given, name)) is not None}  # fmt: skip
    if given.trials is not None:
        fixed["trials"] = whole("--trials", given.trials, 1)
    if given.select_by is not None:
        options["select_by"] = parse_option("select_by", given.select_by, "--select-by")
    methods = () if given.methods == [AUTO] else given.methods
    return {**fixed, "methods": methods, "budget": given.budget, "options": options}


def text(found: Estimate) -> list[str]:
    """One sentence and one table."""
    from dspreg.sites.answer import LEVEL, percent

    checked = {each.site: each for each in found.checked or ()}
    head = ["site", "images", *(m.name for m in found.methods), *(["forecast from the others"] if checked else [])]
    rows = [head]
    for n, site in enumerate(found.chosen.sites):
        row = [
            escape_terminal(site.site),
            f"{site.images:,}",
            *(f"{100 * m.sites[n].accuracy:.1f} %" for m in found.methods),
        ]
        if checked:
            interval = checked[site.site].interval(LEVEL)
            right = "" if checked[site.site].was_right(LEVEL) else ", wrong"
            row.append(f"{percent(interval.low)} – {percent(interval.high)} %{right}")
        rows.append(row)
    rows.append(
        [
            "sources' held-out images",
            "",
            *(found.format_validation(m.validation) for m in found.methods),
            *([""] if checked else []),
        ]
    )
    lines = ["", escape_terminal(found.sentence()), "", *align_columns(rows), "", escape_terminal(found.how_little())]
    if record := found.record():
        lines.append(record)
    lines += [f"note: {escape_terminal(each)}" for each in found.remarks]
    if found.new is not None:
        lines += ["", *(escape_terminal(line) for line in found.describe_new())]
    return lines

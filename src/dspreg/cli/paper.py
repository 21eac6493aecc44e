"""`dspreg paper`: every table and figure of the paper, at a scale of your choice."""

from __future__ import annotations

import dataclasses
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dspreg.cli.options import add_option, choose_device
from dspreg.cli.parser import Commands, add_command
from dspreg.cli.sweep import MAX_RUNS, add_launch_options, launch, most_runs, open_store, require_at_most, whole
from dspreg.cli.train import stopping
from dspreg.config.parse import parse_assignment, parse_option
from dspreg.config.train_config import EXECUTION_OPTIONS, Execution
from dspreg.errors import ConfigError, Notice
from dspreg.io.text import did_you_mean, escape_terminal
from dspreg.paper.scales import SCALES
from dspreg.protocol.sweep_file import OPEN
from dspreg.reporting.formats import FORMATS
from dspreg.runs.run import Run
from dspreg.runs.store import RunStore
from dspreg.specs import DEFAULT_ENGINE

EXAMPLES = """examples:
  dspreg paper                                                    all items, and how many runs each takes
  dspreg paper components                                         one of them: cost, and what to expect
  dspreg paper components --scale smoke --store runs/smoke        minutes, on the embedded digits
  dspreg paper maps --scale smoke --store runs/maps --figures pictures
  dspreg paper components --scale small --root data --set weights=lite0.safetensors --store runs/small --dry-run
  dspreg paper main --scale paper --root data --device cuda --store runs/paper --format latex > table.tex

scales: paper, as published (ResNet-50, 224 pixels, 5,001 steps); small, EfficientNet-Lite0 at 64 pixels, 300 steps;
smoke, a small network on the digits, 40 steps. Run the same command again to resume; items share the runs they have in
common if they share a store. Progress goes to stderr, the tables to stdout."""


def add(commands: Commands) -> None:
    parser = add_command(
        commands, "paper", "regenerate a table or figure of the paper, at a scale of your choice", EXAMPLES
    )
    parser.usage = "dspreg paper [ITEM --scale paper|small|smoke --store DIR] [options]; all of them: --help"
    parser.add_argument("item", metavar="ITEM", nargs="?", help="table or figure; without it all are listed")
    parser.add_argument("--scale", choices=tuple(SCALES), help="without it, the item is explained")
    parser.add_argument("--store", metavar="DIR", help="where the runs go: new, or of earlier items")
    parser.add_argument("--root", metavar="DIR", help="folder that holds the data sets (default: data)")
    add_option(parser, EXECUTION_OPTIONS["device"])
    add_launch_options(parser)
    says = f"how DSP-Reg's penalty is computed (default: {DEFAULT_ENGINE}); see dspreg algorithms DSPReg"
    parser.add_argument("--engine", metavar="ENGINE", default=DEFAULT_ENGINE, help=says)
    parser.add_argument("--trials", metavar="N", help="another number of trials than the scale's")
    parser.add_argument("--draws", metavar="N", help="another number of random configurations than the scale's")
    parser.add_argument("--set", metavar="KEY=VALUE", action="append", default=[],
                        help="an option of train that the item leaves open, for all runs")  # fmt: skip
    parser.add_argument("--dry-run", action="store_true", help="print runs, hours and gigabytes, and train nothing")
    parser.add_argument("--show", action="store_true", help="print the results so far, and train nothing")
    parser.add_argument("--format", choices=tuple(FORMATS), default="text", help="default: text")
    parser.add_argument("--figures", metavar="DIR", help="also a picture, DIR/ITEM.png")
    parser.set_defaults(run=run)


def run(given: Any) -> int:
    import inspect

    from dspreg.paper.items import ITEMS

    if given.item is None:
        if _chosen(given):
            raise ConfigError(f"which item? There are: {', '.join(ITEMS)}")
        print(listing())
        return 0
    if given.item not in ITEMS:
        near = did_you_mean(given.item, ITEMS)
        raise ConfigError(f"the paper has no item {given.item!r}.{near} There are: {', '.join(ITEMS)}")
    if given.scale is None and _chosen(given):
        raise ConfigError("at which scale? Add --scale paper, small or smoke")
    if given.scale is None:
        print(f"dspreg paper {given.item}: {inspect.getdoc(ITEMS[given.item])}")
        return 0
    if given.show and given.dry_run:
        raise ConfigError("--show or --dry-run, not both: one prints what is there, the other what will be")
    if given.figures and Path(given.figures).is_file():
        raise ConfigError(f"--figures {given.figures} is a file; wanted a folder")
    item, execution = build_item(given)
    if item.kind == "overhead":
        return _timed(item, execution, given)
    if given.show and not given.store:
        raise ConfigError("--show: of which runs? Add the --store DIR that they are in")
    total, usual = item.count(), max(MAX_RUNS, ITEMS[given.item](SCALES[given.scale]).count())
    if given.dry_run and total > most_runs(given, usual):
        print(f"{total:,} runs, too many to look at one by one; to start them: --max-runs {total}")
        return 0
    require_at_most(most_runs(given, usual), total)
    runs, code = item.runs(), 0
    store = open_store(runs, given, execution)
    if store is None:
        return 0
    if given.show:
        store.check()
    else:
        _look(item, runs, store, execution)
        with stopping() as pause:
            code = launch(runs, store, given, execution, pause, say=_aside)
    _show(item, store, given)
    return code


def _chosen(given: Any) -> list[str]:
    """Options that mean nothing before an item and a scale are named."""
    names = ("scale", "store", "set", "trials", "draws", "dry_run", "show", "figures")
    return [name for name in names if getattr(given, name) and not (name == "scale" and given.item)]


def build_item(given: Any) -> tuple[Any, Execution]:
    """The item with the given options, and how its runs are executed."""
    from dspreg.paper.items import ITEMS

    further = dict(parse_assignment(text) for text in given.set)
    further |= {name: parse_option(name, value, f"--{name}") for name in ("root", "device")
                if (value := getattr(given, name)) is not None}  # fmt: skip
    settings = {name: value for name, value in further.items() if name not in EXECUTION_OPTIONS}
    for name in settings:
        if name not in OPEN:
            raise ConfigError(f"--set {name}: the item sets that itself. What can be set: {', '.join(OPEN)}")
    item = ITEMS[given.item](SCALES[given.scale], given.engine)
    numbers: dict[str, Any] = {name: whole(f"--{name}", value, 1) for name in ("trials", "draws")
               if (value := getattr(given, name)) is not None}  # fmt: skip
    if item.kind == "map" and numbers.get("draws", 1) > 1:
        raise ConfigError("--draws: a map compares one training before and after; use --trials for several")
    item = dataclasses.replace(item, settings=settings, **numbers)
    usual = {"keep": "none", "profile": "always" if item.kind == "map" else "never"}  # tables need no models
    execution = Execution(**(usual | {name: value for name, value in further.items() if name in EXECUTION_OPTIONS}))
    return dataclasses.replace(item, precision=execution.precision), execution


def listing() -> str:
    """One line per item."""
    from dspreg.io.text import align_columns
    from dspreg.paper.items import ITEMS

    rows: list[Sequence[str]] = [("item", "what", "runs: paper", "small", "smoke")]
    claims = []
    for name, make in ITEMS.items():
        counts = [make(scale).count() for scale in SCALES.values()]
        rows.append((name, make().what, *(f"{n:,}" if n else "timed" for n in counts)))
        claims.append((name, make().claim))
    lines = [*align_columns(rows, 2), "", "what the paper claims", *(f"  {line}" for line in align_columns(claims, 2))]
    return "\n".join([*lines, "", "dspreg paper ITEM explains one; --scale paper, small or smoke runs it"])


def _look(item: Any, runs: Sequence[Run], store: RunStore, execution: Execution) -> None:
    """Report missing data and weights once, before the first run, instead of in every run."""
    from dspreg.data.registry import open_dataset
    from dspreg.networks import make_backbone

    left = [run for run in runs if not (store.folder(run) / "result.json").exists()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)  # training gives them
        for name in dict.fromkeys(run.dataset for run in left):
            open_dataset(name, execution.root)
        if left:
            weights = item.settings.get("weights", "default")
            make_backbone(item.setting("model"), weights=weights, image_size=item.setting("image_size"))


def _show(item: Any, store: RunStore, given: Any) -> None:
    from dspreg.paper import heat_maps, render

    made = heat_maps.render_tables(item, store) if item.kind == "map" else render.render_tables(item, store)
    sys.stdout.write(FORMATS[given.format](made))
    if given.figures:
        from dspreg.paper.figures import draw_heat_maps, draw_item, save_figure, title_of

        if item.kind != "map":
            path = draw_item(item, made, given.figures)
            _aside(f"see {path}" if path else "no picture: no mean is there yet")
            return
        profiles, layer = heat_maps.profiles_to_draw(item, store)
        if not profiles:
            _aside("no picture: no trial has all its profiles")
            return
        figure = draw_heat_maps(profiles, layer, title_of(item))
        _aside(f"see {save_figure(figure, given.figures, item.name)}")


def _timed(item: Any, execution: Execution, given: Any) -> int:
    from dspreg.algorithms.registry import parse
    from dspreg.paper import overhead

    for variant in item.variants:
        parse(variant.spec)
    for name in ("store", "trials", "draws", "show"):
        if getattr(given, name):
            raise ConfigError(f"--{name}: overhead measures anew and keeps nothing; leave it out")
    if given.dry_run:
        labels = ", ".join(escape_terminal(variant.label) for variant in item.variants)
        print(f"{len(item.variants)} variants ({labels}), {overhead.BLOCKS} blocks each of as many steps as are "
              "between two refreshes; nothing is kept")  # fmt: skip
        return 0
    execution = dataclasses.replace(execution, device=choose_device(execution.device, float64=True))
    with stopping() as pause:
        costs, length = overhead.measure_costs(item, execution, _aside, pause)
    made = overhead.render_tables(item, costs, length)
    sys.stdout.write(FORMATS[given.format](made))
    if given.figures:
        from dspreg.paper.figures import draw_item

        _aside(f"see {draw_item(item, made, given.figures)}")
    return 0


def _aside(text: str) -> None:
    print(text, file=sys.stderr, flush=True)

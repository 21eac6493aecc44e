"""`dspreg report`: from finished runs to tables."""

from __future__ import annotations

import gc
import shlex
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dspreg.cli.parser import Commands, described
from dspreg.errors import ConfigError, DspregError, Notice
from dspreg.names import path_name

SELECTIONS = ("training", "leave-one-out", "oracle", "late")  # spelt out: --help need not load them

EXAMPLES = """examples:
  dspreg report runs                                      accuracy by domain, averages, the paper beside them
  dspreg report runs --selection leave-one-out            needs the runs that hold out two domains
  dspreg report runs --contrast DSPReg ERM                is one better? paired, with a 95 % interval
  dspreg report runs --selection late                     mean over the second half of the steps: less noise
  dspreg report runs --format latex --out table.tex       also markdown, csv, json
  dspreg report runs --format html --out report.html      one page: tables that sort, curves, c beside null
  dspreg report evidence/pacs/store.tar.xz                an archive of a store, read as the store would be
  dspreg report --domainbed sweep                         DomainBed's folders, printed as collect_results does
  dspreg report runs --write-domainbed sweep              folders that collect_results reads

only finished runs count, every file verified but the weights. Runs under other conditions (protocol, threads, torch,
steps, images, …) get rows of their own, which say how they differ."""


def add(commands: Commands) -> None:
    parser = described(commands, "report", "make tables of finished runs", EXAMPLES)
    says = (
        "a folder of run folders, or the store of a sweep, whose tables count what was planned; or an archive of one, "
        "*.tar.xz"
    )
    parser.add_argument("path", metavar="PATH", nargs="?", help=says)
    formats = ("text", "markdown", "latex", "csv", "json", "html")
    parser.add_argument("--format", choices=formats, default="text", help="default: text")
    parser.add_argument("--out", metavar="FILE", help="write it there, whole or not at all, and not to the terminal")
    says = (
        "what picks step and draw (default: training); oracle looks at the target itself and is no fair result; late "
        "picks no step and has the mean over the second half of them, less noisy, of no single model"
    )
    parser.add_argument("--selection", choices=SELECTIONS, default="training", help=says)
    says = "also the paired difference of two rows; may be given several times"
    parser.add_argument("--contrast", metavar=("A", "B"), nargs=2, action="append", default=[], help=says)
    says = "print DomainBed's own sweep folder as its collect_results does, faults included (text or latex)"
    parser.add_argument("--domainbed", metavar="DIR", help=says)
    parser.add_argument(
        "--write-domainbed", metavar="OUT", help="write the runs as a sweep folder of DomainBed instead"
    )
    says = "with --write-domainbed: the --data_dir of the sweep, a part of its folders' names (default: data)"
    parser.add_argument("--data-dir", metavar="DIR", default="data", help=says)
    parser.set_defaults(run=run, usual=parser.get_default)


def run(given: Any) -> int:
    if (given.path is None) == (given.domainbed is None):
        raise ConfigError("give a folder of runs, as in dspreg report runs, or --domainbed DIR, and not both")
    if given.data_dir != given.usual("data_dir") and given.write_domainbed is None:
        raise ConfigError("--data-dir is for --write-domainbed OUT, whose folders are named by it")
    _look(given)
    if given.domainbed is not None:
        _put(given, _domainbed(given))
    elif given.write_domainbed is not None:
        from dspreg.report.domainbed_folders import written
        from dspreg.runs.archive import open_store

        for name in ("out", "contrast", "selection", "format"):
            if getattr(given, name) != given.usual(name):
                raise ConfigError(f"--write-domainbed OUT writes folders; --{name} is for a report")

        with open_store(given.path) as folder:
            count = written(folder, given.write_domainbed, data_dir=given.data_dir)
        print(f"{count} runs written to {given.write_domainbed}")
    else:
        from dspreg.runs.archive import open_store

        with no_collection(), open_store(given.path) as folder:
            text = _ours(given, folder)
        _put(given, text)
    return 0


@contextmanager
def no_collection() -> Iterator[None]:
    """Runs are millions of objects without a cycle; looking for one again and again takes a fifth of the time."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def _look(given: Any) -> None:
    """Whether `--out` can be a file, before anything is read."""
    if given.out is None:
        return
    path = Path(given.out)
    if path.is_dir():
        raise ConfigError(f"--out {path} is a folder; wanted a file, as in --out {path / 'report.html'}")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"--out {path}: there is no folder {path.parent}; make it first")


def _put(given: Any, text: str) -> None:
    if given.out is None:
        sys.stdout.write(text)
        return
    from dspreg.io.atomic_files import write

    write(Path(given.out), text.encode())
    print(f"written to {given.out}")


def _ours(given: Any, folder: Path) -> str:
    from dspreg.report import contrasts
    from dspreg.report.formats import FORMATS
    from dspreg.report.provenance import hidden, hiding
    from dspreg.report.reading import read
    from dspreg.report.tables import selected, tables
    from dspreg.runs.archive import is_archive

    hide = hiding(folder) if is_archive(given.path) else str  # the folder of an archive is gone when this is read
    traces, damaged = read(folder)
    for each in damaged:
        warnings.warn(f"left out: {hide(each)}", Notice, stacklevel=2)
    if not traces:
        raise ConfigError(f"all {len(damaged)} runs in {given.path} are damaged; nothing is left to report")
    found = selected(traces, given.selection)
    made = tables(found, damaged)
    labels = {each.label for each in found} | {each.algorithm for each in found}
    made += [contrasts.table(found, *(_as_reported(name, labels) for name in pair)) for pair in given.contrast]
    if given.format == "html":
        from dspreg.report.page import report_page

        return report_page(found, made, damaged, folder, _command(given))
    return FORMATS[given.format]([hidden(table, hide) for table in made])


def _as_reported(name: str, labels: set[str]) -> str:
    """A spec as status and sweeps write it, by the name its row has; torch is asked only about names that are none."""
    if name in labels or "(" not in name:
        return name
    from dspreg.algorithms.spec import filled

    try:
        canonical = filled(name)[0]
    except DspregError:
        return name
    return canonical if canonical in labels else name


def _command(given: Any) -> str:
    """As it can be shown to others: of a path its last part."""
    parts = ["dspreg", "report", path_name(given.path), "--format", given.format]
    parts += ["--selection", given.selection] if given.selection != "training" else []
    for pair in given.contrast:
        parts += ["--contrast", *pair]
    return shlex.join(parts)


def _domainbed(given: Any) -> str:
    from dspreg.report.domainbed import collected

    if (
        given.format not in ("text", "latex")
        or given.contrast
        or given.write_domainbed
        or given.selection != "training"
    ):
        raise ConfigError("--domainbed prints what collect_results prints: with --format text or latex, and no more")
    return collected(given.domainbed, latex=given.format == "latex")

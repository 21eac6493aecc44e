"""`dspreg report`: from finished runs to tables."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from dspreg.cli.parser import Commands, add_command
from dspreg.errors import ConfigError
from dspreg.metrics import SELECT_BY
from dspreg.protocol.selection import RULES
from dspreg.reporting.report import HTML, REPORT_FORMATS, report, report_page

EXAMPLES = """examples:
  dspreg report runs                                      accuracy by domain, averages, the paper beside them
  dspreg report runs --selection leave-one-out            needs the runs that hold out two domains
  dspreg report runs --select-by worst-domain             the step whose worst source is best
  dspreg report runs --contrast DSPReg ERM                the paired difference, with a 95 % interval
  dspreg report runs --selection late                     second-half mean: less noise, of no single checkpoint
  dspreg report runs --format latex --out table.tex       also markdown, csv, json
  dspreg report runs --format html --out report.html      one page: tables that sort, curves, c by layer
  dspreg report evidence/pacs/store.tar.xz                an archive of a store, read as the store would be
  dspreg report --domainbed sweep                         DomainBed's folders, printed as collect_results does
  dspreg report runs --write-domainbed sweep              folders that collect_results reads

only finished runs count, every file verified but the weights. Runs under different conditions (protocol, threads,
torch, steps, images, …) get separate rows, whose labels say how they differ."""


def add(commands: Commands) -> None:
    parser = add_command(commands, "report", "make tables of finished runs", EXAMPLES)
    says = (
        "a folder of run folders, or the store of a sweep, whose tables count what was planned; or an archive of one, "
        "*.tar.xz"
    )
    parser.add_argument("path", metavar="PATH", nargs="?", help=says)
    parser.add_argument("--format", choices=REPORT_FORMATS, default="text", help="default: text")
    parser.add_argument("--out", metavar="FILE", help="write the report to this file instead of the terminal")
    says = (
        "how step and draw are selected (default: training); oracle selects on the target itself and is no fair "
        "result; late: mean accuracy over the evaluations in the second half of training; lower variance, but not the "
        "accuracy of any checkpoint; last: the last step"
    )
    parser.add_argument("--selection", choices=tuple(RULES), default="training", help=says)
    says = (
        "the metric of the sources' held-out images by which training, late and last select (default: that by "
        "which each "
        "run was selected in training); what is reported is the accuracy"
    )
    parser.add_argument("--select-by", choices=SELECT_BY, help=says)
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
    _check_out(given)
    if given.domainbed is not None:
        _output(given, _domainbed_report(given))
    elif given.write_domainbed is not None:
        from dspreg.domainbed.write_sweep import write_sweep
        from dspreg.runs.archive import open_store

        for name in ("out", "contrast", "selection", "select_by", "format"):
            if getattr(given, name) != given.usual(name):
                flag = name.replace("_", "-")
                raise ConfigError(f"--write-domainbed OUT writes folders; --{flag} is for a report")

        with open_store(given.path) as folder:
            count = write_sweep(folder, given.write_domainbed, data_dir=given.data_dir)
        print(f"{count} runs written to {given.write_domainbed}")
    else:
        how: dict[str, Any] = {
            "selection": given.selection,
            "contrasts": given.contrast,
            "select_by": given.select_by,
        }
        if given.format == HTML:
            _output(given, report_page(given.path, **how))
        else:
            _output(given, report(given.path, **how).render(given.format))
    return 0


def _check_out(given: Any) -> None:
    """Whether `--out` can be a file, before anything is read."""
    if given.out is None:
        return
    path = Path(given.out)
    if path.is_dir():
        raise ConfigError(f"--out {path} is a folder; wanted a file, as in --out {path / 'report.html'}")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"--out {path}: there is no folder {path.parent}; make it first")


def _output(given: Any, text: str) -> None:
    if given.out is None:
        sys.stdout.write(text)
        return
    from dspreg.io.atomic_files import is_standard_output, write_output

    write_output(given.out, text.encode())
    if not is_standard_output(given.out):
        print(f"written to {given.out}")


def _domainbed_report(given: Any) -> str:
    from dspreg.domainbed.collect_results import collect_results

    if (
        given.format not in ("text", "latex")
        or given.contrast
        or given.write_domainbed
        or given.selection != "training"
        or given.select_by
    ):
        raise ConfigError("--domainbed prints what collect_results prints: with --format text or latex, and no more")
    return collect_results(given.domainbed, latex=given.format == "latex")

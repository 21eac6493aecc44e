"""The command line: one file per command, each with `add`, its options, and `run`, which returns the exit code."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import TextIO

from dspreg import __version__
from dspreg.cli import (
    algorithms,
    cancel,
    data,
    doctor,
    estimate,
    evaluate,
    export,
    head,
    import_sweep,
    measure,
    new,
    paper,
    predict,
    report,
    retry,
    soup,
    status,
    sweep,
    train,
    watch,
    weights,
)
from dspreg.cli.completion import SHELLS, PrintCompletion
from dspreg.cli.output import failure_reason, protected_output
from dspreg.cli.parser import Parser
from dspreg.errors import DspregError, Notice, ResourceError, missing_resource
from dspreg.io.importing import importable_here
from dspreg.io.text import escape_terminal

COMMANDS = (
    train,
    estimate,
    sweep,
    status,
    watch,
    retry,
    cancel,
    report,
    import_sweep,
    paper,
    measure,
    evaluate,
    predict,
    export,
    soup,
    data,
    weights,
    head,
    algorithms,
    new,
    doctor,
)

EXAMPLES = """examples:
  dspreg train --dataset digits --target print --out runs/print
  dspreg train --dataset folder:photos --target site-4 --algorithm CORAL+DSPReg --out runs/site-4
  dspreg estimate folder:photos --out result
  dspreg sweep --dataset digits --algorithms ERM DSPReg --draws 1 --only training --store runs/digits
  dspreg status runs/digits
  dspreg watch runs/digits
  dspreg report runs/digits
  dspreg paper components --scale smoke --store runs/smoke
  dspreg measure --model runs/site-4 --figures pictures
  dspreg evaluate runs/site-4
  dspreg predict runs/site-4 new/*.jpg --csv
  dspreg soup runs/a runs/b runs/c --greedy --out runs/soup
  dspreg data get PACS
  dspreg data verify folder:photos
  dspreg weights get resnet50.tv_in1k
  dspreg head make --model ViT-B-16 --pretrained openai --dataset PACS --out pacs.safetensors
  dspreg algorithms DSPReg
  dspreg new my-study
  dspreg doctor

each command has its own: dspreg train --help
exit codes: 0 ok, 1 a bug, 2 usage, 3 data, 4 damaged or untrusted file, 5 a run failed,
            6 disk, memory or network, 75 stopped and resumable, 130 interrupted and resumable"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code.

    Where stdout is a pipe that its reader closed, as `head` does, the command goes on and its exit code stays: a
    training is for its folder. Output that a full disk lost is an error.
    """
    with protected_output() as (out, _):
        try:
            code = run_command(arguments)
        except SystemExit as stop:  # argparse's, after --help or a wrong call
            if stop.code or not (trouble := failure_reason(out)):
                raise
            code = 0
        else:
            trouble = failure_reason(out)
        if trouble and not code:
            code = _said(
                ResourceError(f"what was printed is lost: stdout can't be written ({trouble}); files are whole")
            )
        return code


def build_parser() -> Parser:
    """Of all commands."""
    parser = Parser(prog="dspreg", description="Domain generalisation at the level of parameters.", epilog=EXAMPLES)
    parser.add_argument("--version", action="version", version=f"dspreg {__version__}")
    parser.add_argument(
        "--print-completion",
        choices=SHELLS,
        action=PrintCompletion,
        help="print a script by which the Tab key completes commands, options and values",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    for command in COMMANDS:
        command.add(commands)
    return parser


def run_command(arguments: Sequence[str] | None) -> int:
    given = build_parser().parse_args(arguments)
    with warnings.catch_warnings(), importable_here():
        warnings.simplefilter("always", Notice)
        warnings.showwarning = _notice
        try:
            return int(given.run(given))
        except DspregError as error:
            return _said(error)
        except KeyboardInterrupt:
            print("dspreg: interrupted", file=sys.stderr)
            return 130
        except Exception as error:
            if missing := missing_resource(error):
                return _said(ResourceError(f"{missing}; a smaller batch_size or image_size needs less"))
            if isinstance(error, OSError):  # a file, a folder or the network; everything else has words of its own
                return _said(ResourceError(_refusal(error)))
            traceback.print_exc()
            print("dspreg: this is a bug; please report it with the lines above", file=sys.stderr)
            return 1


def _refusal(error: OSError) -> str:
    """What the system refused, and where."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return "the current folder was removed; change to one that is there, and try again"
    where = f"{error.filename}: " if error.filename is not None else ""
    return f"{where}{error.strerror or error}. Is the path right, and may this user read and write it?"


def _said(error: DspregError) -> int:
    print(f"dspreg: {_harmless(error)}", file=sys.stderr)
    return error.exit_code


def _harmless(message: object) -> str:
    """Escape what is printed: a file name may contain control sequences of a terminal."""
    return "\n".join(map(escape_terminal, str(message).split("\n")))


def _notice(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    if issubclass(category, Notice):
        print(f"notice: {_harmless(message)}", file=sys.stderr)
    else:
        print(warnings.formatwarning(message, category, filename, lineno, line), file=file or sys.stderr, end="")

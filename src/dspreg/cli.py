"""The command line."""

from __future__ import annotations

import sys
from argparse import RawDescriptionHelpFormatter
from collections.abc import Sequence
from functools import partial

from jsonargparse import ArgumentParser, DefaultHelpFormatter

from dspreg import __version__
from dspreg.errors import DspregError

EXAMPLES = """examples:
  dspreg algorithms                what there is, one line each
  dspreg algorithms DSPReg         one in full: formula, options, where search draws them from
  dspreg algorithms my_methods.LogitNorm
"""


class Formatter(DefaultHelpFormatter, RawDescriptionHelpFormatter):
    """Keeps the lines of the examples."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    described = partial(ArgumentParser, epilog=EXAMPLES, formatter_class=Formatter)
    parser = described(prog="dspreg", description="Domain generalisation at the level of parameters.")
    parser.add_argument("--version", action="version", version=f"dspreg {__version__}")
    commands = parser.add_subcommands(required=True, metavar="COMMAND")
    algorithms = described(description="List the algorithms, or show one in full.")
    algorithms.add_argument("name", nargs="?", help="one of the list, or an import path of your own")
    commands.add_subcommand("algorithms", algorithms, help="list the algorithms, or show one in full")
    given = parser.parse_args(arguments)
    try:
        from dspreg.algorithms.catalogue import listing, page

        print(page(given.algorithms.name) if given.algorithms.name else listing())
    except DspregError as error:
        print(f"dspreg: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""`dspreg algorithms`: the catalogue."""

from __future__ import annotations

from typing import Any

from dspreg.cli.parser import Commands, add_command

EXAMPLES = """examples:
  dspreg algorithms                all of them, one line each
  dspreg algorithms DSPReg         one in full: formula, options and their search distributions
  dspreg algorithms my_methods.LogitNorm"""


def add(commands: Commands) -> None:
    parser = add_command(commands, "algorithms", "list the algorithms, or show one in full", EXAMPLES)
    parser.add_argument("name", nargs="?", help="one of the list, or an import path of your own")
    parser.set_defaults(run=run)


def run(given: Any) -> int:
    from dspreg.algorithms.catalogue import listing, page

    print(page(given.name) if given.name else listing())
    return 0

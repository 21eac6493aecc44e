"""`dspreg --print-completion SHELL`: what makes the Tab key complete commands, options and their values, by shtab."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from typing import Any

SHELLS = ("bash", "zsh", "tcsh")
FOLDERS = {"DIR", "OUT", "RUN", "SWEEP"}  # what stands for them in the help
FILES = {"DATASET", "FILE", "FILE.png", "FILE.png|PAGE.html", "IMAGE", "NAME|RUN", "PATH", "STORE", "URL|DIR|ARCHIVE"}
WORD = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")  # of "auto|none|MIN:MAX" those that are meant as they stand


class PrintCompletion(argparse.Action):
    """Prints the script and ends, as --version does."""

    def __call__(self, parser: argparse.ArgumentParser, _: Any, shell: Any, __: Any = None) -> None:
        print(completion_script(parser, shell))
        parser.exit()


def completion_script(parser: argparse.ArgumentParser, shell: str) -> str:
    """For that shell to read. `parser` is changed: its options get the values that the shell offers."""
    import shtab

    names = known_names()
    for command, action in every_action(parser):
        if found := names.get(action.option_strings[-1] if action.option_strings else f"{command} {action.dest}"):
            action.choices = found
        elif action.choices is None and isinstance(action.metavar, str):
            if action.metavar in FOLDERS:
                action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
            elif action.metavar in FILES:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
            elif "|" in action.metavar:
                action.choices = list(filter(WORD.fullmatch, action.metavar.split("|"))) or None
    return str(shtab.complete(parser, shell))


def known_names() -> dict[str, list[str]]:
    """Of data sets and methods, by the option, or command and argument, that takes them."""
    from dspreg.algorithms.registry import algorithms
    from dspreg.data.registry import dataset_names

    methods, datasets = list(algorithms(experimental=True)), dataset_names()
    return {
        **dict.fromkeys(("--algorithm", "--algorithms", "--methods", "dspreg algorithms name"), methods),
        "--dataset": datasets,
        "dspreg data get name": [name for name in datasets if name != "digits"],  # which are always there
    }


def every_action(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.Action]]:
    """Of a parser and its sub-commands, with the command, without the choice of the sub-command."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from every_action(command)
        else:
            yield parser.prog, action

"""argparse, with examples that keep their lines and a hint for a misspelt option."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from dspreg.config.options import hint_of_method
from dspreg.io.text import did_you_mean, escape_terminal, nearest, shorten

Commands = Any  # argparse's action for sub-commands has no public name


class Parser(argparse.ArgumentParser):
    def __init__(self, **options: Any):
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(allow_abbrev=False, **options)

    def parse_args(self, *given: Any) -> Any:  # type: ignore[override]
        found, unknown = self.parse_known_args(*given)
        if unknown:
            where = self.command(getattr(found, "command", None))
            where.error(f"unrecognised: {shorten(' '.join(unknown))[1:-1]}{where.nearest(unknown[0])}")
        return found

    def command(self, name: str | None) -> Parser:
        """The parser of a sub-command."""
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction) and name in action.choices:
                return action.choices[name]  # type: ignore[no-any-return]
        return self

    def nearest(self, option: str) -> str:
        known = [text for action in self._actions for text in action.option_strings]
        given = option.partition("=")[0]
        near = nearest(given, known)
        method = hint_of_method(given) if "--algorithm" in known else ""
        return f". Did you mean {near}?" if near else f".{method}" if method else f". See {self.prog} --help"

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """A name that is none of the choices gets the nearest one."""
        if action.choices is not None and value not in action.choices:
            known = list(map(str, action.choices))
            hint = did_you_mean(str(value), known)
            raise argparse.ArgumentError(action, f"{shorten(value)} is none of {', '.join(known)}.{hint}")

    def error(self, message: str) -> NoReturn:
        self.print_usage(None)
        self.exit(2, f"{self.prog}: {escape_terminal(message)}\n")

    def print_usage(self, file: Any = None) -> None:
        import sys

        super().print_usage(file or sys.stderr)


def add_command(commands: Commands, name: str, says: str, examples: str) -> Parser:
    """A sub-command with its own help."""
    made: Parser = commands.add_parser(name, help=says, description=says[0].upper() + says[1:] + ".", epilog=examples)
    return made

"""argparse, with examples that keep their lines and a hint for a misspelt option."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from dspreg.io.text import nearest

Commands = Any  # argparse's action for sub-commands has no public name


class Parser(argparse.ArgumentParser):
    def __init__(self, **options: Any):
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(allow_abbrev=False, **options)

    def parse_args(self, *given: Any) -> Any:  # type: ignore[override]
        found, unknown = self.parse_known_args(*given)
        if unknown:
            where = self.command(getattr(found, "command", None))
            where.error(f"unrecognised: {' '.join(unknown)}{where.nearest(unknown[0])}")
        return found

    def command(self, name: str | None) -> Parser:
        """The parser of a sub-command."""
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction) and name in action.choices:
                return action.choices[name]  # type: ignore[no-any-return]
        return self

    def nearest(self, option: str) -> str:
        known = [text for action in self._actions for text in action.option_strings]
        near = nearest(option.partition("=")[0], known)
        return f". Did you mean {near}?" if near else ""

    def error(self, message: str) -> NoReturn:
        self.print_usage(None)
        self.exit(2, f"{self.prog}: {message}\n")

    def print_usage(self, file: Any = None) -> None:
        import sys

        super().print_usage(file or sys.stderr)


def add_command(commands: Commands, name: str, says: str, examples: str) -> Parser:
    """A sub-command with its own help."""
    made: Parser = commands.add_parser(name, help=says, description=says[0].upper() + says[1:] + ".", epilog=examples)
    return made

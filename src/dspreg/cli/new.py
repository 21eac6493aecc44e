"""`dspreg new`: a project of one's own to start from."""

from __future__ import annotations

from typing import Any

from dspreg.cli.parser import Commands, add_command
from dspreg.io.text import escape_terminal

EXAMPLES = """examples:
  dspreg new my-study              a method with its test, a data set, a sweep and a README in the folder my-study
  cd my-study && python -m pytest -q"""


def add(commands: Commands) -> None:
    parser = add_command(commands, "new", "start a project: a method with its test, a data set, a sweep", EXAMPLES)
    parser.add_argument("project", help="folder to create; it must be new or empty")
    parser.set_defaults(run=run)


def run(given: Any) -> int:
    from dspreg.starter import create_project

    made = create_project(given.project)
    for path in made:
        print(escape_terminal(str(path.relative_to(made[0].parent.parent))))
    print(f"read {escape_terminal(str(made[0]))} first")
    return 0

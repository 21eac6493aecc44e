"""Write the pages of the reference that are read off the code: docs/api.md and docs/reference/.

python docs/make_reference.py          # a test fails if a page is not what this writes

The docstrings themselves are put into docs/reference/{train,results,…}.md by mkdocstrings, when the site is built.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import dspreg
from dspreg.algorithms.base import options_of
from dspreg.algorithms.catalogue import costs, summary
from dspreg.algorithms.compatibility import arrows_of
from dspreg.algorithms.registry import algorithms
from dspreg.cli import build_parser

DOCS = Path(__file__).resolve().parent
WRITTEN = "*Written by `python docs/make_reference.py`.*"
# The comments of `dspreg/__init__.py`, the page of each group, and what is said at its head.
PAGES = {
    "train, compare, use": (
        "train",
        "Fields of `TrainConfig` and `Execution` are the options of [`dspreg train`](commands.md#dspreg-train), which "
        "says what each is and its default: `--batch-size` is `batch_size`, and `--target` is `targets`.",
    ),
    "read results": ("results", "No torch is loaded. [Reports](../use/reporting.md) has a guide."),
    "look at a network": ("measure", "[Measure sensitivity](../use/measuring.md) has a guide."),
    "add it to a loop of your own": ("loop", "[Your own loop](../use/own-loop.md) has a guide."),
    "write a method or a data set": (
        "extend",
        "Recipes: [a method](../extend/method.md), [a data set](../extend/dataset.md).",
    ),
    "what can go wrong": ("errors", "The class decides the exit code of a command."),
}

ARGPARSE = ("options", "optional arguments", "positional arguments")  # groups that argparse makes by itself


def groups() -> dict[str, list[str]]:
    """The names under the comments of `dspreg/__init__.py`."""
    source = Path(dspreg.__file__).read_text(encoding="utf-8")
    found: dict[str, list[str]] = {}
    for line in source[source.index("_HOMES = {") : source.index("__all__")].splitlines():
        if heading := re.fullmatch(r"    # (.*)", line):
            names = found[heading[1]] = []
        elif entry := re.match(r'    "(\w+)":', line):
            names.append(entry[1])
    return found


def pages() -> dict[str, str]:
    """Path within docs/ → text."""
    made = {"api.md": all_names(), "reference/commands.md": commands(), "reference/methods.md": methods()}
    for group, names in groups().items():
        made[f"reference/{PAGES[group][0]}.md"] = docstrings(group, names)
    return made


def all_names() -> str:
    lines = [
        "# Python API",
        "",
        "Everything that `import dspreg` offers, a line each; the pages behind the names have signatures, arguments",
        'and examples, as `python -c "import dspreg; help(dspreg.train)"` prints them. Names are loaded when they are',
        "first used; reading results needs no torch.",
        "",
        "Modules you may import from as well: `dspreg.algorithms` (the [catalogue](reference/methods.md)),",
        "`dspreg.data`, `dspreg.networks`, `dspreg.distributions`, `dspreg.vectors`, `dspreg.testing`,",
        "`dspreg.integrations` ([other frameworks](use/own-loop.md)).",
        f"Everything else is internal and may change. {WRITTEN}",
    ]
    for group, names in groups().items():
        page = PAGES[group][0]
        lines += ["", f"## {sentence(group)}", "", "| name | |", "|---|---|"]
        lines += [f"| [`{name}`](reference/{page}.md#dspreg.{name}) | {cell(first_sentence(name))} |" for name in names]
    return "\n".join(lines) + "\n"


def docstrings(group: str, names: list[str]) -> str:
    head = f"# {sentence(group)}\n\n{PAGES[group][1]} [All names](../api.md). {WRITTEN}\n"
    return "\n".join([head, *(f"::: dspreg.{name}\n" for name in names)])


def first_sentence(name: str) -> str:
    text = inspect.getdoc(getattr(dspreg, name)) or ""
    return " ".join(text.split("\n\n")[0].split()).rstrip(":")


def sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def cell(text: str) -> str:
    """Text that a cell of a table may hold."""
    return escaped(text).replace("|", "\\|")


def escaped(text: str) -> str:
    """Docstrings are Markdown, but for `<`, which would begin a tag."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(each if each.startswith("`") else each.replace("<", "&lt;") for each in parts)


def methods() -> str:
    measured = costs()
    known = algorithms()
    lines = [
        "# Catalogue of methods",
        "",
        f"{len(known)} methods, as `dspreg algorithms` lists them; `dspreg algorithms SAM` describes one in full.",
        '`--algorithm` takes any of them, or a stack such as `"CORAL(weight=0.5)+DSPReg"`.',
        "How each was checked: [methods](../understand/methods.md).",
        f"Cost is a step of {measured['case']}, in ERM steps (`{measured['command']}`). {WRITTEN}",
        "",
        "| method | cost | changes | what it does |",
        "|---|---|---|---|",
    ]
    for name, cls in known.items():
        cost = measured["of_erm"].get(name)
        factor = f"{cost['median']:.2f}×" if cost else ""
        lines.append(f"| [`{name}`](#{name.lower()}) | {factor} | {', '.join(arrows_of(cls))} | {cell(summary(cls))} |")
    for name, cls in known.items():
        lines += ["", f"## {name}", "", *literal_formulas(inspect.getdoc(cls) or "")]
        options = options_of(cls)
        if options:
            lines += ["", "| option | default | search draws from |", "|---|---|---|"]
        for option, parameter in options.items():
            drawn = cell(str(cls.space[option])) if option in cls.space else ""
            lines.append(f"| `{option}` | `{parameter.default!r}` | {drawn} |")
    return "\n".join(lines) + "\n"


def literal_formulas(text: str) -> Iterator[str]:
    """A docstring as Markdown: `Args:` as a list, and names of files as they are."""
    lines = text.splitlines()
    inside = ""
    for at, line in enumerate(lines):
        if re.fullmatch(r"(Args|Attributes|Raises|Returns):", line):
            inside = line
            yield f"*{line[:-1]}*\n"
        elif inside and (entry := re.match(r"    (\w[\w, ]*): (.*)", line)):
            yield f"- `{entry[1]}`: {escaped(entry[2])}"
        elif inside and line.startswith("        "):
            yield f"  {escaped(line.strip())}"
        elif line and not line.startswith("    "):
            inside = ""
            yield escaped(line)
        else:
            yield line if at else escaped(line)


def commands() -> str:
    parser = build_parser()
    lines = [
        "# Commands",
        "",
        f"Every command and its options, as `--help` prints them. {WRITTEN}",
    ]
    for name, command in leaves(parser):
        lines += ["", f"## dspreg {name}", "", escaped(command.description or "")]
        if command.epilog:
            examples = re.sub(r"^  ", "", command.epilog.removeprefix("examples:\n"), flags=re.M)
            lines += ["", "```text", examples.rstrip(), "```"]
        for group in command._action_groups:
            shown = [a for a in group._group_actions if a.help != argparse.SUPPRESS and a.dest != "help"]
            if shown:
                lines += ["", *([] if group.title in ARGPARSE else [f"*{sentence(group.title or '')}*", ""])]
                lines += [f"- `{flags(each)}`: {escaped(says(command, each))}" for each in shown]
    return "\n".join(lines) + "\n"


def leaves(parser: argparse.ArgumentParser, before: str = "") -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Commands and sub-commands that do something themselves."""
    inner = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
    if not inner:
        yield before.strip(), parser
    for each in inner:
        for name, command in each.choices.items():
            yield from leaves(command, f"{before} {name}")


def flags(action: argparse.Action) -> str:
    metavar = action.metavar or ("" if action.nargs == 0 else "|".join(map(str, action.choices or [action.dest])))
    metavar = " ".join(metavar) if isinstance(metavar, tuple) else metavar
    return " ".join(filter(None, [", ".join(action.option_strings), metavar]))


def says(command: argparse.ArgumentParser, action: argparse.Action) -> str:
    return (action.help or "") % {**vars(action), "prog": command.prog}


def main() -> int:
    stale = []
    for path, text in pages().items():
        page = DOCS / path
        if "--check" in sys.argv:
            if not page.exists() or page.read_text(encoding="utf-8") != text:
                stale.append(path)
            continue
        page.parent.mkdir(exist_ok=True)
        page.write_text(text, encoding="utf-8")
        print(f"{page}: {len(text.splitlines())} lines")
    if stale:
        print(f"not up to date: {', '.join(stale)}; run python docs/make_reference.py", file=sys.stderr)
    return bool(stale)


if __name__ == "__main__":
    sys.exit(main())

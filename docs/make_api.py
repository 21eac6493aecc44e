"""Write docs/api.md from the docstrings of the public names.

python docs/make_api.py          # a test fails if the page is not what this writes
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from enum import Enum
from pathlib import Path

import dspreg
from dspreg import Execution, TrainConfig
from dspreg.config.options import declared_options

PAGE = Path(__file__).with_name("api.md")
HEAD = """# Python API

Everything that `import dspreg` offers. Names are loaded when they are first used; reading results needs no torch.
Written by `python docs/make_api.py` from the docstrings.

Options of the command line are arguments or fields here: `--dataset` is `TrainConfig.dataset`, `--device` is
`Execution.device`. Modules you may import from as well: `dspreg.algorithms` (the catalogue), `dspreg.data`,
`dspreg.networks`, `dspreg.distributions`, `dspreg.vectors`, `dspreg.testing`, `dspreg.integrations` (other
frameworks). Everything else is internal and may change.
"""


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


def signature(name: str, found: object) -> str:
    """As it is called; one argument a line where it would be long."""
    start = f"class dspreg.{name}" if inspect.isclass(found) else f"dspreg.{name}"
    if inspect.isclass(found) and issubclass(found, Exception | Enum):
        return start
    shown = inspect.signature(found)  # type: ignore[arg-type]
    parts, star = [], False
    for p in shown.parameters.values():
        if p.kind is p.KEYWORD_ONLY and not star:
            parts.append("*")
            star = True
        star |= p.kind is p.VAR_POSITIONAL
        text = str(p.replace(annotation=p.empty, default=p.empty))
        if p.annotation is not p.empty:
            text += f": {annotation(p.annotation)}"
        if p.default is not p.empty:
            text += f" = {default(p.default)}"
        parts.append(text)
    end = ""
    if not inspect.isclass(found) and shown.return_annotation not in (shown.empty, None, "None"):
        end = f" -> {annotation(shown.return_annotation)}"
    line = f"{start}({', '.join(parts)}){end}"
    return line if len(line) <= 120 else f"{start}(\n" + "".join(f"    {each},\n" for each in parts) + f"){end}"


def annotation(found: object) -> str:
    return found if isinstance(found, str) else getattr(found, "__name__", str(found))


def default(value: object) -> str:
    text = repr(value)
    return "…" if callable(value) or "factory" in text or " at 0x" in text or len(text) > 60 else text


def entry(name: str) -> str:
    found = getattr(dspreg, name)
    text = inspect.cleandoc(found.__doc__ or "")
    text = re.sub(r"^(Args|Returns|Raises|Attributes):$", r"*\1*", text, flags=re.M)
    lines: list[str] = []
    for line in text.splitlines():
        item = re.match(r"    (\w[\w, ]*|`[^`]+`): (.*)", line)
        if item:
            line = f"- `{item[1].strip('`')}`: {item[2]}"
        elif re.match(r"        \S", line) and lines and re.match(r"- `|  \S", lines[-1]):
            line = "  " + line.strip()
        lines.append(line)
    if dataclasses.is_dataclass(found) and issubclass(found, TrainConfig | Execution):
        lines += ["", "*Options*", *(f"- `{o.name}`: {o.help}" for o in declared_options(found).values())]
    if inspect.isclass(found) and not issubclass(found, Exception | Enum):
        lines += methods(found)
    return f"### {name}\n\n```\n{signature(name, found)}\n```\n\n" + "\n".join(lines).strip() + "\n"


def methods(found: type) -> list[str]:
    """The documented methods and properties of a class, with the first paragraph of each docstring."""
    made = []
    for name, value in vars(found).items():
        inner = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        said = inspect.getdoc(inner) if isinstance(inner, property) or inspect.isfunction(inner) else None
        if name.startswith("_") or not said:
            continue
        if not isinstance(inner, property):
            name += f"({', '.join(p for p in inspect.signature(inner).parameters if p not in ('self', 'cls'))})"
        made.append(f"- `{name}`: {' '.join(said.split(chr(10) * 2)[0].split())}")
    return ["", "*Methods and properties*", *made] if made else []


def page() -> str:
    parts = [HEAD]
    for heading, names in groups().items():
        parts += [f"## {heading[0].upper()}{heading[1:]}\n", *map(entry, names)]
    return "\n".join(parts)


if __name__ == "__main__":
    text = page()
    if "--check" in sys.argv:
        sys.exit(0 if PAGE.read_text(encoding="utf-8") == text else f"{PAGE} is not up to date: run {sys.argv[0]}")
    PAGE.write_text(text, encoding="utf-8")
    print(f"{PAGE}: {text.count('### ')} names")

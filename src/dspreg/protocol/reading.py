"""Settings from text: `--set key=value`, YAML files, and back to YAML."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from dspreg.errors import ConfigError
from dspreg.protocol import settings
from dspreg.protocol.settings import FIELDS, Execution, Settings, check, wanted

PLAIN = {"null", "bool", "int", "float", "str", "timestamp", "seq", "map"}  # what YAML makes of values without a tag


def made(values: Mapping[str, Any]) -> tuple[dict[str, Any], Execution]:
    """What is trained, as given, and how it is run, from one flat mapping."""
    if not values.get("dataset"):
        raise ConfigError("no data set is given; add --dataset, e.g. --dataset digits")
    check(values)
    how = {each.name for each in dataclasses.fields(Execution)}
    execution = Execution(**{name: value for name, value in values.items() if name in how})
    return {name: value for name, value in values.items() if name not in how}, execution


def assignment(text: str) -> tuple[str, Any]:
    """`"lr=1e-4"` → ("lr", 0.0001)."""
    key, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"--set {text!r}; wanted key=value, such as lr=1e-4")
    return known(key.strip(), "--set"), valued(key.strip(), value.strip(), "--set")


def read(path: str | Path) -> dict[str, Any]:
    """A YAML file of options, one `key: value` per line."""
    return options(composed(path), str(path))


def composed(path: str | Path) -> yaml.Node | None:
    """A YAML file as its nodes, which know their lines; None if nothing is in it."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the configuration {path} can't be read: {error}") from None
    try:
        return yaml.compose(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"{path} is not YAML: {' '.join(str(error).split())}") from None


def entries(
    node: yaml.Node | None, path: str, named: Callable[[str, str], str]
) -> Iterator[tuple[str, yaml.Node, str]]:
    """Key, value and place of every line of a mapping; `named` refuses unknown keys, and no key may come twice."""
    if node is None or node.tag.endswith(":null"):
        return
    if not isinstance(node, yaml.MappingNode):
        line = node.start_mark.line + 1
        raise ConfigError(f"{path}, line {line}: wanted 'key: value' lines, such as 'lr: 1e-4'")
    seen = set()
    for key_node, value in node.value:
        place = f"{path}, line {key_node.start_mark.line + 1}"
        key = named(str(key_node.value), place)
        if key in seen:
            raise ConfigError(f"{place}: {key!r} is given twice")
        seen.add(key)
        yield key, value, place


def options(node: yaml.Node | None, path: str) -> dict[str, Any]:
    """The options of a mapping, each of its own type."""
    return {key: valued(key, plain(value, place), place) for key, value, place in entries(node, path, known)}


def written(trained: Settings, execution: Execution) -> str:
    """As YAML that `read` reads, options of one kind together."""
    parts = []
    for title, each in (("what is trained", trained), ("how it is run", execution)):
        values = {n: list(v) if isinstance(v, tuple) else v for n, v in dataclasses.asdict(each).items()}
        lines = yaml.safe_dump(values, sort_keys=False, allow_unicode=True, default_flow_style=False)
        parts.append(f"# {title}\n{lines}")
    return "\n".join(parts)


def known(key: str, place: str, also: Iterable[str] = ()) -> str:
    """The name of an option as text may have it, or an error with the nearest one."""
    key = key.replace("-", "_")
    return "targets" if key == "target" else settings.known(key, f"{place}: ", also)


def valued(key: str, given: Any, place: str) -> Any:
    """A value of the option's type from text, or from what YAML made of it."""
    each = FIELDS[key := known(key, place)]
    value = _typed(each, given, place)
    try:
        check({key: value})
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}") from None
    return value


def _typed(each: dataclasses.Field[Any], given: Any, place: str) -> Any:
    kind = str(each.type)
    if given in (None, "null", "") and "None" in kind:
        return None
    match kind.removesuffix(" | None"):
        case "tuple[str, ...]" if isinstance(given, str | list):
            return targets(given.split(",") if isinstance(given, str) else given)
        case "str" if isinstance(given, str | int | float) and not isinstance(given, bool):
            return str(given)
        case "bool" if str(given).lower() in ("true", "yes", "1", "false", "no", "0"):
            return str(given).lower() in ("true", "yes", "1")
        case "int" if _is_number(given) and float(given) == int(float(given)):
            return int(given) if str(given).isdecimal() else int(float(given))  # 1e3 too; large ones to the last digit
        case "float" if _is_number(given):
            return float(given)
    raise ConfigError(f"{place}: {each.name}={given!r}; wanted {wanted(each)}")


def targets(given: Iterable[Any]) -> tuple[str, ...]:
    """Names of domains; `none` alone holds nothing out."""
    names = tuple(str(each).strip() for each in given)
    return () if names == ("none",) else names


def plain(node: yaml.Node, place: str) -> Any:
    """A value without tags, or a list of them, as text."""
    kind = node.tag.removeprefix("tag:yaml.org,2002:")
    if kind not in PLAIN:
        raise ConfigError(f"{place}: the tag {node.tag!r} is not understood; write the value alone")
    if isinstance(node, yaml.ScalarNode):
        return None if node.tag.endswith(":null") else node.value
    if isinstance(node, yaml.SequenceNode) and all(isinstance(n, yaml.ScalarNode) for n in node.value):
        return [plain(n, place) for n in node.value]
    raise ConfigError(f"{place}: wanted a plain value or a list of them")


def _is_number(given: Any) -> bool:
    try:
        return abs(float(given)) < float("inf")
    except (TypeError, ValueError):
        return False

"""Options from text: flags, `--set key=value` and YAML files; and back to YAML."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from dspreg.config.options import MOST, Option, format_limit, reason_against, require_option
from dspreg.config.train_config import EXECUTION_OPTIONS, OPTIONS, Execution, TrainConfig
from dspreg.errors import ConfigError, IntegrityError
from dspreg.io.atomic_files import read_regular_file
from dspreg.io.text import shorten

PLAIN = {"null", "bool", "int", "float", "str", "timestamp", "seq", "map"}  # what YAML makes of values without a tag
LARGEST_FILE = 100_000  # bytes of YAML: a thousand specs, read in a second
MAX_PATH = 1_000  # characters of a path that a message shows; a folder in the middle of it would be missed
TRUE, FALSE = ("true", "yes", "1"), ("false", "no", "0")


# One value.


def parse_option(key: str, given: Any, place: str) -> Any:
    """The value of an option from text, or from a list of texts.

    Args:
        key: Its name, as text may have it; see `option_name`.
        given: Text; None where YAML has no value.
        place: Where it stands, for the message.
    """
    each = OPTIONS[option_name(key, place)]
    try:
        value = parse_typed(each, given)
        each.check(value)
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}") from None
    return value


def parse_typed(each: Option, given: Any) -> Any:
    """A value of the option's type; whether it is in range is for `Option.check` to say."""
    if given in (None, "null", "") and each.nullable:
        return None
    if each.type is tuple and isinstance(given, str | list):
        return parse_targets(given.split(",") if isinstance(given, str) else given)
    if each.recorded and str(given).lower() in TRUE + FALSE:  # the words of when it was yes or no
        return each.from_record(str(given).lower() in TRUE)
    if each.type is str and isinstance(given, str | int | float) and not isinstance(given, bool):
        return each.aliases.get(str(given), str(given))
    if each.type is bool and str(given).lower() in TRUE + FALSE:
        return str(given).lower() in TRUE
    if each.type is int and (number := _whole_number(given)) is not None:
        return number
    if each.type is float and _is_number(given):
        return float(given)
    raise ConfigError(f"{each.name}={shorten(given)}; wanted {each.range}")


def parse_integer(given: Any, at_least: int, of: str | None = None) -> int:
    """A whole number from text: `"300"`, `"1e3"`.

    Args:
        given: Text.
        at_least: The smallest.
        of: What is counted, a name of `MOST`, which has the largest.
    """
    number, most = _whole_number(given), MOST[of][0] if of else math.inf
    if number is None or not at_least <= number <= most:
        end = f" and at most {format_limit(most)}" if of else ""
        why = reason_against(of, number) if of and number else ""
        raise ConfigError(f"{shorten(given)}; wanted a whole number at least {at_least}{end}{why}")
    return number


def parse_targets(given: Iterable[Any]) -> tuple[str, ...]:
    """Names of domains; `none` alone holds nothing out."""
    names = tuple(str(each).strip() for each in given)
    return () if names == ("none",) else names


def option_name(key: str, place: str, also: Iterable[str] = ()) -> str:
    """The name of an option as text may have it (`batch-size`, `target`), or an error with the nearest one."""
    key = key.replace("-", "_")
    return "targets" if key == "target" else require_option(key, [*OPTIONS, *also], f"{place}: ")


# Several values.


def parse_assignment(text: str) -> tuple[str, Any]:
    """`"lr=1e-4"` → ("lr", 0.0001)."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {shorten(text)}; wanted key=value, such as lr=1e-4")
    return option_name(key.strip(), "--set"), parse_option(key.strip(), value.strip(), "--set")


def split_config(values: Mapping[str, Any]) -> tuple[TrainConfig, Execution]:
    """What is trained and how it is run, from one flat mapping."""
    execution = {name: value for name, value in values.items() if name in EXECUTION_OPTIONS}
    return TrainConfig.of({n: v for n, v in values.items() if n not in execution}), Execution(**execution)


def format_config(config: TrainConfig, execution: Execution) -> str:
    """As YAML that `read_options` reads, options of one kind together."""
    parts = []
    for title, each in (("what is trained", config), ("how it is run", execution)):
        values = {n: list(v) if isinstance(v, tuple) else v for n, v in dataclasses.asdict(each).items()}
        lines = yaml.safe_dump(values, sort_keys=False, allow_unicode=True, default_flow_style=False)
        parts.append(f"# {title}\n{lines}")
    return "\n".join(parts)


# YAML files.


def read_options(path: str | Path) -> dict[str, Any]:
    """The options in a YAML file, one `key: value` per line."""
    return parse_mapping(compose_yaml(path), str(path))


def parse_mapping(node: yaml.Node | None, path: str) -> dict[str, Any]:
    """The options of a YAML mapping, each of its own type."""
    return {
        key: parse_option(key, plain_value(value, place), place)
        for key, value, place in iterate_entries(node, path, option_name)
    }


def compose_yaml(path: str | Path) -> yaml.Node | None:
    """A YAML file as its nodes, which know their lines; None if the file is empty."""
    try:
        text = read_regular_file(path, limit=LARGEST_FILE, follow=True).decode("utf-8")
    except (OSError, ValueError, IntegrityError) as error:
        raise ConfigError(
            f"the configuration {str(path)[:MAX_PATH]} can't be read: {getattr(error, 'strerror', None) or error}"
        ) from None
    try:
        return yaml.compose(text, Loader=yaml.SafeLoader)
    except RecursionError:
        raise ConfigError(f"{path} is nested too deeply; wanted 'key: value' lines") from None
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{path} is not YAML: {' '.join(str(error).split())[:300]}") from None


def iterate_entries(
    node: yaml.Node | None, path: str, name_of: Callable[[str, str], str]
) -> Iterator[tuple[str, yaml.Node, str]]:
    """Key, value and place of every line of a mapping; `name_of` refuses unknown keys, and no key may come twice."""
    if node is None or node.tag.endswith(":null"):
        return
    if not isinstance(node, yaml.MappingNode):
        line = node.start_mark.line + 1
        raise ConfigError(f"{path}, line {line}: wanted 'key: value' lines, such as 'lr: 1e-4'")
    seen = set()
    for key_node, value in node.value:
        place = f"{path}, line {key_node.start_mark.line + 1}"
        if not isinstance(key_node, yaml.ScalarNode):  # of nodes within nodes the text may be endless
            raise ConfigError(f"{place}: a key is a name; wanted 'key: value' lines, such as 'lr: 1e-4'")
        key = name_of(key_node.value, place)
        if key in seen:
            raise ConfigError(f"{place}: {key!r} is given twice")
        seen.add(key)
        yield key, value, place


def plain_value(node: yaml.Node, place: str) -> Any:
    """A value without tags, or a list of them, as text."""
    kind = node.tag.removeprefix("tag:yaml.org,2002:")
    if kind not in PLAIN:
        raise ConfigError(f"{place}: the tag {shorten(node.tag)} is not understood; write the value alone")
    if isinstance(node, yaml.ScalarNode):
        return None if node.tag.endswith(":null") else node.value
    if isinstance(node, yaml.SequenceNode) and all(isinstance(n, yaml.ScalarNode) for n in node.value):
        return [plain_value(n, place) for n in node.value]
    raise ConfigError(f"{place}: wanted a plain value or a list of them")


def _whole_number(given: Any) -> int | None:
    if not _is_number(given) or float(given) != int(float(given)):
        return None
    return int(given) if str(given).isdecimal() else int(float(given))  # 1e3 too; large ones to the last digit


def _is_number(given: Any) -> bool:
    try:
        return abs(float(given)) < float("inf")
    except (TypeError, ValueError, OverflowError):  # too large for a float
        return False

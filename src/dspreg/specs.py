"""The one grammar of specs: stacks of methods `"A(x=1)+B"` and engines `"lazy(30, lookahead(radius=2*weight))"`.

Text becomes names and values, and back. Which names exist and what their options mean is for those who use it to say:
`dspreg.algorithms.registry` and `dspreg.penalty.engine_spec`. Nothing is evaluated, and no torch is needed.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from dspreg.errors import ConfigError
from dspreg.io.text import shorten


@dataclass(frozen=True)
class Term:
    """`name(argument, option=value)`, or `name` alone.

    Attributes:
        name: Text before the parentheses; see `has_name`.
        arguments: Values given by position.
        options: Values given by name, in the order they are written.
        text: The whole term.
    """

    name: str
    arguments: tuple[Any, ...]
    options: Mapping[str, Any]
    text: str

    @property
    def has_name(self) -> bool:
        """Whether `name` is a Python name, perhaps dotted: `"A-B"` or `"3"` is none."""
        return all(part.isidentifier() for part in self.name.split("."))


@dataclass(frozen=True)
class Product:
    """`2*weight`."""

    factors: tuple[Any, ...]
    text: str


@dataclass(frozen=True)
class Unreadable:
    """Python that is no value of a spec, such as `1/0`."""

    text: str


# Method → option → the default that its specs in files leave out. It has changed since: a file writes the new one out,
# so that files mean what they meant when they were written; what is typed has the defaults of today.
DEFAULT_ENGINE = "finite_difference"
FILE_DEFAULTS: Mapping[str, Mapping[str, Any]] = {"DSPReg": {"engine": "exact"}}

# Method → options that say where something lies. They are no part of a run's identity, and no file has them.
LOCATIONS: Mapping[str, tuple[str, ...]] = {"DomainBed": ("path",)}
# `domainbed:PATH:Class`, as it is typed; a path with a plus or a parenthesis is written DomainBed(path='…', name='…').
OF_DOMAINBED = re.compile(r"domainbed:([^+()]+?):([A-Za-z_]\w*)(\((?!\s*\))|\(\s*\))?")

LONGEST, LONGEST_NAME = 4_096, 200  # characters of a spec, and of a name in it
LAYERS = 50  # of a stack; every layer calls the one inside
LARGEST = 2**63  # whole number
NOT_LITERAL = (Term, Product, Unreadable)  # values that are no numbers, strings, or lists of those


def parse_term(text: str) -> Term:
    """One term.

    Raises:
        SyntaxError: It is not Python.
        ValueError: An option is given twice or without a name, or something is too long or too large.
    """
    with _as_value_error():
        return _term(_parse(text))


def parse_stack(text: str) -> tuple[Term, ...]:
    """The terms of `"A(x=1)+B"` from left to right: the innermost method first.

    Raises:
        ConfigError: It is not of that form.
    """
    try:
        with _as_value_error():
            layers = _split_sum(_parse(text))
            if len(layers) > LAYERS:
                raise ValueError(f"it has {len(layers):,} layers; wanted at most {LAYERS}")
            return tuple(map(_term, layers))
    except (SyntaxError, ValueError) as error:
        raise _malformed(text, error) from None


def format_term(name: str, options: Mapping[str, Any]) -> str:
    """`"A(x=1)"`, or `"A"` without options."""
    given = ", ".join(f"{option}={value!r}" for option, value in options.items())
    return f"{name}({given})" if given else name


@lru_cache(maxsize=1_000)  # a plan of ten thousand runs has few specs
def shortest_spec(text: str) -> str:
    """The one text of a spec, of which ids are made: options sorted by name, and an ERM below other methods left out.

    Options that are given stay, though they have their defaults: what is given is neither drawn at random nor scaled to
    a short run. Whether the names exist is for `dspreg.parse` to say.

        >>> shortest_spec("ERM + CORAL( weight=5e-1 )+DSPReg()")
        'CORAL(weight=0.5)+DSPReg'
    """
    layers = []
    for term in parse_stack(text):
        if not term.has_name:
            raise _malformed(text, f"{term.name!r} is not a name")
        if term.arguments:
            raise _malformed(text, f"options of {term.name} are given by name")
        for option, value in term.options.items():
            if isinstance(value, NOT_LITERAL):
                raise _malformed(text, f"{option}={value.text} is not a number, a quoted string or a list of those")
        layers.append(format_term(term.name, dict(sorted(term.options.items()))))
    return "+".join(layers[1:] if layers[0] == "ERM" and len(layers) > 1 else layers)


def _malformed(text: str, reason: object) -> ConfigError:
    why = getattr(reason, "msg", reason)
    return ConfigError(f"the spec {shorten(text)} is not of the form 'A(option=value)+B': {why}")


@contextmanager
def _as_value_error() -> Iterator[None]:
    """Python has errors of its own for text that it gives up on."""
    try:
        yield
    except (RecursionError, MemoryError):
        raise ValueError("it is nested too deeply") from None
    except UnicodeEncodeError:
        raise ValueError("it is not UTF-8") from None


def _parse(text: str) -> ast.expr:
    """As Python reads it, with nothing in it that no option means."""
    if len(text) > LONGEST:
        raise ValueError(f"it has {len(text):,} characters; wanted at most {LONGEST:,}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Python, such as on "\\d"
        tree = ast.parse(_expand(text).strip(), mode="eval").body
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant):
            _check_constant(node.value)
    return tree


def _expand(text: str) -> str:
    """`domainbed:PATH:Class(…)` as the term that it stands for."""

    def term(found: re.Match[str]) -> str:
        path, name, more = found.groups()
        end = ")" if more is None or more.endswith(")") else ", "
        return f"DomainBed(name={name!r}, path={path.strip()!r}{end}"

    return OF_DOMAINBED.sub(term, text)


def without_locations(text: str) -> str:
    """A spec in its shortest form, without options that say where something lies.

    >>> without_locations("DomainBed(name='SD', path='../DomainBed')+SWA")
    "DomainBed(name='SD')+SWA"
    """
    if not any(f"{name}(" in text for name in LOCATIONS):  # nearly always, and asked for every run of a plan
        return text
    layers = []
    for term in parse_stack(text):
        kept = {name: value for name, value in term.options.items() if name not in LOCATIONS.get(term.name, ())}
        layers.append(format_term(term.name, kept))
    return "+".join(layers)


def _split_sum(node: ast.expr) -> list[ast.expr]:
    found, left = [], [node]
    while left:
        each = left.pop()
        if isinstance(each, ast.BinOp) and isinstance(each.op, ast.Add):
            left += [each.left, each.right]
        else:
            found.append(each)
    return found[::-1]


def _term(node: ast.expr) -> Term:
    text = ast.unparse(node)
    name = ast.unparse(node.func) if isinstance(node, ast.Call) else text
    if len(name) > LONGEST_NAME:
        raise ValueError(f"the name {shorten(name)} is too long; wanted at most {LONGEST_NAME} characters")
    if not isinstance(node, ast.Call):
        return Term(name, (), {}, text)
    options: dict[str, Any] = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise ValueError(f"{name}: options are written one by one, not as **{ast.unparse(keyword.value)}")
        if keyword.arg in options:
            raise ValueError(f"{name}: the option {keyword.arg!r} is given twice")
        options[keyword.arg] = _value(keyword.value)
    return Term(name, tuple(map(_value, node.args)), options, text)


def _value(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError):
        pass
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return Product((_value(node.left), _value(node.right)), ast.unparse(node))
    if isinstance(node, ast.Call | ast.Name | ast.Attribute):
        return _term(node)
    return Unreadable(ast.unparse(node))


def _check_constant(value: Any) -> None:
    """Refuse what no option means, and what no file of ours can hold."""
    if isinstance(value, int) and value >= LARGEST:
        raise ValueError(f"{shorten(value)} is too large a whole number")
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError(f"{shorten(value)} is not UTF-8") from None

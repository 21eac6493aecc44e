"""Spec strings: `"CORAL(weight=0.5)+DSPReg"` ⇄ `DSPReg(CORAL(weight=0.5))`.

`"A+B"` is `B(A())`: what stands later is around what stands before. There is no registry. A bare name is looked up in
`dspreg.algorithms`; a dotted one is an import path, e.g. `"my_methods.LogitNorm(weight=0.05)+DSPReg"`.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import inspect
from collections.abc import Iterable
from typing import Any

from dspreg.algorithms.base import ERM, Algorithm
from dspreg.errors import ConfigError


def parse(text: str) -> Algorithm:
    """The stack a spec stands for, before `setup`."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError) as error:
        raise ConfigError(f"the spec {text!r} is not of the form 'A(option=value)+B': {error}") from None
    stack: Algorithm | None = None
    for layer in _layers(tree):
        stack = _made(layer, stack)
    assert stack is not None
    return stack


def describe(algorithm: Algorithm) -> str:
    """The shortest spec of a stack: options that differ from their defaults, ERM only where it stands alone."""
    layers = list(algorithm.layers())[::-1]
    return "+".join(_text(layer) for layer in (layers[1:] or layers))


def options_of(cls: type[Algorithm]) -> dict[str, inspect.Parameter]:
    """The keyword options of an algorithm's constructor."""
    parameters = inspect.signature(cls).parameters.values()
    return {p.name: p for p in parameters if p.kind is p.KEYWORD_ONLY}


def algorithm_named(name: str) -> type[Algorithm]:
    """The class a name or an import path stands for."""
    import dspreg.algorithms as index

    known = {n: c for n in index.__all__ if isinstance(c := getattr(index, n), type) and issubclass(c, Algorithm)}
    known.pop("Algorithm")
    module, _, attribute = name.rpartition(".")
    if not module:
        if name not in known:
            raise ConfigError(
                f"unknown algorithm {name!r}.{_nearest(name, known)} Known: {', '.join(sorted(known))}. "
                f"For your own class use its import path, e.g. 'my_methods.{name}'"
            )
        return known[name]
    try:
        found = getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        raise ConfigError(f"{name!r}: no module {error.name!r}; is its folder on PYTHONPATH?") from error
    except AttributeError:
        raise ConfigError(f"{name!r}: the module {module!r} has no {attribute!r}") from None
    if not (isinstance(found, type) and issubclass(found, Algorithm)):
        raise ConfigError(f"{name!r} is not a subclass of dspreg.Algorithm")
    return found


def _layers(tree: ast.expr) -> list[ast.expr]:
    if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Add):
        return [*_layers(tree.left), *_layers(tree.right)]
    return [tree]


def _made(node: ast.expr, base: Algorithm | None) -> Algorithm:
    path, keywords = (node.func, node.keywords) if isinstance(node, ast.Call) else (node, [])
    name = ast.unparse(path)
    if not all(part.isidentifier() for part in name.split(".")):
        raise ConfigError(f"{ast.unparse(node)!r} is not the name of an algorithm")
    if isinstance(node, ast.Call) and node.args:
        raise ConfigError(f"{ast.unparse(node)}: options are given by name, and stacks as 'inner+{name}'")
    cls = algorithm_named(name)
    known = options_of(cls)
    options: dict[str, Any] = {}
    for keyword in keywords:
        if keyword.arg not in known:
            asked = str(keyword.arg)
            raise ConfigError(
                f"{name} has no option {asked!r}.{_nearest(asked, known)} It has: {', '.join(known) or 'none'}"
            )
        try:
            options[keyword.arg] = ast.literal_eval(keyword.value)
        except ValueError:
            value = ast.unparse(keyword.value)
            raise ConfigError(
                f"{name}: {keyword.arg}={value} is not a number, a quoted string or a list of those"
            ) from None
        _check(name, known[keyword.arg], options[keyword.arg])
    if issubclass(cls, ERM):
        if base is not None:
            raise ConfigError("ERM is the bottom of every stack and goes first, or is left out")
        return cls()
    return cls(base, **options)


def _check(name: str, option: inspect.Parameter, value: Any) -> None:
    """Numbers where numbers are wanted: the default tells which."""
    wanted = option.default
    if isinstance(wanted, bool) or wanted is None or wanted is inspect.Parameter.empty:
        return
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    ok = number if isinstance(wanted, float) else number and isinstance(value, int) if isinstance(wanted, int) else True
    if isinstance(wanted, str):
        ok = isinstance(value, str)
    if not ok:
        kind = {float: "a number", int: "a whole number", str: "a quoted string"}[type(wanted)]
        raise ConfigError(f"{name}: {option.name}={value!r}; wanted {kind}, such as {wanted!r}")


def _text(layer: Algorithm) -> str:
    cls = type(layer)
    import dspreg.algorithms as index

    name = cls.__name__ if getattr(index, cls.__name__, None) is cls else f"{cls.__module__}.{cls.__qualname__}"
    options = {n: getattr(layer, n) for n, p in options_of(cls).items() if getattr(layer, n) != p.default}
    return name + (f"({', '.join(f'{n}={v!r}' for n, v in options.items())})" if options else "")


def _nearest(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), 1, 0.5) or [k for k in known if k.lower() == name.lower()]
    return f" Did you mean {close[0]!r}?" if close else ""

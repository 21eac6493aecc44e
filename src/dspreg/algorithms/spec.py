"""Spec strings: `"CORAL(weight=0.5)+DSPReg"` ⇄ `DSPReg(CORAL(weight=0.5))`.

`"A+B"` is `B(A())`: what stands later is around what stands before. There is no registry. A bare name is looked up in
`dspreg.algorithms`; a dotted one is an import path, e.g. `"my_methods.LogitNorm(weight=0.05)+DSPReg"`.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Collection, Sequence
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from dspreg.algorithms.base import ERM, Algorithm, options_of
from dspreg.errors import ConfigError
from dspreg.io.importing import import_object
from dspreg.io.text import did_you_mean

PUBLISHED = 5_001  # steps of DomainBed's runs, for which methods publish what they count in steps


def parse(text: str) -> Algorithm:
    """The stack a spec stands for, before `setup`."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError) as error:
        reason = getattr(error, "msg", error)
        raise ConfigError(f"the spec {text!r} is not of the form 'A(option=value)+B': {reason}") from None
    stack: Algorithm | None = None
    for layer in _layers(tree):
        stack = _made(layer, stack)
    assert stack is not None
    return stack


def describe(algorithm: Algorithm) -> str:
    """The shortest spec of a stack: options that differ from their defaults, ERM only where it stands alone."""
    layers = list(algorithm.layers())[::-1]
    shown = layers[1:] if type(layers[0]) is ERM and len(layers) > 1 else layers
    return "+".join(_text(layer) for layer in shown)


def filled(text: str, *, seed: int | None = None, steps: int = PUBLISHED) -> tuple[str, list[str]]:
    """The spec with what it leaves open filled in, and in words what was scaled; given options stay.

    Args:
        text: A spec.
        seed: `seed_hash(draw, trial)`; then every option that search varies is drawn at random.
        steps: Of the run. In one shorter than those that options are published for, options counted in steps (such
            as a warm-up) become shorter by as much: otherwise a short run would be over before they matter.
    """
    parse(text)  # refuses what is wrong
    parts, scaled = [], []
    for node in _layers(ast.parse(text.strip(), mode="eval").body):
        layer = _made(node, None)
        cls = type(layer)
        given = {str(k.arg) for k in node.keywords} if isinstance(node, ast.Call) else set()
        for option, prior in cls.space.items():
            if seed is not None and option not in given:
                setattr(layer, option, prior.draw(seed, f"{cls.__name__}.{option}"))
        by_hand = set()  # written even where it is the default, which a short run would scale
        for option in cls.step_options:
            usual = getattr(layer, option)
            shorter = round(usual * min(1.0, steps / PUBLISHED)) if usual else usual
            if shorter == usual:
                continue
            if given & set(cls.step_options):  # one that is given fixes the others, as GGA's start its end
                by_hand.add(option)
                continue
            setattr(layer, option, shorter)
            scaled.append(f"{cls.__name__}: {option}={shorter} instead of {usual}")
        parts.append((layer, _text(layer, by_hand)))
    shown = parts[1:] if type(parts[0][0]) is ERM and len(parts) > 1 else parts
    return "+".join(text for _, text in shown), scaled


def algorithms() -> dict[str, type[Algorithm]]:
    """Every algorithm of the index, by its name."""
    import dspreg.algorithms as index

    found = {name: getattr(index, name) for name in sorted(index.__all__, key=str.lower)}
    return {n: c for n, c in found.items() if isinstance(c, type) and issubclass(c, Algorithm) and c is not Algorithm}


def algorithm_named(name: str) -> type[Algorithm]:
    """The class a name or an import path stands for."""
    known = algorithms()
    if not all(part.isidentifier() for part in name.split(".")):
        written = name.replace(" - ", "-")  # as the user wrote it
        raise ConfigError(f"{written!r} is not the name of an algorithm.{did_you_mean(written, known)}")
    if "." not in name:
        if name not in known:
            raise ConfigError(
                f"unknown algorithm {name!r}.{did_you_mean(name, known)} Known: {', '.join(known)}. "
                f"For your own class use its import path, e.g. 'my_methods.{name}'"
            )
        return known[name]
    found = import_object(name)
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
    cls = algorithm_named(name)
    if isinstance(node, ast.Call) and node.args:
        raise ConfigError(f"{ast.unparse(node)}: options are given by name, and stacks as 'inner+{name}'")
    options = _options(cls, name, keywords)
    if issubclass(cls, ERM):
        if base is not None:
            raise ConfigError(f"{name} is the bottom of every stack and goes first, or is left out")
        return cls(**options)
    return cls(base, **options)


def _options(cls: type[Algorithm], name: str, keywords: list[ast.keyword]) -> dict[str, Any]:
    known, hints = options_of(cls), get_type_hints(cls.__init__)
    options: dict[str, Any] = {}
    for keyword in keywords:
        option = str(keyword.arg)
        if option not in known:
            raise ConfigError(
                f"{name} has no option {option!r}.{did_you_mean(option, known)} It has: {', '.join(known) or 'none'}"
            )
        if option in options:
            raise ConfigError(f"{name}: the option {option!r} is given twice")
        try:
            value = ast.literal_eval(keyword.value)
        except (ValueError, TypeError):
            text = ast.unparse(keyword.value)
            raise ConfigError(f"{name}: {option}={text} is not a number, a quoted string or a list of those") from None
        if not _fits(value, hints.get(option, Any)):
            wanted, default = _words(hints[option]), known[option].default
            raise ConfigError(f"{name}: {option}={value!r}; wanted {wanted}, such as {default!r}")
        options[option] = value
    return options


def _fits(value: Any, hint: Any) -> bool:
    """Whether a literal is what an annotation asks for; whole numbers are numbers, and all are finite."""
    if get_origin(hint) in (Union, UnionType):
        return any(_fits(value, each) for each in get_args(hint))
    if hint is float:
        return type(value) in (int, float) and math.isfinite(value)
    if hint in (int, str, bool, NoneType):
        return type(value) is hint
    if get_origin(hint) in (list, Sequence):
        return isinstance(value, list) and all(_fits(each, get_args(hint)[0]) for each in value)
    return True


def _words(hint: Any) -> str:
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(_words(each) for each in get_args(hint))
    known = {float: "a number", int: "a whole number", str: "a quoted string", bool: "True or False", NoneType: "None"}
    return known.get(hint, "a list" if get_origin(hint) in (list, Sequence) else str(hint))


def _text(layer: Algorithm, also: Collection[str] = ()) -> str:
    import dspreg.algorithms as index

    cls = type(layer)
    options = ", ".join(f"{name}={value!r}" for name, value in layer.options(also).items())
    name = cls.__name__ if getattr(index, cls.__name__, None) is cls else f"{cls.__module__}.{cls.__qualname__}"
    return f"{name}({options})" if options else name

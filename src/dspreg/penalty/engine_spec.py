"""Engines from text: `"exact"`, `"finite_difference(part=0.5)"`, `"lookahead(radius=1e-4)"`, `"lazy(30, exact)"`."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from dspreg.errors import ConfigError
from dspreg.penalty.engines import (
    Engine,
    Penalised,
    central,
    exact,
    finite_difference,
    gauss_newton,
    kind_of,
    lazy,
    lookahead,
    momentum,
)
from dspreg.specs import NOT_LITERAL, Product, Term, parse_term

ENGINES: dict[str, Callable[..., Penalised]] = {
    e.__name__: e for e in (exact, finite_difference, lookahead, gauss_newton, central, momentum, lazy)
}


def parse_engine(text: str) -> Engine:
    """The engine a text stands for, such as `"lookahead(radius=2*weight)"` or `"lazy(30, exact)"`."""
    try:
        return _engine(parse_term(text))
    except (SyntaxError, TypeError, ValueError) as error:
        raise ConfigError(
            f"engine {text!r}: {error}. Wanted exact, finite_difference, gauss_newton, lookahead, "
            "exact(part=0.5), finite_difference(part=0.5), gauss_newton(part=0.5), lookahead(radius=1e-4), "
            "lookahead(radius=0.2*weight), momentum(beta=0.9), lazy(30), lazy(30, exact) or central"
        ) from None


def _engine(term: Any) -> Engine:
    if not isinstance(term, Term) or term.name not in ENGINES:
        raise ValueError(f"no engine {term.name if isinstance(term, Term) else getattr(term, 'text', repr(term))!r}")
    name, arguments, options = term.name, term.arguments, dict(term.options)
    given: dict[str, Any] = {}
    match name:
        case "lookahead" if "radius" in options:
            given["radius"] = _radius(options.pop("radius"))
        case "exact" | "finite_difference" | "gauss_newton" if "part" in options:
            given["part"] = part = _number(options.pop("part"), "part")
            if not 0 < part <= 1:
                raise ValueError(f"part={part} is not above 0 and at most 1")
        case "momentum" if "beta" in options:
            given["beta"] = beta = _number(options.pop("beta"), "beta")
            if not 0 <= beta < 1:
                raise ValueError(f"beta={beta} is not in [0, 1)")
        case "lazy":
            if not 1 <= len(arguments) <= 2:
                raise ValueError("lazy takes a number of steps and, if wanted, an engine")
            given["every"] = every = arguments[0]
            if type(every) is not int or every < 1:
                raise ValueError(f"lazy wants a whole number of steps ≥ 1, not {getattr(every, 'text', repr(every))}")
            if len(arguments) == 2:
                given["inner"] = _engine(arguments[1])
                if (kind := kind_of(given["inner"])) in (momentum, lazy):
                    raise ValueError(
                        "lazy takes exact, finite_difference, gauss_newton, lookahead or central inside, not "
                        f"{kind.__name__}"
                    )
            arguments = ()
        case _:
            pass
    if options or arguments:
        raise ValueError(f"{name} takes no {term.text[len(name) :]}")
    return partial(ENGINES[name], **given)


def _radius(value: Any) -> Callable[[float], float]:
    """A positive number, or a multiple of `weight` such as `2*weight`."""
    factors = value.factors if isinstance(value, Product) else (value,)
    numbers = [each for each in factors if not (isinstance(each, Term) and each.text == "weight")]
    radius = 1.0
    for each in numbers:
        radius *= _number(each, "radius")
    if not 0 < radius < math.inf:
        raise ValueError(f"radius={getattr(value, 'text', value)} is not a positive number")
    times_weight = len(factors) - len(numbers)
    return lambda weight: radius * weight**times_weight


def _number(value: Any, option: str) -> float:
    if isinstance(value, NOT_LITERAL):
        raise ValueError(f"{option}={value.text} is not a number")
    return float(value)

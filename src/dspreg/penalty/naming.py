"""The names of engines: `"exact"`, `"lookahead(radius=2*weight)"`, `"lazy(30, exact)"`."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from functools import partial
from typing import Any

from dspreg.errors import ConfigError
from dspreg.penalty.engines import Engine, Penalised, central, exact, kind_of, lazy, lookahead, momentum

ENGINES: dict[str, Callable[..., Penalised]] = {e.__name__: e for e in (exact, lookahead, central, momentum, lazy)}


def parse_engine(text: str) -> Engine:
    """The engine a text stands for, such as `"lookahead(radius=2*weight)"` or `"lazy(30, exact)"`."""
    try:
        return _engine(ast.parse(text, mode="eval").body)
    except (SyntaxError, TypeError, ValueError) as error:
        raise ConfigError(
            f"engine {text!r}: {error}. Wanted exact, lookahead, lookahead(radius=1e-4), lookahead(radius=0.2*weight), "
            "momentum(beta=0.9), lazy(30), lazy(30, exact) or central"
        ) from None


def _engine(node: ast.expr) -> Engine:
    name = node.func if isinstance(node, ast.Call) else node
    if not isinstance(name, ast.Name) or name.id not in ENGINES:
        raise ValueError(f"no engine {ast.unparse(name)!r}")
    options = {k.arg: k.value for k in node.keywords} if isinstance(node, ast.Call) else {}
    positional = node.args if isinstance(node, ast.Call) else []
    given: dict[str, Any] = {}
    match name.id:
        case "lookahead" if "radius" in options:
            given["radius"] = _radius(options.pop("radius"))
        case "momentum" if "beta" in options:
            given["beta"] = beta = float(ast.literal_eval(options.pop("beta")))
            if not 0 <= beta < 1:
                raise ValueError(f"beta={beta} is not in [0, 1)")
        case "lazy":
            if not 1 <= len(positional) <= 2:
                raise ValueError("lazy takes a number of steps and, if wanted, an engine")
            given["every"] = every = ast.literal_eval(positional[0])
            if type(every) is not int or every < 1:
                raise ValueError(f"lazy wants a whole number of steps ≥ 1, not {every!r}")
            if len(positional) == 2:
                given["inner"] = _engine(positional[1])
                if (kind := kind_of(given["inner"])) in (momentum, lazy):
                    raise ValueError(f"lazy takes exact, lookahead or central inside, not {kind.__name__}")
            positional = []
        case _:
            pass
    if options or positional:
        raise ValueError(f"{name.id} takes no {ast.unparse(node)[len(name.id) :]}")
    return partial(ENGINES[name.id], **given)


def _radius(node: ast.expr) -> Callable[[float], float]:
    """A positive number, or a multiple of `weight` such as `2*weight`."""
    factors = [node.left, node.right] if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) else [node]
    numbers = [f for f in factors if not (isinstance(f, ast.Name) and f.id == "weight")]
    value = 1.0
    for number in numbers:
        value *= float(ast.literal_eval(number))
    if not 0 < value < math.inf:
        raise ValueError(f"radius={ast.unparse(node)} is not a positive number")
    times_weight = len(factors) - len(numbers)
    return lambda weight: value * weight**times_weight

"""Which layer may not stand above which, and what to write instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dspreg.errors import ConfigError

if TYPE_CHECKING:
    from dspreg.algorithms.base import Algorithm


def require_order(stack: Algorithm) -> None:
    """Refuse a layer that would silently undo what one below it did, or leave it nothing to do."""
    layers = list(stack.layers())[:-1]
    for i, layer in enumerate(layers):
        for below in layers[i + 1 :]:
            if reason := clash(layer, below):
                spec = f"'{type(layer).__name__}+{type(below).__name__}'"
                better = "Leave one of them out" if clash(below, layer) else f"Put it the other way round: {spec}"
                raise ConfigError(f"{reason}. {better}")


def require_trained(stack: Algorithm) -> None:
    """Refuse a layer that differentiates by the featurizer where all of it is frozen; torch would say less."""
    if any(p.requires_grad for p in stack.net.featurizer.parameters()):
        return
    for layer in stack.layers():
        if layer.moves_features:
            name = type(layer).__name__
            raise ConfigError(
                f"{name} trains the featurizer, and all of it is frozen; leave {name} out, or thaw a part"
            )


def clash(above: Algorithm, below: Algorithm) -> str | None:
    """Why one must not stand above the other."""
    upper, lower = type(above).__name__, type(below).__name__
    undone = above.replaces & below.changes()
    if undone:
        return f"{upper} has its own {' and '.join(sorted(undone))} and would undo that of {lower} below it"
    if above.one_by_one and below.compares and {"gradient", "update"} & set(above.arrows()) & set(below.arrows()):
        return f"{upper} asks for one domain at a time, which leaves {lower} below it nothing to compare"
    return None

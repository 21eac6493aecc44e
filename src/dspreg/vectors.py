"""Vectors in parameter space, so that the code reads like the paper.

Gradients `g`, sensitivities `s`, coefficients `c` and displacements are all `ParamVector`s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from dspreg.errors import ConfigError
from dspreg.io.text import join_few
from dspreg.precision import loss_scale


class ParamVector(Mapping[str, Tensor]):
    """One tensor per named parameter. An absent name stands for zeros.

    A parameter that a loss does not reach, or that a penalty leaves out, is simply absent: sums keep the names of
    either side, products those of both, and `optimizer.step` skips parameters without a gradient.
    """

    __array_ufunc__ = None  # so that numpy scalar * vector calls our __rmul__

    def __init__(self, tensors: Mapping[str, Tensor] | Iterable[tuple[str, Tensor]] = ()):
        self._tensors = dict(tensors)

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __repr__(self) -> str:
        return f"ParamVector({len(self)} tensors, {self.numel():,} numbers)"

    def numel(self) -> int:
        return sum(t.numel() for t in self.values())

    def map(self, fn: Callable[..., Tensor], *others: ParamVector) -> ParamVector:
        """Apply `fn` tensor by tensor. Every other vector must have all the names of this one."""
        for other in others:
            missing = [name for name in self if name not in other]
            if missing:
                raise KeyError(f"the other vector has no {missing[0]!r} (and {len(missing) - 1} more)")
        return ParamVector((n, fn(t, *(o[n] for o in others))) for n, t in self.items())

    def __add__(self, other: ParamVector) -> ParamVector:
        only_in_other = {n: t for n, t in other.items() if n not in self}
        return ParamVector({n: t + other[n] if n in other else t for n, t in self.items()} | only_in_other)

    def plus(self, other: ParamVector, factor: Tensor | float) -> ParamVector:
        """self + factor · other, in one pass over memory."""
        only_in_other = {n: t * factor for n, t in other.items() if n not in self}
        added = {n: _add_times(t, other[n], factor) if n in other else t for n, t in self.items()}
        return ParamVector(added | only_in_other)

    def __sub__(self, other: ParamVector) -> ParamVector:
        only_in_other = {n: -t for n, t in other.items() if n not in self}
        return ParamVector({n: t - other[n] if n in other else t for n, t in self.items()} | only_in_other)

    def __mul__(self, other: ParamVector | Tensor | float) -> ParamVector:
        if isinstance(other, ParamVector):
            return ParamVector((n, t * other[n]) for n, t in self.items() if n in other)
        return ParamVector((n, t * other) for n, t in self.items())

    __rmul__ = __mul__

    def __truediv__(self, other: Tensor | float) -> ParamVector:
        return ParamVector((n, t / other) for n, t in self.items())

    def __neg__(self) -> ParamVector:
        return self.map(torch.neg)

    def square(self) -> ParamVector:
        return self.map(torch.square)

    def sqrt(self) -> ParamVector:
        return self.map(torch.sqrt)

    def sum(self) -> Tensor:
        """Σ_k v_k, a scalar."""
        if not self:
            return torch.zeros(())
        return torch.stack([t.sum() for t in self.values()]).sum()

    def dot(self, other: ParamVector) -> Tensor:
        return (self * other).sum()

    def norm(self) -> Tensor:
        if not self:
            return torch.zeros(())
        norms = torch.stack([torch.linalg.vector_norm(t) for t in self.values()])
        return norms.square().sum().sqrt()

    def cosine(self, other: ParamVector) -> Tensor:
        """⟨a, b⟩/(‖a‖ ‖b‖), and 0 if either is 0."""
        return self.dot(other) / (self.norm().clamp(min=1e-8) * other.norm().clamp(min=1e-8))

    def flat(self) -> Tensor:
        """All entries as one 1-D tensor, in the order of the names. (P,)"""
        return torch.cat([t.reshape(-1) for t in self.values()]) if self else torch.zeros(0)

    def to(self, dtype: torch.dtype) -> ParamVector:
        return self.map(lambda t: t.to(dtype))

    def select(self, only: Patterns = None, exclude: Patterns = None) -> ParamVector:
        """The entries whose names match a pattern of `only` and none of `exclude`."""
        return ParamVector((n, self[n]) for n in matching_names(self, only, exclude))


def _add_times(start: Tensor, direction: Tensor, factor: Tensor | float) -> Tensor:
    """start + factor · direction; a factor that is a tensor is not read by the host."""
    if isinstance(factor, Tensor):
        return torch.addcmul(start, direction, factor.to(direction.dtype))
    return torch.add(start, direction, alpha=factor)


Patterns = str | Iterable[str] | None


def matching_names(names: Iterable[str], only: Patterns = None, exclude: Patterns = None) -> list[str]:
    """The names that match a pattern of `only` (default: all) and none of `exclude`; `*`, `?`, `[…]` as in a shell.

    A pattern that matches nothing is an error: it is more often a typo than intended.
    """
    names = list(names)
    included = [only] if isinstance(only, str) else None if only is None else list(only)
    excluded = [exclude] if isinstance(exclude, str) else list(exclude or ())
    for pattern in [*(included or ()), *excluded]:
        if not any(fnmatchcase(n, pattern) for n in names):
            raise ConfigError(f"the pattern {pattern!r} matches no parameter; there are {join_few(names, 4) or 'none'}")
    kept = [n for n in names if included is None or any(fnmatchcase(n, p) for p in included)]
    kept = [n for n in kept if not any(fnmatchcase(n, p) for p in excluded)]
    if not kept:
        raise ConfigError(f"only={only!r} and exclude={exclude!r} leave no parameter of {join_few(names, 4)}")
    return kept


def trainable(net: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that require a gradient, by name. A tied parameter appears once, under its first name."""
    return {name: p for name, p in net.named_parameters() if p.requires_grad}


def theta(net: nn.Module) -> ParamVector:
    """A copy of the current parameters θ."""
    return ParamVector((n, p.detach().clone()) for n, p in trainable(net).items())


def to_device(vector: ParamVector, device: str | torch.device) -> ParamVector:
    """A copy of a vector, on a device."""
    return vector.map(lambda t: t.detach().to(device, copy=True))


def gradient(loss: Tensor, net: nn.Module, create_graph: bool = False) -> ParamVector:
    """∂loss/∂θ. Parameters that `loss` does not depend on are absent."""
    params = trainable(net)
    if not params or not loss.requires_grad:
        return ParamVector()
    grads = scaled_gradients(loss, list(params.values()), create_graph=create_graph)
    return ParamVector((n, g) for n, g in zip(params, grads, strict=True) if g is not None)


def scaled_gradients(loss: Tensor, params: Sequence[Tensor], create_graph: bool = False) -> list[Tensor | None]:
    """∂loss/∂params, None where there is none; on the way there multiplied by `loss_scale`, for half precision."""
    scale = loss_scale()
    if scale == 1:
        return list(torch.autograd.grad(loss, params, create_graph=create_graph, allow_unused=True))
    found = torch.autograd.grad(loss * scale, params, create_graph=create_graph, allow_unused=True)
    return [None if g is None else g / scale for g in found]


def depends_on(value: Tensor, net: nn.Module) -> bool:
    """Whether autograd leads from `value` to the parameters, with a derivative that is not 0 everywhere."""
    if not value.requires_grad:
        return False
    # unequal weights: the outputs of a softmax have a constant sum
    weights = torch.arange(1, value.numel() + 1, device=value.device).cos().to(value.dtype).view_as(value)
    try:
        g = gradient((value * weights).sum(), net)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:  # the graph was built under `standing_at`, and the parameters are elsewhere again
        return False
    return any(bool(t.any()) for t in g.values())


def graph_nodes(value: Tensor) -> Iterator[Any]:
    """All nodes of the graph that `value.backward()` would go through."""
    nodes, queue = set(), [value.grad_fn]
    while queue:
        node = queue.pop()
        if node is None or node in nodes:
            continue
        nodes.add(node)
        yield node
        queue.extend(parent for parent, _ in node.next_functions)


def leaves(value: Tensor) -> list[Tensor]:
    """All tensors that `value.backward()` would accumulate a gradient in, parameters of a network or not."""
    return [leaf for node in graph_nodes(value) if (leaf := getattr(node, "variable", None)) is not None]


@torch.no_grad()
def move_to(net: nn.Module, point: ParamVector) -> None:
    """Set the parameters named in `point` to its values, bitwise."""
    params = trainable(net)
    for name, value in point.items():
        params[name].copy_(value)
    torch.clear_autocast_cache()  # which holds casts of the old parameters


def displaced(net: nn.Module, delta: ParamVector) -> AbstractContextManager[None]:
    """Inside, the parameters are θ + delta."""
    return standing_at(net, theta_plus(net, delta))


@torch.no_grad()
def theta_plus(net: nn.Module, v: ParamVector, c: ParamVector | None = None, h: Tensor | float = 1.0) -> ParamVector:
    """θ + h·v, or θ + h·c⊙v in one pass over memory; only for the names that v (and c) have."""
    params = trainable(net)
    names = [name for name in v if c is None or name in c]
    start, direction = [params[n].detach() for n in names], [v[n] for n in names]
    points: Iterable[Tensor]
    if isinstance(h, Tensor):
        points = [
            _add_times(p, d if c is None else d * c[n], h) for n, p, d in zip(names, start, direction, strict=True)
        ]
    elif c is None:
        points = torch._foreach_add(start, direction, alpha=h)
    else:
        points = torch._foreach_addcmul(start, direction, [c[n] for n in names], value=h)
    for name, old, new in zip(names, start, points, strict=True):
        if old.shape != new.shape:
            raise RuntimeError(
                f"{name!r} has shape {tuple(old.shape)} and can't be displaced by a step of {tuple(v[name].shape)}"
            )
    return ParamVector((n, new.to(old.dtype)) for n, old, new in zip(names, start, points, strict=True))


@contextmanager
def standing_at(net: nn.Module, point: ParamVector, *, keeps_graphs: bool = False) -> Iterator[None]:
    """Inside, the parameters named in `point` have its values; afterwards their old ones, bitwise, also after an error.

    The parameters point to other memory inside and to their own again afterwards: nothing is copied or rounded.

    Args:
        keeps_graphs: A graph built before may be differentiated afterwards. Otherwise it refuses, as it would silently
            take the wrong values inside.
    """
    params = trainable(net)
    before = {name: params[name].data for name in point}
    try:
        _swap_data(params, point, keeps_graphs)
        yield
    finally:
        _swap_data(params, before, keeps_graphs)


@torch.no_grad()
def _swap_data(params: Mapping[str, nn.Parameter], point: Mapping[str, Tensor], keeps_graphs: bool) -> None:
    for name, value in point.items():
        p = params[name]
        p.data = value
        if not keeps_graphs:
            p.detach()[None][:0].zero_()  # writes nothing, but a graph built before will refuse the new values
    torch.clear_autocast_cache()  # which holds casts of the old parameters


def average(vectors: Iterable[ParamVector]) -> ParamVector:
    """The mean vector; an absent name counts as zero."""
    total, n = ParamVector(), 0
    for vector in vectors:
        total, n = total + vector, n + 1
    if n == 0:
        raise ValueError("the average of no vectors")
    return total / n

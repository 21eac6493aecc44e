"""Vectors in parameter space, so that code reads like the paper.

Gradients `g`, sensitivities `s`, coefficients `c` and displacements are all `ParamVector`s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from dspreg.errors import ConfigError


class ParamVector(Mapping[str, Tensor]):
    """One tensor per named parameter. A name that is absent stands for zeros.

    So a parameter that a loss does not reach, or that a penalty leaves out, is simply not there:
    sums keep the names of either side, products those of both, and `optimizer.step` skips what has no gradient.
    """

    __array_ufunc__ = None  # a numpy number times a vector is our product

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
        """`fn` tensor by tensor. Every other vector must have all the names of this one."""
        for other in others:
            missing = [name for name in self if name not in other]
            if missing:
                raise KeyError(f"the other vector has no {missing[0]!r} (and {len(missing) - 1} more)")
        return ParamVector((n, fn(t, *(o[n] for o in others))) for n, t in self.items())

    def __add__(self, other: ParamVector) -> ParamVector:
        only_there = {n: t for n, t in other.items() if n not in self}
        return ParamVector({n: t + other[n] if n in other else t for n, t in self.items()} | only_there)

    def __sub__(self, other: ParamVector) -> ParamVector:
        only_there = {n: -t for n, t in other.items() if n not in self}
        return ParamVector({n: t - other[n] if n in other else t for n, t in self.items()} | only_there)

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
        """⟨a, b⟩/(‖a‖ ‖b‖), and 0 where one of them is 0."""
        return self.dot(other) / (self.norm().clamp(min=1e-8) * other.norm().clamp(min=1e-8))

    def flat(self) -> Tensor:
        """All numbers in one row, in the order of the names. (P,)"""
        return torch.cat([t.reshape(-1) for t in self.values()]) if self else torch.zeros(0)

    def to(self, dtype: torch.dtype) -> ParamVector:
        return self.map(lambda t: t.to(dtype))

    def select(self, only: Patterns = None, exclude: Patterns = None) -> ParamVector:
        """The part whose names match a pattern of `only` and none of `exclude`."""
        chosen = matching_names(self, only, exclude)
        return ParamVector((n, self[n]) for n in chosen)


Patterns = str | Iterable[str] | None


def matching_names(names: Iterable[str], only: Patterns = None, exclude: Patterns = None) -> list[str]:
    """The names that match a pattern of `only` (all without one) and none of `exclude`; `*`, `?`, `[…]` as in a shell.

    A pattern that matches nothing is refused: it is a misspelling more often than a wish.
    """
    names = list(names)
    wanted = [only] if isinstance(only, str) else None if only is None else list(only)
    unwanted = [exclude] if isinstance(exclude, str) else list(exclude or ())
    for pattern in [*(wanted or ()), *unwanted]:
        if not any(fnmatchcase(n, pattern) for n in names):
            raise ConfigError(f"the pattern {pattern!r} matches no parameter; there are {_few(names)}")
    kept = [n for n in names if wanted is None or any(fnmatchcase(n, p) for p in wanted)]
    kept = [n for n in kept if not any(fnmatchcase(n, p) for p in unwanted)]
    if not kept:
        raise ConfigError(f"only={only!r} and exclude={exclude!r} leave no parameter of {_few(names)}")
    return kept


def _few(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f", … ({len(names)} in all)" if len(names) > 4 else "") if names else "none"


def trainable(net: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that require a gradient, by name. A tied parameter appears once, under its first name."""
    return {name: p for name, p in net.named_parameters() if p.requires_grad}


def theta(net: nn.Module) -> ParamVector:
    """A copy of the current parameters θ."""
    return ParamVector((n, p.detach().clone()) for n, p in trainable(net).items())


def gradient(loss: Tensor, net: nn.Module, create_graph: bool = False) -> ParamVector:
    """∂loss/∂θ. Parameters that `loss` does not depend on are absent."""
    params = trainable(net)
    if not params or not loss.requires_grad:
        return ParamVector()
    grads = torch.autograd.grad(loss, list(params.values()), create_graph=create_graph, allow_unused=True)
    return ParamVector((n, g) for n, g in zip(params, grads, strict=True) if g is not None)


def leaves(value: Tensor) -> list[Tensor]:
    """All tensors that `value.backward()` would give a gradient to, parameters of a network or not."""
    found, nodes, queue = [], set(), [value.grad_fn]
    while queue:
        node = queue.pop()
        if node is None or node in nodes:
            continue
        nodes.add(node)
        if (leaf := getattr(node, "variable", None)) is not None:
            found.append(leaf)
        queue.extend(following for following, _ in node.next_functions)
    return found


@torch.no_grad()
def move_to(net: nn.Module, point: ParamVector) -> None:
    """Put the parameters named in `point` there, bit for bit."""
    params = trainable(net)
    for name, value in point.items():
        params[name].copy_(value)
    torch.clear_autocast_cache()  # it holds casts of the parameters as they were


def displaced(net: nn.Module, delta: ParamVector) -> AbstractContextManager[None]:
    """Evaluate at θ + delta."""
    return standing_at(net, theta_plus(net, delta))


@torch.no_grad()
def theta_plus(net: nn.Module, v: ParamVector, c: ParamVector | None = None, h: float = 1.0) -> ParamVector:
    """θ + h·v, or θ + h·c⊙v in one pass over memory; only the parameters that all of these name."""
    params = trainable(net)
    names = [name for name in v if c is None or name in c]
    start, along = [params[n].detach() for n in names], [v[n] for n in names]
    if c is None:
        points = torch._foreach_add(start, along, alpha=h)
    else:
        points = torch._foreach_addcmul(start, along, [c[n] for n in names], value=h)
    for name, old, new in zip(names, start, points, strict=True):
        if old.shape != new.shape:
            raise RuntimeError(
                f"{name!r} has shape {tuple(old.shape)}; a step of {tuple(v[name].shape)} leads elsewhere"
            )
    return ParamVector((n, new.to(old.dtype)) for n, old, new in zip(names, start, points, strict=True))


@contextmanager
def standing_at(net: nn.Module, point: ParamVector) -> Iterator[None]:
    """Evaluate with the parameters named in `point` there, and have the old ones back to the bit, come what may.

    The parameters take other memory for a while and then their own again: nothing is copied, nothing rounded.
    """
    params = trainable(net)
    before = {name: params[name].data for name in point}
    try:
        _exchange(params, point)
        yield
    finally:
        _exchange(params, before)


@torch.no_grad()
def _exchange(params: Mapping[str, nn.Parameter], point: Mapping[str, Tensor]) -> None:
    for name, value in point.items():
        p = params[name]
        p.data = value
        p.detach()[None][:0].zero_()  # writes nothing, but a graph that was built before will refuse the new values
    torch.clear_autocast_cache()  # it holds casts of the parameters as they were


def average(vectors: Iterable[ParamVector]) -> ParamVector:
    """Their mean; names absent in some count as zero there."""
    total, n = ParamVector(), 0
    for vector in vectors:
        total, n = total + vector, n + 1
    if n == 0:
        raise ValueError("the average of no vectors")
    return total / n

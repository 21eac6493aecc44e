"""G v: the curvature of an objective whose network is replaced by its tangent.

    L(θ) = ℓ(f(θ))        H = G + Σ_a (∂ℓ/∂f_a) ∇²f_a        G = Jᵀ Λ J,  J = ∂f/∂θ,  Λ = ∂²ℓ/∂f²

f are the network's outputs for the batch and ℓ is everything behind them: any loss, soft labels, weights of domains,
terms that couple samples. G is the Hessian of ℓ(f(θ₀) + J(θ − θ₀)), also where θ, or a tensor outside of the network,
reaches the loss past f as well. What G lacks of H is the second sum, the curvature of the network, weighted by the
residuals ∂ℓ/∂f.

G v takes J v, a product with Λ by differentiating the few operations between f and L twice, and one pass backwards
through the network. It never differentiates the network twice.

J v is the difference quotient (f(θ + hv) − f(θ))/h, one forward pass without a graph. f is continuous where gradients
jump, so the quotient does not suffer from ReLUs as that of gradients does, if h is small: on a pretrained
EfficientNet-Lite0 in float32 it is off by 1.4 % with ‖hv‖ = 1e-4, by 16 % with 1e-2 and by 30 % with 1e-6, and on a
ViT by 0.03 % (`python bench/tangent.py`). Forward-mode differentiation is exact and takes three to six forward passes,
and neither fused attention nor compiled models have it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from dspreg.batches import Batch, Objective, OutputObjective, Outputs
from dspreg.errors import ConfigError
from dspreg.randomness import Key, generator
from dspreg.vectors import ParamVector, leaves, standing_at, theta_plus, trainable

RADIUS = {torch.float32: 1e-4, torch.float64: 1e-8}  # ‖hv‖, between the network's curvature and rounding


class Tangent(Protocol):
    """An objective whose G v can be computed."""

    def gradient(self) -> tuple[Tensor, ParamVector]:
        """L and g at θ. Called before `product`, if at all."""

    def product(self, v: ParamVector) -> ParamVector:
        """G v."""


@dataclass(frozen=True)
class Graph:
    """One evaluation of the objective at θ, cut where the network ends.

    Attributes:
        loss: L as a function of `places` and `direct`.
        outputs: f, with the graph that leads to θ.
        places: Where the loss takes over: `outputs`, or leaves of the same values.
        direct: Leaves that reach the loss past `places`, by name.
    """

    loss: Tensor
    outputs: Sequence[Tensor]
    places: Sequence[Tensor]
    direct: Mapping[str, Tensor]

    @cached_property
    def slopes(self) -> tuple[Tensor | None, ...]:
        """∂L/∂places and ∂L/∂direct, which can be differentiated again; None where L does not depend on one."""
        where = [*self.places, *self.direct.values()]
        return torch.autograd.grad(self.loss, where, create_graph=True, allow_unused=True)

    def gradient(self, params: Mapping[str, Tensor]) -> ParamVector:
        """∇L. The graph stays."""
        return self._pull_back(self.slopes, params, retain_graph=True)

    def product(self, change: Sequence[Tensor], v: ParamVector, params: Mapping[str, Tensor]) -> ParamVector:
        """G v, with `change` = J v. The graph is used up."""
        tangents = [*change, *(v.get(name) for name in self.direct)]
        terms = [
            (slope * tangent).sum()
            for slope, tangent in zip(self.slopes, tangents, strict=True)
            if slope is not None and tangent is not None and slope.requires_grad
        ]
        if not terms:  # a linear loss
            return ParamVector()
        where = [*self.places, *self.direct.values()]
        bent = torch.autograd.grad(torch.stack(terms).sum(), where, allow_unused=True)
        return self._pull_back(bent, params)

    def _pull_back(
        self, vectors: Sequence[Tensor | None], params: Mapping[str, Tensor], retain_graph: bool = False
    ) -> ParamVector:
        """Jᵀ of the vectors at `places`, and those at `direct` as they are."""
        known = [(f, w.detach()) for f, w in zip(self.outputs, vectors, strict=False) if w is not None]
        past = zip(self.direct, vectors[len(self.places) :], strict=True)
        total = ParamVector((name, w.detach()) for name, w in past if w is not None)
        if known:
            outputs, cotangents = zip(*known, strict=True)
            found = torch.autograd.grad(
                outputs, list(params.values()), cotangents, retain_graph=retain_graph, allow_unused=True
            )
            total = ParamVector((n, g) for n, g in zip(params, found, strict=True) if g is not None) + total
        return total


def displace(net: nn.Module, v: ParamVector) -> tuple[ParamVector, Tensor]:
    """θ + hv with ‖hv‖ = RADIUS, and 1/h; where v is 0 both are 0. Tensors, so that a GPU is not waited for."""
    length = v.norm()
    radius = RADIUS[length.dtype]
    h = torch.where(length == 0, 0, radius / length)
    return theta_plus(net, v, None, h), length / radius


class StackTangent:
    """Of a stack of layers: f are all tensors of its `Outputs`, features and extras as well as logits."""

    def __init__(self, objective: OutputObjective, batches: Sequence[Batch], net: nn.Module):
        self.objective, self.batches, self.net = objective, batches, net
        self._names: list[str] = []  # of the tensors that depend on θ
        self._graph: Graph | None = None

    def gradient(self) -> tuple[Tensor, ParamVector]:
        self._graph = self.objective.evaluate(self._cut, self.batches)
        return self._graph.loss.detach(), self._graph.gradient(trainable(self.net))

    def product(self, v: ParamVector) -> ParamVector:
        point, inverse = displace(self.net, v)
        graph: Graph = self._graph or self.objective.evaluate(self._cut, self.batches)
        self._graph = None
        with standing_at(self.net, point, keeps_graphs=True), torch.no_grad():
            ahead = self.objective.evaluate(Outputs.tensors, self.batches)
        change = [(ahead[n] - here.detach()) * inverse for n, here in zip(self._names, graph.outputs, strict=True)]
        return graph.product(change, v, trainable(self.net))

    def _cut(self, out: Outputs) -> Graph:
        outputs = {name: t for name, t in out.tensors().items() if t.requires_grad}
        places = {name: t.detach().requires_grad_() for name, t in outputs.items()}
        self._names = list(outputs)
        try:
            loss = self.objective.loss(out.with_tensors(places))
        except RuntimeError as error:
            if "not have been used in the graph" not in str(error):
                raise
            raise ConfigError(
                "a loss of this stack differentiates logits by features, and engine 'gauss_newton' treats both as "
                "given. Use engine 'exact' or 'lookahead'"
            ) from error
        reached = {id(leaf) for leaf in leaves(loss)}
        direct = {name: p for name, p in trainable(self.net).items() if id(p) in reached}
        return Graph(loss, list(outputs.values()), list(places.values()), direct)


class Sample(NamedTuple):
    """A random part of a step's batches. The expectation of L on it is L."""

    objective: Objective
    batches: Sequence[Any]
    share: float = 1.0  # of all samples
    rest: tuple[Objective, Sequence[Any]] | None = None  # the others, if L = share·L_part + (1 − share)·L_rest


def sample_batches(
    objective: OutputObjective, batches: Sequence[Batch], key: Sequence[Key], part: float, *, sample_wise: bool = False
) -> Sample:
    """This part of every domain's batch, drawn by the key without replacement, and the objective on it.

    Where domains count by their sizes, they count by those in the whole batch. A mean over samples then has the whole
    batch's as its expectation, derivatives included; a loss that couples samples is that of the part.

    Args:
        objective: L.
        batches: All samples.
        key: Of the run and the step.
        part: The share of each batch.
        sample_wise: Whether L is a mean over samples. Then there is a rest too, if all domains have the same share.
    """
    total = sum(map(len, batches))
    shares = {batch.domain: len(batch) / total for batch in batches}

    def loss(out: Outputs) -> Tensor:
        by_size = torch.tensor(out.sizes, dtype=out.weights.dtype, device=out.weights.device) / sum(out.sizes)
        if torch.equal(out.weights, by_size):
            out = out.replace(weights=out.weights.new_tensor([shares[d] for d in out.domains]))
        return objective.loss(out)

    on_some = OutputObjective(objective.evaluate, loss)
    rows = [_sample_rows(batch, key, part) for batch in batches]
    chosen = [_take(batch, mine) for batch, mine in zip(batches, rows, strict=True)]
    share, *other_shares = {len(some) / len(whole) for some, whole in zip(chosen, batches, strict=True)}
    if not sample_wise or other_shares or share == 1:
        return Sample(on_some, chosen, share)
    others = [
        _take(batch, sorted(set(range(len(batch))) - set(mine))) for batch, mine in zip(batches, rows, strict=True)
    ]
    return Sample(on_some, chosen, share, (on_some, others))


def _sample_rows(batch: Batch, key: Sequence[Key], part: float) -> list[int]:
    count = min(len(batch), max(2, round(part * len(batch))))  # two, so that there is a variance
    order = torch.randperm(len(batch), generator=generator(*key, batch.domain, "part"))
    return sorted(order[:count].tolist())


def _take(batch: Batch, rows: Sequence[int]) -> Batch:
    def some(values: Tensor) -> Tensor:
        return values[torch.tensor(rows, device=values.device)]

    weights = None if batch.weights is None else some(batch.weights)
    return replace(batch, x=some(batch.x), y=some(batch.y), weights=weights)

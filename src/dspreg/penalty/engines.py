"""The gradient of the penalised objective, L + λ Σ_k c_k g_k² with g = ∇L.

Its exact gradient is ∇L + 2λ·H(c⊙g): a Hessian-vector product, not something that reuses g. The engines are several
ways to it. Each takes the gradient arrow *below* it, so that a penalty stacks on SAM, MLDG or a mask as well; then g
means what that arrow returns.

    exact               differentiate twice: 3.2 ERM steps on a ResNet-18
    lookahead(radius)   compare with the gradient a little way along c⊙g: one more gradient, 1.9
    central             on both sides of θ, the oracle of the tests: two more
    momentum(beta)      along a running mean of gradients: none more, 1.05, but another objective
    lazy(k, inner)      k times another engine's penalty, on every k-th step: 1.03 with k = 30

On networks with ReLUs they are different penalties: a finite difference crosses kinks that differentiating twice does
not see. Along a training on PACS, summed over 20 steps, lookahead's penalty has a cosine of 0.69 to exact's, and
lazy(30, exact)'s, over 60, one of 0.06. So `exact` is the default. (`python bench/penalty.py`, `python
bench/trajectory.py`; docs/understand/engines.md)

c is a constant here: differentiating through √v/s̄ gives NaN as soon as one parameter has v = 0.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from dspreg import vectors
from dspreg.batches import Objective, at_least_float32
from dspreg.errors import Notice
from dspreg.penalty.autocast import autocast_off
from dspreg.vectors import ParamVector, average, standing_at, theta_plus

Gradient = Callable[[Objective, Sequence[Any]], tuple[Tensor, ParamVector]]


@dataclass
class Memory:
    """What an engine keeps from step to step. Nothing it is asked for changes before `commit`."""

    steps: int = 0
    mean: ParamVector = field(default_factory=ParamVector)  # running mean of gradients, biased to its start at 0
    mass: float = 0.0  # what the weights in it sum to
    seen: list[tuple[ParamVector, float]] = field(default_factory=list)  # gradients of this step, and beta

    def bias_corrected_mean(self) -> ParamVector:
        """The running mean without that bias; empty before the first step."""
        return self.mean / self.mass if self.mass else ParamVector()

    def commit(self) -> None:
        """The step is over. Several gradients seen in one, as under Fish, count as their mean."""
        if self.seen:
            beta = self.seen[0][1]
            new = self.seen[0][0] if len(self.seen) == 1 else average(g for g, _ in self.seen)
            if list(self.mean) == list(new):  # one pass over memory
                torch._foreach_lerp_(list(self.mean.values()), list(new.values()), 1 - beta)
            else:
                self.mean = self.mean * beta + new * (1 - beta)
            self.mass = self.mass * beta + (1 - beta)
        self.seen = []
        self.steps += 1


@dataclass(frozen=True)
class Step:
    """The problem of one step: minimise L + λ Σ c_k g_k², L the objective and g its gradient by the arrow below."""

    below: Gradient
    objective: Objective
    batches: Sequence[Any]  # whatever the objective takes
    net: nn.Module
    c: ParamVector
    weight: float  # λ
    memory: Memory = field(default_factory=Memory)
    keeps_plain: bool = True  # whether g at θ is wanted as well; a vector less to hold where it is not
    second: Gradient | None = (
        None  # like `below`, of objectives that hold gradients, where `batches` are parts of a sum
    )

    def gradient(self, v: ParamVector | None = None, h: float = 0.0) -> tuple[Tensor, ParamVector]:
        """L and g at θ + h·c⊙v."""
        return self.at(theta_plus(self.net, v, self.c, h) if v is not None else ParamVector())

    def at(self, point: ParamVector) -> tuple[Tensor, ParamVector]:
        """L and g at `point`, with the parameters it does not name where they are."""
        with standing_at(self.net, point), self.full_precision():
            return self.below(self.objective, self.batches)

    def full_precision(self) -> AbstractContextManager[None]:
        """Without autocast: displacements of about 1e-6 a weight are far below the spacing of half precision."""
        return autocast_off(self.device)

    @property
    def device(self) -> str:
        return next(self.net.parameters()).device.type


class Penalised(NamedTuple):
    """What an engine returns. Its penalty part is `gradient − plain`."""

    loss: Tensor  # L without the penalty, at θ (where `momentum` evaluated it: at the displaced point)
    gradient: ParamVector  # of L + λR
    plain: ParamVector | None  # g at θ, where the engine had to compute it


Engine = Callable[[Step], Penalised]


def penalty_value(c: ParamVector, g: ParamVector) -> Tensor:
    """R = Σ c_k g_k², in at least float32: the square of a small half-precision number is 0."""
    return (c * g.map(at_least_float32).square()).sum()


class Figures(NamedTuple):
    """What to write down of a step."""

    L: Tensor
    R: Tensor  # Σ c_k g_k²
    part: Tensor  # ‖penalty part‖
    ratio: Tensor  # ‖penalty part‖/‖g‖


def figures(step: Step, result: Penalised, engine: Engine) -> Figures:
    """Of a step that an engine has taken; by more passes where they are not at hand."""
    inner = inner_of(engine)
    if inner is not engine:  # a lazy engine: its share is the inner one's, whether or not it acts now
        result = inner(step)
    loss, g = (result.loss, result.plain) if result.plain is not None else step.gradient()
    part = (result.gradient - g).norm()
    return Figures(loss, penalty_value(step.c, g), part, part / g.norm().clamp(min=torch.finfo(part.dtype).tiny))


def exact(step: Step) -> Penalised:
    """∇(L + λ Σ c_k g_k²) by differentiating twice. Over a gradient layer: that layer's gradient of this objective."""
    if step.second is not None:
        return _exact_in_parts(step, step.second)
    losses: list[Tensor] = []

    def penalised(batches: Sequence[Any]) -> Tensor:
        loss = step.objective(batches)
        g = vectors.gradient(loss, step.net, create_graph=True)
        losses.append(loss.detach())
        return loss + step.weight * penalty_value(step.c, g)

    with step.full_precision():
        _, total = twice_differentiable(step.net, lambda: step.below(penalised, step.batches))
    return Penalised(losses[0], total, None)


def _exact_in_parts(step: Step, second: Gradient) -> Penalised:
    """The same where L is a sum of parts that are never in memory together, or in one process.

    R is quadratic in g, so g of the whole sum is needed first; then ∇(L + 2λ⟨∇L, v⟩) with the constant v = c⊙g is a
    sum over parts again.
    """
    loss, g = step.gradient()
    v = step.c * g

    def along(batches: Sequence[Any]) -> Tensor:
        loss = step.objective(batches)
        return loss + 2 * step.weight * vectors.gradient(loss, step.net, create_graph=True).dot(v)

    with step.full_precision():
        _, total = twice_differentiable(step.net, lambda: second(along, step.batches))
    return Penalised(loss, total, g)


def lookahead(step: Step, *, radius: Callable[[float], float] = lambda weight: 2 * weight) -> Penalised:
    """g + (2λ/h) (g(θ + h·c⊙g) − g), a forward difference along c⊙g with h = `radius(λ)`.

    With h = 2λ, the default, this is the plain gradient at the displaced point. Exact on quadratics, otherwise
    with an error O(h). With c = 1 and h = 2λ it is SAM without the normalisation, ρ = 2λ.
    """
    h = radius(step.weight)
    loss, g = step.gradient()
    point = theta_plus(step.net, g, step.c, h)
    if h == 2 * step.weight:
        plain = g if step.keeps_plain else None
        del g  # not to be held during the second pass, which is when memory is short
        return Penalised(loss, step.at(point)[1], plain)
    _, ahead = step.at(point)
    return Penalised(loss, g + (ahead - g) * (2 * step.weight / h), g)


def central(step: Step, *, radius: float = 1e-2) -> Penalised:
    """g + 2λ (g(θ + hv) − g(θ − hv)) / 2h along v = c⊙g, with ‖hv‖ = radius. Error O(h²), and kind to float32."""
    loss, g = step.gradient()
    if not (length := float((step.c * g).norm())):
        return Penalised(loss, g, g)
    h = radius / length
    _, ahead = step.gradient(g, h)
    _, behind = step.gradient(g, -h)
    return Penalised(loss, g + (ahead - behind) * (step.weight / h), g)


def momentum(step: Step, *, beta: float = 0.9) -> Penalised:
    """g(θ + 2λ·c⊙m), m the bias-corrected running mean of the gradients returned so far. No extra pass.

    **Another objective**: the squared *mean* gradient, not the mean squared gradient of a batch, so its λ is not
    comparable. At a fixed θ and batch m tends to the solution of m = g(θ + 2λ·c⊙m); on a quadratic that is reached
    only while 2λ·λmax(H·diag c) < 1. The first step has no mean yet and is plain.
    """
    if torch.is_autocast_enabled(step.device) and not step.memory.mass:
        warnings.warn("engine 'momentum' runs in full precision throughout, without autocast", Notice, stacklevel=2)
    mean, mass = step.memory.mean, step.memory.mass
    loss, g = step.gradient(mean, 2 * step.weight / mass) if mass else step.gradient()
    step.memory.seen.append((ParamVector((n, t) for n, t in g.items() if n in step.c), beta))
    return Penalised(loss, g, None)


def lazy(step: Step, *, every: int, inner: Engine = lookahead) -> Penalised:
    """g, and on every k-th step g + k·(the inner engine's penalty part).

    The paper's objective in expectation, though not Adam's trajectory: the spikes enter its second moment.
    """
    if (step.memory.steps + 1) % every:
        loss, g = step.below(step.objective, step.batches)  # no penalty, so autocast may stay
        return Penalised(loss, g, g)
    loss, total, plain = inner(replace(step, keeps_plain=True))
    g = plain if plain is not None else step.gradient()[1]
    return Penalised(loss, g + (total - g) * every, g)


def kind_of(engine: Engine) -> Callable[..., Penalised]:
    """The function of this module behind an engine."""
    return engine.func if isinstance(engine, partial) else engine


def inner_of(engine: Engine) -> Engine:
    """The engine whose penalty part counts: the inner one of a lazy engine, else itself."""
    if isinstance(engine, partial) and engine.func is lazy:
        return cast(Engine, engine.keywords.get("inner", lookahead))
    return engine


Result = TypeVar("Result")
_without_fused_attention: WeakSet[nn.Module] = WeakSet()


def twice_differentiable(net: nn.Module, compute: Callable[[], Result]) -> Result:
    """`compute()`, with plain attention if fused attention turns out to have no second derivative."""
    if net not in _without_fused_attention:
        try:
            return compute()
        except RuntimeError as error:
            if "scaled_dot_product" not in str(error):
                raise
            warnings.warn(
                "fused attention has no second derivative; engine 'exact' uses the plain one, slower and larger. "
                "The other engines keep the fused one",
                Notice,
                stacklevel=2,
            )
            _without_fused_attention.add(net)
    with sdpa_kernel(SDPBackend.MATH):
        return compute()

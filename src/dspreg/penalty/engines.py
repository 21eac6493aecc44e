"""The gradient of the penalised objective, L + λ Σ_k c_k g_k² with g = ∇L.

Its exact gradient is ∇L + 2λ·H(c⊙g), a Hessian-vector product, which g alone does not give. The engines compute or
approximate it. Each takes the gradient arrow *below* it, so that a penalty also stacks on SAM, MLDG or a mask; g is
then what that arrow returns.

    exact(part)         differentiate twice: 3.2 ERM steps on a ResNet-18; the product on a part of the batch: less
    finite_difference   the same vector as a small difference of gradients, every ReLU held on its side: 2.1; (part=0.5)
                        on half of the batch: 1.6
    lookahead(radius)   forward difference along c⊙g: one more gradient, 1.9
    gauss_newton(part)  G(c⊙g), H without the curvature of the network itself: 1.9; on a part of the batch: less
    central             central difference, the reference of the tests: two more gradients
    momentum(beta)      displaced along a running mean of gradients: no more gradients, 1.05, but another objective
    lazy(k, inner)      k times another engine's penalty, on every k-th step: 1.03 with k = 30

On networks with ReLUs the others are different penalties: a difference that does not hold them crosses kinks that
double differentiation does not see. In training on PACS, summed over 20 steps, lookahead's penalty has a cosine of 0.69
to exact's, and lazy(30, exact)'s, over 60 steps, one of 0.06. (`python bench/penalty.py`, `python bench/trajectory.py`;
docs/understand/engines.md)

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
from dspreg.errors import ConfigError, Notice
from dspreg.io.text import join_few
from dspreg.penalty.activation_pattern import ActivationPattern
from dspreg.penalty.autocast import autocast_off
from dspreg.penalty.tangent import Sample, Tangent, displace
from dspreg.vectors import ParamVector, average, standing_at, theta_plus, trainable

Gradient = Callable[[Objective, Sequence[Any]], tuple[Tensor, ParamVector]]


@dataclass
class Memory:
    """The state of an engine from step to step. Nothing that it returns changes before `commit`."""

    steps: int = 0
    mean: ParamVector = field(default_factory=ParamVector)  # running mean of gradients, biased towards its start at 0
    mass: float = 0.0  # sum of the weights in it
    seen: list[tuple[ParamVector, float]] = field(default_factory=list)  # gradients of this step, and beta

    def bias_corrected_mean(self) -> ParamVector:
        """The running mean without that bias; empty before the first step."""
        return self.mean / self.mass if self.mass else ParamVector()

    def commit(self) -> None:
        """End the step. Several gradients in one step, as under Fish, count as their mean."""
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
    keeps_plain: bool = True  # whether g at θ is needed as well; without it, one vector less in memory
    second: Gradient | None = None  # `below` for objectives that contain gradients, if `batches` are parts of a sum
    linearise: Callable[[Objective, Sequence[Any]], Tangent] | None = None  # if the network's outputs are known
    sample: Callable[[float], Sample] | None = None  # a random part of the batches

    def gradient(self, v: ParamVector | None = None, h: float = 0.0) -> tuple[Tensor, ParamVector]:
        """L and g at θ + h·c⊙v."""
        return self.at(theta_plus(self.net, v, self.c, h) if v is not None else ParamVector())

    def at(self, point: ParamVector) -> tuple[Tensor, ParamVector]:
        """L and g at `point`; parameters that it does not name are as in θ."""
        with standing_at(self.net, point), self.full_precision():
            return self.below(self.objective, self.batches)

    def full_precision(self) -> AbstractContextManager[None]:
        """Without autocast: displacements of about 1e-6 per weight are far below the resolution of half precision."""
        return autocast_off(self.device)

    @property
    def device(self) -> str:
        return next(self.net.parameters()).device.type


class Penalised(NamedTuple):
    """What an engine returns. Its penalty part is `gradient − plain`."""

    loss: Tensor  # L without the penalty, at θ (with `momentum`: at the displaced point)
    gradient: ParamVector  # of L + λR
    plain: ParamVector | None  # g at θ, if the engine computed it


Engine = Callable[[Step], Penalised]


def penalty_value(c: ParamVector, g: ParamVector) -> Tensor:
    """R = Σ c_k g_k², in at least float32: the square of a small half-precision number is 0."""
    return (c * g.map(at_least_float32).square()).sum()


class Figures(NamedTuple):
    """What is logged of a step."""

    L: Tensor
    R: Tensor  # Σ c_k g_k²
    part: Tensor  # ‖penalty part‖
    ratio: Tensor  # ‖penalty part‖/‖g‖


def figures(step: Step, result: Penalised, engine: Engine) -> Figures:
    """The figures of a step that an engine has taken; may need further passes."""
    inner = inner_of(engine)
    if inner is not engine:  # a lazy engine: its part is the inner engine's, whether or not this is a k-th step
        result = inner(step)
    loss, g = (result.loss, result.plain) if result.plain is not None else step.gradient()
    part = (result.gradient - g).norm()
    return Figures(loss, penalty_value(step.c, g), part, part / g.norm().clamp(min=torch.finfo(part.dtype).tiny))


def exact(step: Step, *, part: float = 1.0) -> Penalised:
    """∇(L + λ Σ c_k g_k²) by differentiating twice. On top of a gradient layer: its gradient of this objective.

    With `part` < 1, g + 2λ·H'(c⊙g) with g of the whole batch and H' of a random part of it, whose expectation is H.
    """
    if part < 1:
        return _exact_on_part(step, part)
    if step.second is not None:
        return _exact_in_parts(step, step.second)
    losses: list[Tensor] = []

    def penalised(batches: Sequence[Any]) -> Tensor:
        loss = step.objective(batches)
        g = vectors.gradient(loss, step.net, create_graph=True)
        losses.append(loss.detach())
        return loss + step.weight * penalty_value(step.c, g)

    with step.full_precision():
        _, total = call_twice_differentiable(step.net, lambda: step.below(penalised, step.batches))
    return Penalised(losses[0], total, None)


def _exact_in_parts(step: Step, second: Gradient) -> Penalised:
    """The same if L is a sum of parts that are never in memory together, or in one process.

    R is quadratic in g, so g of the whole sum is needed first. Then ∇(L + 2λ⟨∇L, v⟩) with the constant v = c⊙g is a
    sum over parts again.
    """
    loss, g = step.gradient()
    v = step.c * g

    def along(batches: Sequence[Any]) -> Tensor:
        loss = step.objective(batches)
        return loss + 2 * step.weight * vectors.gradient(loss, step.net, create_graph=True).dot(v)

    with step.full_precision():
        _, total = call_twice_differentiable(step.net, lambda: second(along, step.batches))
    return Penalised(loss, total, g)


def _exact_on_part(step: Step, part: float) -> Penalised:
    if step.sample is None:
        raise ConfigError("engine 'exact(part=…)' has no batch here to take a part of; use engine 'exact'")
    loss, g = step.gradient()
    v = step.c * g
    objective, batches, *_ = step.sample(part)

    def along(batches: Sequence[Any]) -> Tensor:
        return 2 * step.weight * vectors.gradient(objective(batches), step.net, create_graph=True).dot(v)

    with step.full_precision():
        _, curved = call_twice_differentiable(step.net, lambda: (step.second or step.below)(along, batches))
    return Penalised(loss, g + curved, g)


def gauss_newton(step: Step, *, part: float = 1.0) -> Penalised:
    """g + 2λ·G(c⊙g), G = JᵀΛJ: H without the curvature of the network itself (`dspreg.penalty.tangent`).

    One gradient, a forward pass, and a second backward pass through the same graph. Where residuals are small G is
    near H; at the start of a training it is not. With `part` < 1, g is of the whole batch and G of a random part of it,
    whose expectation is G.
    """
    if step.linearise is None:
        raise ConfigError(
            "engine 'gauss_newton' needs the network's outputs, and this objective does not give them. Use engine "
            "'exact' or 'lookahead'"
        )
    with step.full_precision():
        if part < 1:
            if step.sample is None:
                raise ConfigError("engine 'gauss_newton(part=…)' has no batch here to take a part of; leave part= out")
            loss, g = step.gradient()
            drawn = step.sample(part)
            tangent = step.linearise(drawn.objective, drawn.batches)
        else:
            tangent = step.linearise(step.objective, step.batches)
            loss, g = tangent.gradient()
        curved = tangent.product(step.c * g)
    return Penalised(loss, g + curved * (2 * step.weight), g)


def finite_difference(step: Step, *, part: float = 1.0) -> Penalised:
    """g + (2λ/h) (g(θ + h·c⊙g) − g) with a small h, every ReLU held on the side where it is at θ.

    The vector of `exact`, to about 1e-3 in float32, for one more gradient and without a double backward. If the ReLUs
    were not held (`dspreg.penalty.activation_pattern`) a small h would be useless: the gradient jumps at their kinks.
    Over a layer that changes the gradient, g is what that layer returns, as with `lookahead`.

    With `part` < 1 the difference is that of a random part of the batch, along c⊙g of the whole: the vector of
    `exact(part=…)`. g is then the sum of two gradients, that of the part and that of the rest, so that the part's own
    is there without another pass. L must be a mean over samples for that.
    """
    if part < 1:
        return _finite_difference_on_part(step, part)
    pattern = ActivationPattern()
    with pattern.recorded():
        loss, g = step.gradient()
    pattern.require_visible(step.net)
    point, inverse = displace(step.net, step.c * g)
    with pattern.replayed():
        _, ahead = step.at(point)
    return Penalised(loss, g.plus(ahead - g, 2 * step.weight * inverse), g)


def _finite_difference_on_part(step: Step, part: float) -> Penalised:
    drawn = step.sample(part) if step.sample is not None else None
    if drawn is None or drawn.rest is None:
        raise ConfigError(
            "engine 'finite_difference(part=…)' takes the gradient of a part of the batch and of the rest, and here L "
            "is not their mean. Leave part= out, which would save nothing then"
        )
    of_part = replace(step, objective=drawn.objective, batches=drawn.batches)
    pattern = ActivationPattern()
    with pattern.recorded():
        loss, own = of_part.gradient()
    pattern.require_visible(step.net)
    other_loss, others = replace(step, objective=drawn.rest[0], batches=drawn.rest[1]).gradient()
    a, b = drawn.share, 1 - drawn.share
    loss, g = a * loss + b * other_loss, (others * b).plus(own, a)
    point, inverse = displace(step.net, step.c * g)
    with pattern.replayed():
        _, ahead = of_part.at(point)
    return Penalised(loss, g.plus(ahead - own, 2 * step.weight * inverse), g)


def lookahead(step: Step, *, radius: Callable[[float], float] = lambda weight: 2 * weight) -> Penalised:
    """g + (2λ/h) (g(θ + h·c⊙g) − g), a forward difference along c⊙g with h = `radius(λ)`.

    With h = 2λ, the default, this is the plain gradient at the displaced point. Exact on quadratics;
    otherwise the error is O(h). With c = 1 and h = 2λ it is SAM without the normalisation, ρ = 2λ.
    """
    h = radius(step.weight)
    loss, g = step.gradient()
    point = theta_plus(step.net, g, step.c, h)
    if h == 2 * step.weight:
        plain = g if step.keeps_plain else None
        del g  # frees memory for the second pass, which needs most of it
        return Penalised(loss, step.at(point)[1], plain)
    _, ahead = step.at(point)
    return Penalised(loss, g + (ahead - g) * (2 * step.weight / h), g)


def central(step: Step, *, radius: float = 1e-2) -> Penalised:
    """g + 2λ (g(θ + hv) − g(θ − hv)) / 2h along v = c⊙g, with ‖hv‖ = radius. Error O(h²); stable in float32."""
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
    comparable. At a fixed θ and batch, m tends to the solution of m = g(θ + 2λ·c⊙m); on a quadratic it converges
    only if 2λ·λmax(H·diag c) < 1. The first step has no mean yet and is without a penalty.
    """
    autocast = torch.amp.is_autocast_available(step.device) and torch.is_autocast_enabled(step.device)
    if autocast and not step.memory.mass:
        warnings.warn("engine 'momentum' runs in full precision throughout, without autocast", Notice, stacklevel=2)
    mean, mass = step.memory.mean, step.memory.mass
    loss, g = step.gradient(mean, 2 * step.weight / mass) if mass else step.gradient()
    step.memory.seen.append((ParamVector((n, t) for n, t in g.items() if n in step.c), beta))
    return Penalised(loss, g, None)


def lazy(step: Step, *, every: int, inner: Engine = lookahead) -> Penalised:
    """g, and on every k-th step g + k·(the inner engine's penalty part).

    The paper's objective in expectation, but not its trajectory under Adam: the spikes enter the second moment.
    """
    if (step.memory.steps + 1) % every:
        loss, g = step.below(step.objective, step.batches)  # no penalty, so autocast may stay on
        return Penalised(loss, g, g)
    loss, total, plain = inner(replace(step, keeps_plain=True))
    g = plain if plain is not None else step.gradient()[1]
    return Penalised(loss, g + (total - g) * every, g)


def kind_of(engine: Engine) -> Callable[..., Penalised]:
    """The function of this module behind an engine."""
    return engine.func if isinstance(engine, partial) else engine


def inner_of(engine: Engine) -> Engine:
    """The engine that computes the penalty part: the inner one of a lazy engine, else itself."""
    if isinstance(engine, partial) and engine.func is lazy:
        return cast(Engine, engine.keywords.get("inner", lookahead))
    return engine


def takes_plain(engine: Engine) -> bool:
    """Whether an engine is of the plain gradient of the objective, whatever a layer below would make of it."""
    return kind_of(inner_of(engine)) is gauss_newton or part_of(engine) < 1


def part_of(engine: Engine) -> float:
    """The share of the batch that the product with the Hessian is taken on."""
    inner = inner_of(engine)
    return float(inner.keywords.get("part", 1.0)) if isinstance(inner, partial) else 1.0


def refuse_half_precision(net: nn.Module, engine: Engine, name: str) -> None:
    """Refuse parameters whose spacing swallows the displacement; `exact` displaces nothing."""
    if kind_of(inner_of(engine)) is exact:
        return
    coarse = [repr(n) for n, p in trainable(net).items() if torch.finfo(p.dtype).eps > 1e-6]
    if coarse:
        raise ConfigError(
            f"parameters in half precision ({join_few(coarse, 3)}): engine {name!r} displaces them by about 1e-6, less "
            "than their spacing. Keep them in float32 and use autocast, or engine 'exact'"
        )


Result = TypeVar("Result")
_without_fused_attention: WeakSet[nn.Module] = WeakSet()


def call_twice_differentiable(
    net: nn.Module,
    compute: Callable[[], Result],
    who: str = "engine 'exact'",
    others: str = ". The other engines keep fused attention",
) -> Result:
    """`compute()`, with unfused attention if fused attention turns out to have no second derivative."""
    if net not in _without_fused_attention:
        try:
            return compute()
        except RuntimeError as error:
            if "scaled_dot_product" not in str(error):
                raise
            warnings.warn(
                f"fused attention has no second derivative; {who} uses unfused attention, which is slower and needs "
                f"more memory{others}",
                Notice,
                stacklevel=2,
            )
            _without_fused_attention.add(net)
    with sdpa_kernel(SDPBackend.MATH):
        return compute()

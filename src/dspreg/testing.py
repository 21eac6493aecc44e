"""The laws that make algorithms combine, as a check for ours and for yours.

    from dspreg.testing import check_algorithm

    def test_mine():
        check_algorithm(LogitNorm)

1. Reach your base: an overridden arrow calls the same arrow of `self.base`.
2. The objective is a function: two evaluations in one step agree to the bit, and nothing changes before the step ends.
3. One domain is a domain too: a step on a single batch is finite.
4. Across arrows, order does not matter: a layer that changes other arrows may stand above or below.
5. Everything that lives longer than a step is in `state_dict`: save, load, continue gives the same bits.

And what the command line needs: the constructor records its options, so that a spec string round-trips; soft labels
are accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dspreg.algorithms import CORAL, ERM, SAM, Algorithm, Fish, Task, describe, parse
from dspreg.algorithms.base import Direction, Log, Objective
from dspreg.batches import Batch, Outputs
from dspreg.networks import Network, TinyMLP
from dspreg.randomness import generator
from dspreg.training import train_step
from dspreg.vectors import ParamVector, theta

ARROWS = ("build", "forward", "loss", "gradient", "update", "predict")
Make = Callable[[Algorithm | None], Algorithm]


class LawBroken(AssertionError):
    """An algorithm breaks a law of stacking."""


def check_algorithm(algorithm: type[Algorithm] | str, **options: Any) -> None:
    """Raise `LawBroken` unless the algorithm, alone and in small stacks, keeps the laws.

    Args:
        algorithm: A class, whose `options` are keyword arguments, or the spec of a whole stack.
    """

    def make(base: Algorithm | None = None) -> Algorithm:
        if not isinstance(algorithm, str):
            return algorithm(base, **options) if not issubclass(algorithm, ERM) else base or algorithm()
        stack = parse(algorithm)
        above_erm = list(stack.layers())[:-1]
        if base is None or not above_erm:
            return base or stack
        above_erm[-1].base = base
        return stack

    records_its_options(make)
    reaches_its_base(make)
    objective_is_a_function(make)
    takes_one_domain(make)
    takes_soft_labels(make)
    commutes_across_arrows(make)
    is_saved_whole(make)


# A small problem: three domains with shifted inputs, a network with dropout.


def toy_task(domains: int = 3, classes: int = 3, inputs: int = 5, dropout: float = 0.25) -> Task:
    names = tuple(f"domain {d}" for d in range(domains))

    def samples(t: int, n: int) -> Mapping[str, Sequence[Batch]]:
        return {
            name: [toy_batch(d, 32, classes, inputs, t, i, "measure") for i in range(n)] for d, name in enumerate(names)
        }

    return Task(classes, names, 2, lambda: TinyMLP(inputs, 8, dropout), ("toy",), samples)


def toy_batch(domain: int, size: int, classes: int, inputs: int, *key: int | str) -> Batch:
    random = generator("toy", domain, *key)
    y = torch.randint(classes, (size,), generator=random)
    x = torch.randn(size, inputs, generator=random, dtype=torch.float64)
    return Batch(x * (1 + 0.3 * domain) + y[:, None] + 0.5 * domain, y, domain)


def toy_batches(t: int, domains: int = 3, sizes: Sequence[int] = (6, 6, 6), soft: bool = False) -> list[Batch]:
    batches = [toy_batch(d, sizes[d % len(sizes)], 3, 5, t, "train") for d in range(domains)]
    return [Batch(b.x, F.one_hot(b.y, 3).double(), b.domain) for b in batches] if soft else batches


def ready(algorithm: Algorithm, task: Task | None = None) -> Algorithm:
    """Set up for the toy problem, in float64."""
    return algorithm.setup(task or toy_task(), lambda p: torch.optim.Adam(p, lr=1e-2)).double()


# The laws.


def records_its_options(make: Make) -> None:
    stack = make(None)
    try:
        text = describe(stack)
    except AttributeError as error:
        raise LawBroken(f"the constructor must store every option under its own name: {error}") from error
    again = describe(parse(text)) if "<locals>" not in text else text  # a class inside a function has no import path
    if again != text:
        raise LawBroken(f"the spec does not round-trip: {text!r} became {again!r}")


def reaches_its_base(make: Make) -> None:
    probe = _Probe()
    stack = ready(make(probe))
    train_step(stack, toy_batches(0))
    stack.predict(toy_batches(0)[0].x)
    excused = frozenset().union(*(layer.replaces for layer in stack.layers()))
    missed = [arrow for arrow in ARROWS if arrow not in probe.reached | excused]
    if missed:
        raise LawBroken(
            f"law 1: {describe(stack)} does not reach its base in {', '.join(missed)}; call self.base.{missed[0]}(…) "
            "in it, or say that it replaces it: replaces = frozenset({…})"
        )


def objective_is_a_function(make: Make) -> None:
    for t in range(3):
        twice = _Twice(make(None))
        stack = ready(twice)
        for earlier in range(t):
            train_step(stack, toy_batches(earlier))
        twice.comparing = True
        train_step(stack, toy_batches(t))


def takes_one_domain(make: Make) -> None:
    stack = ready(make(None))
    before = theta(stack.net)
    log = train_step(stack, toy_batches(0)[1:2])
    if not all(torch.isfinite(value).all() for value in [*log.values(), *theta(stack.net).values()]):
        raise LawBroken(f"law 3: {describe(stack)} on a single domain is not finite; terms between domains must vanish")
    if float((theta(stack.net) - before).norm()) == 0:
        raise LawBroken(f"law 3: {describe(stack)} on a single domain does not move")


def takes_soft_labels(make: Make) -> None:
    hard, soft = ready(make(None)), ready(make(None))
    train_step(hard, toy_batches(0))
    train_step(soft, toy_batches(0, soft=True))
    _equal(hard, soft, 1e-9, "one-hot soft labels give another step than the same hard labels")


def commutes_across_arrows(make: Make) -> None:
    changed = {arrow for layer in make(None).layers() if not isinstance(layer, ERM) for arrow in _changed(layer)}
    partners: dict[str, Make] = {"loss": CORAL, "gradient": SAM, "update": Fish}
    for arrow, partner in partners.items():
        if arrow in changed:  # within one arrow the outer layer acts around the inner one
            continue
        above, below = ready(partner(make(None))), ready(make(partner(None)))
        for t in range(2):
            train_step(above, toy_batches(t))
            train_step(below, toy_batches(t))
        _equal(above, below, 1e-9, f"law 4: above {describe(above)} and below {describe(below)} take different steps")


def is_saved_whole(make: Make) -> None:
    straight = ready(make(None))
    for t in range(3):
        train_step(straight, toy_batches(t))
    saved = deepcopy((straight.state_dict(), straight.stack.optimizer.state_dict()))
    resumed = ready(make(None))
    resumed.load_state_dict(saved[0])
    resumed.stack.optimizer.load_state_dict(saved[1])
    for t in range(3, 6):
        train_step(straight, toy_batches(t))
        train_step(resumed, toy_batches(t))
    _equal(straight, resumed, 0.0, "law 5: after save, load and continue weights differ; is some state not saved?")


def _equal(a: Algorithm, b: Algorithm, tolerance: float, message: str) -> None:
    difference = float((theta(a.net) - theta(b.net)).norm() / theta(a.net).norm())
    if not difference <= tolerance:
        raise LawBroken(f"{message} (relative difference {difference:.1e})")


def _changed(layer: Algorithm) -> set[str]:
    return {arrow for arrow in ARROWS if getattr(type(layer), arrow) is not getattr(Algorithm, arrow)}


class _Probe(ERM):
    """ERM that notes which arrows were reached."""

    def __init__(self) -> None:
        super().__init__()
        self.reached: set[str] = set()

    def build(self, task: Task) -> Network:
        self.reached.add("build")
        return super().build(task)

    def forward(self, batches: Sequence[Batch]) -> Outputs:
        self.reached.add("forward")
        return super().forward(batches)

    def loss(self, out: Outputs) -> Tensor:
        self.reached.add("loss")
        return super().loss(out)

    def gradient(self, objective: Objective, batches: Sequence[Batch]) -> tuple[Tensor, ParamVector]:
        self.reached.add("gradient")
        return super().gradient(objective, batches)

    def update(self, direction: Direction, batches: Sequence[Batch]) -> Log:
        self.reached.add("update")
        return super().update(direction, batches)

    def predict(self, x: Tensor) -> Tensor:
        self.reached.add("predict")
        return super().predict(x)


class _Twice(Algorithm):
    """Evaluates the objective and the gradient twice at the same point and compares bits."""

    comparing = False

    def gradient(self, objective: Objective, batches: Sequence[Batch]) -> tuple[Tensor, ParamVector]:
        if not self.comparing:
            return self.base.gradient(objective, batches)
        values = [objective(batches).detach() for _ in range(2)]
        (_, g), (_, again) = self.base.gradient(objective, batches), self.base.gradient(objective, batches)
        if not torch.equal(*values) or any(not torch.equal(g[n], again[n]) for n in g):
            raise LawBroken(
                f"law 2: {describe(self.base)} is not the same function twice in one step; draw random numbers from "
                "torch alone and change state only through self.stage"
            )
        return self.base.gradient(objective, batches)

"""The laws that make algorithms combine, as a check for ours and for yours.

    from dspreg.testing import check_algorithm

    def test_mine():
        check_algorithm(LogitNorm)

1. Reach your base: an overridden arrow calls the same arrow of `self.base` and uses what it returns.
2. The objective is a function: two evaluations in one step agree to the bit, and nothing changes before the step ends.
3. One domain is a domain too: a step on a single batch is finite.
4. Across arrows, order does not matter: a layer that changes other arrows may stand above or below.
5. Everything that lives longer than a step is in `state_dict`: save, load, continue gives the same bits.
6. What predicts is what is saved: a fresh stack that loads the model's tensors gives the same logits.
7. `measured` is a differentiable function of the parameters that are trained: above and below DSP-Reg c is not 0.

And what the rest relies on: equal keys give equal bits; the constructor records its options, so that a spec string
round-trips; soft labels are accepted.
"""

from __future__ import annotations

import inspect
import pkgutil
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from dspreg.algorithms import CORAL, ERM, SAM, Algorithm, DSPReg, Fish, SourceValidation, describe, parse
from dspreg.algorithms.compatibility import ARROWS, arrows_of, require_compatible
from dspreg.batches import Batch
from dspreg.errors import ConfigError, DspregError, Notice
from dspreg.testing.probes import LawBroken, Twice, nudge
from dspreg.testing.toy import IMAGE, INPUTS, Shape, ready, toy_batches, toy_task
from dspreg.training import train_step
from dspreg.training.model import load_tensors, tensors_of
from dspreg.training.serialization import pack, unpack
from dspreg.vectors import theta

Make = Callable[[Algorithm | None], Algorithm]


@dataclass(frozen=True)
class Problem:
    """What the laws are looked at on."""

    inputs: Shape

    def ready(self, algorithm: Algorithm, *, key: str = "toy", **options: Any) -> Algorithm:
        return ready(algorithm, replace(toy_task(inputs=self.inputs), key=(key,)), **options)

    def batches(self, t: int, **options: Any) -> list[Batch]:
        return toy_batches(t, inputs=self.inputs, **options)


def check_algorithm(algorithm: type[Algorithm] | str, *, images: bool = False, **options: Any) -> None:
    """Raise `LawBroken` unless the algorithm, alone and in small stacks, keeps the laws.

    Args:
        algorithm: A class, whose `options` are keyword arguments, or the spec of a whole stack.
        images: On small images and a convolutional network; for algorithms that vectors mean nothing to.
    """
    if not isinstance(algorithm, (str, type)):
        raise TypeError(f"check_algorithm wants a class or a spec, not {type(algorithm).__name__}")
    if isinstance(algorithm, str) and options:
        raise TypeError("options of a spec stand in the spec")

    if not isinstance(algorithm, str):
        records_its_options(algorithm, options)
    check_laws(maker(algorithm, **options), Problem(IMAGE if images else INPUTS), LAWS)


def check_laws(make: Make, problem: Problem, laws: Iterable[str]) -> None:
    for name in laws:
        with explained(name):
            LAWS[name](make, problem)


def maker(algorithm: type[Algorithm] | str, **options: Any) -> Make:
    """A function that makes the stack anew around another bottom."""

    def make(base: Algorithm | None = None) -> Algorithm:
        if isinstance(algorithm, str):
            stack = parse(algorithm)
            above_erm = list(stack.layers())[:-1]
            if base is None or not above_erm:
                return base or stack
            above_erm[-1].base = base
            return stack
        return algorithm(base, **options) if not issubclass(algorithm, ERM) else base or algorithm(**options)

    return make


@contextmanager
def explained(law: str) -> Iterator[None]:
    """Any other exception on the way is told with the law that was looked at."""
    try:
        yield
    except (LawBroken, DspregError):
        raise
    except Exception as error:
        raise LawBroken(f"{law}: raised {type(error).__name__}: {error}") from error


def records_its_options(cls: type[Algorithm], options: dict[str, Any]) -> None:
    for name, parameter in inspect.signature(cls).parameters.items():
        if name == "base":
            continue
        if parameter.kind is not parameter.KEYWORD_ONLY:
            raise LawBroken(f"the option {name!r} of {cls.__name__} must be keyword-only: put it behind a *")
        given = options.get(name, parameter.default)
        trials = [given] + ([given * 0.5] if isinstance(given, float) else [])
        for value in trials:
            made = cls(**{**options, name: value})
            if getattr(made, name, made) != value:
                raise LawBroken(f"the constructor must store every option under its own name: self.{name} = {name}")


def reads_back(make: Make, _: Problem) -> None:
    stack = make(None)
    if not all(_importable(type(layer)) for layer in stack.layers()):
        return  # a class of a notebook or inside a function has no import path
    text = describe(stack)
    if (again := describe(parse(text))) != text:
        raise LawBroken(f"the spec does not round-trip: {text!r} became {again!r}")


def _importable(cls: type) -> bool:
    try:
        return pkgutil.resolve_name(f"{cls.__module__}.{cls.__qualname__}") is cls
    except (ImportError, AttributeError, ValueError):
        return False


def repeats(make: Make, problem: Problem) -> None:
    one, two = problem.ready(make(None)), problem.ready(make(None))
    for t in range(2):
        train_step(one, problem.batches(t))
        train_step(two, problem.batches(t))
    _equal(one, two, 0.0, "two equal runs differ; draw random numbers from torch alone")


def reaches_its_base(make: Make, problem: Problem) -> None:
    excused = frozenset[str]().union(*(layer.compatibility.replaces for layer in make(None).layers()))

    def outcome(base: Algorithm) -> tuple[Algorithm, Tensor, Tensor]:
        # plain SGD: Adam would hide a gradient of another length
        stack = problem.ready(make(base), optimizer=lambda p: torch.optim.SGD(p, lr=0.1))
        train_step(stack, problem.batches(0))
        return stack, theta(stack.net).flat(), stack.eval().predict(problem.batches(1)[0].x).detach()

    for arrow in (*ARROWS, "predict"):
        if arrow in excused:
            continue
        (stack, *plain), (_, *nudged) = outcome(nudge()), outcome(nudge(arrow))
        if all(torch.equal(a, b) for a, b in zip(plain, nudged, strict=True)):
            raise LawBroken(
                f"law 1: {describe(stack)} does not use its base's {arrow}; call self.base.{arrow}(…) in it and build "
                "on the result, or say that it replaces it: compatibility = Compatibility(replaces=frozenset({…}))"
            )


def objective_is_a_function(make: Make, problem: Problem) -> None:
    for t in range(3):
        twice = Twice(make(None))
        stack = problem.ready(twice)
        for earlier in range(t):
            train_step(stack, problem.batches(earlier))
        twice.comparing = True
        train_step(stack, problem.batches(t))


def takes_one_domain(make: Make, problem: Problem) -> None:
    stack = problem.ready(make(None))
    before = theta(stack.net)
    log = train_step(stack, problem.batches(0)[1:2])
    if not all(torch.isfinite(value).all() for value in [*log.values(), *theta(stack.net).values()]):
        raise LawBroken(f"law 3: {describe(stack)} on a single domain is not finite; terms between domains must vanish")
    if float((theta(stack.net) - before).norm()) == 0:
        raise LawBroken(f"law 3: {describe(stack)} on a single domain does not move")


def takes_soft_labels(make: Make, problem: Problem) -> None:
    hard, soft = problem.ready(make(None)), problem.ready(make(None))
    train_step(hard, problem.batches(0))
    train_step(soft, problem.batches(0, soft=True))
    _equal(hard, soft, 1e-9, "soft labels: one-hot ones give another step than the same hard labels")


def commutes_across_arrows(make: Make, problem: Problem) -> None:
    changed = {arrow for layer in make(None).layers() if not isinstance(layer, ERM) for arrow in arrows_of(type(layer))}
    partners: dict[str, Make] = {"loss": CORAL, "gradient": SAM, "update": Fish}
    for arrow, partner in partners.items():
        if arrow in changed:  # within one arrow the outer layer acts around the inner one
            continue
        above, below = problem.ready(partner(make(None))), problem.ready(make(partner(None)))
        for t in range(2):
            train_step(above, problem.batches(t))
            train_step(below, problem.batches(t))
        _equal(above, below, 1e-9, f"law 4: {describe(above)} and {describe(below)} take different steps")


def is_saved_whole(make: Make, problem: Problem) -> None:
    straight = problem.ready(make(None))
    for t in range(3):
        train_step(straight, problem.batches(t))
        report(straight)
    (state, optimizer), _ = unpack(pack((dict(straight.state_dict()), straight.stack.optimizer.state_dict())), "law 5")
    resumed = problem.ready(make(None))
    resumed.load_state_dict(state)
    resumed.stack.optimizer.load_state_dict(optimizer)
    for t in range(3, 8):
        for stack in (straight, resumed):
            train_step(stack, problem.batches(t))
            report(stack)
    _equal(straight, resumed, 0.0, "law 5: after save, load and continue weights differ; is some state not saved?")
    x = problem.batches(8)[0].x
    if not torch.equal(*(stack.eval().predict(x) for stack in (straight, resumed))):
        raise LawBroken("law 5: after save, load and continue predictions differ; is some state not saved?")


def report(stack: Algorithm) -> None:
    """An evaluation, with figures that differ from step to step and from domain to domain."""
    domains, t = stack.task.domains, stack.t
    accuracy = {name: 1 / (2 + d + t % 3) for d, name in enumerate(domains)}
    validation = SourceValidation(t - 1, accuracy, {n: 1 - a for n, a in accuracy.items()})
    for layer in stack.layers():
        stack.stack.report_validation_below(layer, validation)
    stack.stack.report_validation(validation)


def predicts_what_is_saved(make: Make, problem: Problem) -> None:
    trained = problem.ready(make(None))
    for t in range(3):
        train_step(trained, problem.batches(t))
        report(trained)
    loaded = problem.ready(make(None), key="another")  # from other weights: what is not loaded differs
    (tensors, steps), _ = unpack(pack((tensors_of(trained), trained.t)), "law 6")
    load_tensors(loaded, tensors, "law 6")
    loaded.stack.steps = steps
    for batch in problem.batches(4):
        if not torch.equal(trained.eval().predict(batch.x), loaded.eval().predict(batch.x)):
            raise LawBroken(
                f"law 6: after save and load {describe(trained)} predicts something else; what a prediction needs is a "
                "module or a buffer of the layer, or named in saved_attributes"
            )


def measures_the_network(make: Make, problem: Problem) -> None:
    def penalty(base: Algorithm | None) -> DSPReg:
        # an engine that hands the objective down as it is: what is below may need the outputs in it
        return DSPReg(base, refresh_steps=1, measure_batches=1, engine="lookahead")

    for stack in (penalty(make(None)), make(penalty(None))):
        layer = next(each for each in stack.layers() if isinstance(each, DSPReg) and each.refresh_steps == 1)
        try:
            require_compatible(tuple(stack.layers()))
        except ConfigError:
            continue  # refused in this order, and the order that works is looked at as well
        problem.ready(stack)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", Notice)  # about the size of a penalty, which means nothing here
                for t in range(2):
                    train_step(stack, problem.batches(t))
        except ConfigError as error:
            raise LawBroken(f"law 7: {describe(stack)}: {error}") from error
        if not layer.c or not bool(layer.c.flat().any()):
            raise LawBroken(
                f"law 7: in {describe(stack)} c is 0 everywhere: what `measured` returns must depend on the parameters "
                "of self.net; return self.base.measured(batch) in it to measure the network that is trained"
            )


LAWS = {
    "the spec": reads_back,
    "equal keys": repeats,
    "law 1": reaches_its_base,
    "law 2": objective_is_a_function,
    "law 3": takes_one_domain,
    "soft labels": takes_soft_labels,
    "law 4": commutes_across_arrows,
    "law 5": is_saved_whole,
    "law 6": predicts_what_is_saved,
    "law 7": measures_the_network,
}


def _equal(a: Algorithm, b: Algorithm, tolerance: float, message: str) -> None:
    difference = float((theta(a.net) - theta(b.net)).norm() / theta(a.net).norm())
    if not difference <= tolerance:
        raise LawBroken(f"{message} (relative difference {difference:.1e})")

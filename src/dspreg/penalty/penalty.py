"""`Penalty`: DSP-Reg in your own training loop."""

from __future__ import annotations

import glob
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn

from dspreg.errors import ConfigError
from dspreg.penalty.closures import EARLIER, REENTRANT, Closure, ClosureTangent, Passes
from dspreg.penalty.coefficients import Coefficients
from dspreg.penalty.engine_spec import parse_engine
from dspreg.penalty.engines import (
    Figures,
    Memory,
    Step,
    exact,
    figures,
    finite_difference,
    gauss_newton,
    inner_of,
    kind_of,
    part_of,
    refuse_half_precision,
    takes_plain,
)
from dspreg.penalty.forward_state import Reached
from dspreg.penalty.wrappers import DdpProcesses, is_compiled, refuse_shards, runs_in_threads, unwrap
from dspreg.sensitivity import Profile, measure
from dspreg.sensitivity.running import RunningSensitivity
from dspreg.specs import DEFAULT_ENGINE
from dspreg.vectors import ParamVector, Patterns, trainable


class Penalty:
    """λ Σ_k c_k (∂_k L)², in a training loop of your own.

        penalty = dspreg.Penalty(model, weight=1e-3)
        for step, (x, y) in enumerate(loader):
            if step % 200 == 0:
                penalty.refresh({"photo": photos, "art": paintings})    # loaders of (x, y), at least two
            loss = penalty.backward(lambda: criterion(model(x), y))     # instead of loss.backward()
            optimizer.step(); optimizer.zero_grad()

    c is 1 until `refresh` measures it, or until `coefficients` are set.

    Args:
        model: Any network; compiled, or wrapped in DistributedDataParallel, as it is called in the closures.
        weight: λ. An attribute that may be changed at any time. 0 is `loss.backward()`.
        engine: `"finite_difference"`, `"exact"`, `"gauss_newton"`, `"lookahead"`, `"momentum"`, `"lazy(30)"`, …; see
            `dspreg.penalty.engines`. `exact` differentiates the paper's formula and takes as long as three passes or
            more, `finite_difference` is the same to rounding and takes two. A compiled model needs one of the others;
            checkpointing and parameters in half precision need `exact`. `gauss_newton` takes two passes, and closures
            that return `(loss, logits)`.
        only, exclude: Which parameters are penalised, by shell patterns on their names. The others have c = 0.
        warmup: Steps before the penalty is added.
        refresh_memory: With m > 0, c is of a running mean of s over refreshes, each counting m times as much as the
            next, so that each can be on fewer images. 0: c of the last refresh alone.

    `refresh_seconds` and `backward_seconds` are what both have taken so far, on the wall clock.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        weight: float = 1e-3,
        engine: str = DEFAULT_ENGINE,
        only: Patterns = None,
        exclude: Patterns = None,
        warmup: int = 0,
        refresh_memory: float = 0.0,
    ):
        if not isinstance(model, nn.Module):
            raise ConfigError(f"the model is a {type(model).__name__}; wanted an nn.Module")
        if not isinstance(warmup, int) or isinstance(warmup, bool) or warmup < 0:
            raise ConfigError(f"warmup={warmup!r}; wanted a number of steps ≥ 0")
        refuse_shards(model)
        self.model, self.net = model, unwrap(model)
        self.weight, self.warmup = weight, warmup
        self.engine, self._engine = engine, parse_engine(engine)
        self.steps = 0  # taken so far
        self.profile: Profile | None = None  # of the last refresh
        self.record: Figures | None = None  # of the last `backward(…, record=True)`
        self.refresh_seconds = self.backward_seconds = 0.0
        self._running = RunningSensitivity(refresh_memory)
        self._processes = DdpProcesses(model)
        self._reached = Reached(hooks=not is_compiled(model))
        self._memory = Memory()
        self._c = Coefficients(self.net, only, exclude)
        self._check_engine()

    @property
    def weight(self) -> float:
        """λ. May be changed at any time."""
        return self._weight

    @weight.setter
    def weight(self, weight: float) -> None:
        self._weight = _check_weight(weight)

    @property
    def coefficients(self) -> ParamVector:
        """c by parameter name, without `module.` or `_orig_mod.`. Set it to any mapping from name to tensor."""
        return self._c.by_plain_name()

    @coefficients.setter
    def coefficients(self, c: Mapping[str, Tensor]) -> None:
        self._c.set(c)

    def refresh(self, domains: Mapping[str, Iterable[Any]], **options: Any) -> Profile:
        """Measure c anew: `dspreg.measure(model, domains, **options)`, kept as `profile`.

        With `refresh_memory`, `coefficients` are those of all refreshes so far, and the profile is of this one.

        With DDP, every process passes its own batches of the same domains, and all get the same c.
        """
        if own := sorted({"only", "exclude"} & options.keys()):
            raise ConfigError(f"{own[0]}= is set once, by Penalty(model, {own[0]}=…), and not at a refresh")
        started = time.perf_counter()
        options.setdefault("key", self.steps)
        # per-sample gradients are computed layer by layer, so the layers must be visible
        eager = torch.compiler.set_stance("force_eager") if is_compiled(self.model) else nullcontext()
        with eager:
            names = [glob.escape(name) for name in self._c.names().values()]
            profile = measure(self.net, domains, only=names, group=self._processes.group, **options)
        if self._running.memory:
            self._running.add({domain: ParamVector(self._by_plain_name(s)) for domain, s in profile.s.items()})
            self.coefficients = self._running.c(options.get("eps", 0.0))
        else:
            self.coefficients = self._by_plain_name(profile.c)
        self.profile = profile
        self.refresh_seconds += time.perf_counter() - started
        return profile

    def backward(
        self, closure: Closure | Sequence[Closure], *, scaler: torch.amp.GradScaler | None = None, record: bool = False
    ) -> Any:
        """Add ∇(L + λR) to `.grad`, as `loss.backward()` adds ∇L, and return L.

        Args:
            closure: Computes the loss. It may be called more than once in a step, with the same random numbers. A
                list of closures is one batch in parts: L is the **sum** of what they return, so scale each, as with
                repeated `loss.backward()`.
            scaler: Closures return unscaled losses; `.grad` is then scaled, ready for `scaler.step(optimizer)`.
            record: Also compute L, R and the penalty's part of the gradient, for `self.record`. May cost a pass.

        Returns:
            L at θ, detached (with engine `"momentum"`: at the displaced point). If the closure returns
            `(loss, anything)`, the pair of L and that; for a list of closures, a list of them.
        """
        started = time.perf_counter()
        closures = _check_closures(closure)
        if torch.is_inference_mode_enabled():
            raise ConfigError(
                "inference mode is on, in which nothing has a gradient; leave it before penalty.backward()"
            )
        self.record = None if record else self.record  # during warm-up there is nothing to record
        plain = not self.weight or self.steps < self.warmup
        kind = kind_of(inner_of(self._engine))
        exactly = kind_of(self._engine) is exact and not takes_plain(self._engine)
        passes = Passes(
            self.net, self._processes, self._reached, 1.0 if scaler is None else self._scale(scaler),
            once=plain or (exactly and not self._in_parts(closures)),
            by_grad=not plain and kind in (exact, gauss_newton),
        )  # fmt: skip
        with self._processes.synchronised():
            if plain:
                loss, total = passes.gradient(passes.loss, closures)
                passes.add(total)
            else:
                loss = self._add_penalised(passes, closures, record)
        self._reached.new = False
        self._memory.commit()
        self.steps += 1
        self.backward_seconds += time.perf_counter() - started
        if not any(passes.others):
            return loss
        others = [each[0] if len(each) == 1 else tuple(each) for each in passes.others]
        return loss, others if isinstance(closure, Sequence) else others[0]

    def _add_penalised(self, passes: Passes, closures: Sequence[Closure], record: bool) -> Tensor:
        step = Step(
            passes.gradient, passes.loss, closures, self.net, self._c.current(), self.weight, self._memory,
            keeps_plain=record, second=passes.second if self._in_parts(closures) else None,
            linearise=lambda _, some: ClosureTangent(passes, some, keeps_graph=not is_compiled(self.model)),
            sample=partial(passes.sample, closures, ("Penalty", self.steps)),
        )  # fmt: skip
        try:
            result = self._engine(step)
            if passes.scale != 1:  # a step that the scaler will skip must not enter the mean
                self._memory.seen = [(g, beta) for g, beta in self._memory.seen if torch.isfinite(g.norm())]
            if record:
                self.record = figures(step, result, self._engine)
        except BaseException as error:
            self._memory.seen = []
            for said, message in _REFUSALS.items():
                if said in str(error):
                    raise ConfigError(message) from error
            raise
        finally:
            passes.finish()
        passes.add(result.gradient)
        return result.loss

    def _in_parts(self, closures: Sequence[Closure]) -> bool:
        """Whether L is a sum over closures or processes."""
        return len(closures) > 1 or self._processes.ddp is not None

    def _scale(self, scaler: torch.amp.GradScaler) -> float:
        # by scaling a number: a scaler that has never scaled anything refuses to step
        return float(scaler.scale(torch.ones((), device=next(self.net.parameters()).device)))

    def state_dict(self) -> dict[str, Any]:
        """What a resumed training needs: tensors, numbers and names."""
        mean = {plain: t.clone() for plain, t in self._by_plain_name(self._memory.mean).items()}
        memory = {"mean": mean, "mass": self._memory.mass, "steps": self._memory.steps}
        c = None if self._c.values is None else dict(self.coefficients)
        state = {"engine": self.engine, "steps": self.steps, "coefficients": c, "memory": memory}
        return state | ({"running": self._running.state_dict()} if self._running.memory else {})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state["engine"] != self.engine:
            raise ConfigError(
                f"the state is of engine {state['engine']!r}, but this penalty uses {self.engine!r}. To go on as "
                f"before: Penalty(…, engine={state['engine']!r})"
            )
        if state["coefficients"] is None:
            self._c.values = None
        else:
            self.coefficients = state["coefficients"]
        params, names, memory = trainable(self.net), self._c.names(), state["memory"]
        mean = {names[n]: t.to(params[names[n]].device, copy=True) for n, t in memory["mean"].items() if n in names}
        self._memory, self.steps = Memory(memory["steps"], ParamVector(mean), memory["mass"]), state["steps"]
        if self._running.memory:
            if "running" not in state:
                raise ConfigError("the state is of a penalty without refresh_memory; load it into one without it")
            place = lambda s: ParamVector((n, t.to(params[names[n]].device, copy=True)) for n, t in s.items())  # noqa: E731
            self._running.load_state_dict(state["running"], place)

    def _by_plain_name(self, vector: ParamVector) -> dict[str, Tensor]:
        return {plain: vector[name] for plain, name in self._c.names().items() if name in vector}

    def _check_engine(self) -> None:
        kind = kind_of(inner_of(self._engine))
        if kind in (exact, finite_difference) and is_compiled(self.model):
            raise ConfigError(_COMPILED if kind is exact else _COMPILED_KINKS)
        if kind is finite_difference and runs_in_threads(self.model):
            raise ConfigError(
                "engine 'finite_difference' holds every ReLU on its side, and DataParallel computes in threads of its "
                "own, out of its sight. Use DistributedDataParallel, one GPU, or engine 'exact' or 'lookahead'"
            )
        if kind is finite_difference and part_of(self._engine) < 1:
            raise ConfigError(
                f"engine {self.engine!r} needs to know the samples of a batch, as DSPReg does, and closures hide "
                "them. Use 'finite_difference', or 'exact(part=…)' or 'gauss_newton(part=…)' with a list of closures"
            )
        refuse_half_precision(self.net, self._engine, self.engine)


_COMPILED = (
    "engine 'exact' differentiates twice, which torch.compile cannot. Use engine 'lookahead', 'gauss_newton', "
    "'momentum' or 'lazy(30)', or the model before it was compiled"
)
_COMPILED_KINKS = (
    "engine 'finite_difference' holds every ReLU on its side, and those of a compiled model are out of its sight. Use "
    "engine 'gauss_newton', 'lookahead', 'momentum' or 'lazy(30)', or the model before it was compiled"
)
_COMPILED_ONCE = (
    "engine 'gauss_newton' goes back twice through a graph, which a compiled function allows once. Compile the model "
    "alone, and pass the compiled model to Penalty"
)

_REFUSALS = {  # what torch says → what to do
    "does not currently support double backward": _COMPILED,
    "donated buffer": _COMPILED_ONCE,
    "use_reentrant=True": REENTRANT,
    "backward through the graph a second time": EARLIER,
}

MAX_WEIGHT = torch.finfo(torch.float32).max


def _check_weight(weight: Any) -> float:
    if isinstance(weight, Tensor) and weight.numel() == 1 and weight.dtype != torch.bool:
        weight = weight.item()
    if isinstance(weight, bool) or not isinstance(weight, Real):
        raise ConfigError(f"weight={weight!r} is a {type(weight).__name__}; wanted a number ≥ 0, such as 1e-3")
    number = float(weight)
    if not 0 <= number <= MAX_WEIGHT:  # nor is NaN
        raise ConfigError(f"weight={number}; wanted a finite number ≥ 0 that float32 can hold, such as 1e-3")
    return number


def _check_closures(closure: Any) -> Sequence[Closure]:
    closures = closure if isinstance(closure, Sequence) else [closure]
    for one in closures:
        if isinstance(one, Tensor) or not callable(one):
            what = "a computed loss" if isinstance(one, Tensor) else f"a {type(one).__name__}"
            raise ConfigError(
                f"penalty.backward was given {what}; wanted a function that computes it, since it may be called twice: "
                "penalty.backward(lambda: criterion(model(x), y))"
            )
    if not closures:
        raise ConfigError("penalty.backward was given an empty list; wanted at least one closure")
    return closures

"""DSP-Reg, the paper: penalise the gradient of parameters whose sensitivity differs between domains."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from dspreg.algorithms.base import Algorithm, Direction, Log, to_param_device
from dspreg.algorithms.compatibility import ONLY_CLASSES, Compatibility, overrides
from dspreg.algorithms.measure import BATCHES, Function, measuring, refresh_due
from dspreg.algorithms.task import Task
from dspreg.batches import Batch, Objective, OutputObjective, at_least_float32
from dspreg.distributions import Choice, LogUniform
from dspreg.errors import ConfigError, Notice
from dspreg.networks import Network
from dspreg.penalty import (
    Memory,
    Penalised,
    Step,
    figures,
    finite_difference,
    inner_of,
    kind_of,
    momentum,
    parse_engine,
    part_of,
    refuse_half_precision,
    takes_plain,
)
from dspreg.penalty.tangent import Sample, StackTangent, sample_batches
from dspreg.randomness import generator
from dspreg.sensitivity import Meter, Profile
from dspreg.sensitivity.controls import reverse_ranks, shuffle, shuffle_matched
from dspreg.sensitivity.measure import build_profile
from dspreg.sensitivity.meter import check_settings
from dspreg.sensitivity.profile import layer_of, upper_quantile
from dspreg.sensitivity.refresh import measure_c_and_mean, measure_s
from dspreg.sensitivity.running import RunningSensitivity
from dspreg.sensitivity.samples import Samples
from dspreg.specs import DEFAULT_ENGINE, FILE_DEFAULTS
from dspreg.vectors import ParamVector, average, trainable

COEFFICIENTS = ("dynamic", "static", "ones", "mean", "shuffled", "matched", "reversed", "hard")
COMPILED = "give it engine='lookahead', 'momentum' or 'lazy(30)'"
NOT_COMPILED = {  # engine → why the network can't be compiled
    "exact": f"with engine 'exact' differentiates twice, which torch.compile does not: {COMPILED}",
    "gauss_newton": f"with engine 'gauss_newton' goes through the graph twice, which torch.compile hides: {COMPILED}",
    "finite_difference": f"with engine 'finite_difference' holds every ReLU, which torch.compile hides: {COMPILED}",
}
ON_NO_SCHEDULE = {"static": "measures c once, before step 0", "ones": "never measures c"}


class DSPReg(Algorithm):
    """Penalise the gradient of parameters whose sensitivity differs between domains.

        L + λ Σ_k c_k (∂_k L)²        c_k = √(Var_d s_k^(d)) / (mean_d s_k^(d) + ε)

    L is the objective below, over ERM the paper's L_sup on the batch; s^(d) is measured on source domain d
    (`dspreg.measure`). c starts at 1 and is measured anew before the first step of every T-th epoch, as Algorithm 1
    has it: before steps (mT − 1)·E, m = 1, 2, …, where E steps make an epoch.

    Args:
        weight: λ. With 0 the step is bitwise identical to that of the base, and nothing is measured.
        refresh_epochs: T_update, in epochs.
        refresh_steps: Measure before steps S, 2S, … instead.
        measure_batches: Batches of 32 images per domain to measure on. With 4 the ranks of c have a reliability of
            0.7 on PACS, with 16 of 0.83 (`python bench/noise.py`; docs/understand/engines.md).
        refresh_memory: With m > 0, c is of a running mean of s over refreshes: each counts m times as much as the next.
            Refreshes can then be on fewer images: measure_batches=4, refresh_memory=0.75 for a quarter of the price.
        draws: Sign draws per batch, for `estimator="signed"`.
        engine: How the penalty's gradient is computed: `"finite_difference"` (that of `"exact"` to rounding, in two ERM
            steps instead of three or more), `"finite_difference(part=0.5)"`, `"exact"`, `"gauss_newton"`,
            `"gauss_newton(part=0.5)"`, `"lookahead"`, `"lookahead(radius=0.2*weight)"`, `"momentum(beta=0.9)"` (another
            objective), `"lazy(30)"`, `"lazy(30, exact)"`. What each costs, and how near it is to `exact`:
            docs/understand/engines.md.
        estimator, of, eps: How c is measured; see `dspreg.measure`.
        only, exclude: Which parameters are penalised, by patterns on their names. The others have c = 0.
        warmup: Steps before the penalty counts.
        coefficients: `"dynamic"` as above; `"static"`: measured once, before step 0; `"ones"`: c = 1, a plain gradient
            penalty; `"mean"`: the mean of c everywhere; `"shuffled"`: c permuted within each tensor, the control that
            tells c from any gradient penalty; `"matched"`: permuted within each tensor and decile of s̄, so that
            parameters of equal sensitivity exchange their c; `"reversed"`: within each tensor the largest c where the
            smallest was; `"hard"`: 1 where c is at least its `quantile`, else 0.
        quantile: For `"hard"`.

    The penalty's gradient is 2λ·H(c⊙g), a Hessian-vector product. Changes `gradient`, and `update` for the refresh.
    """

    space = {"weight": LogUniform(-4, -1), "refresh_epochs": Choice(1, 2, 3, 4)}
    step_options = ("warmup",)
    saved_attributes = ("c", "refreshed_at")
    file_defaults = FILE_DEFAULTS["DSPReg"]

    def __init__(
        self,
        base: Algorithm | None = None,
        *,
        weight: float = 1e-3,
        refresh_epochs: int = 2,
        refresh_steps: int | None = None,
        measure_batches: int = BATCHES,
        refresh_memory: float = 0.0,
        draws: int | None = None,
        engine: str = DEFAULT_ENGINE,
        estimator: str = "persample",
        of: str = "loss",
        eps: float = 0.0,
        only: str | list[str] | None = None,
        exclude: str | list[str] | None = None,
        warmup: int = 0,
        coefficients: str = "dynamic",
        quantile: float = 0.9,
    ):
        super().__init__(base)
        check_settings(of, estimator, draws)
        if coefficients not in COEFFICIENTS:
            raise ConfigError(f"coefficients={coefficients!r}; wanted one of {', '.join(map(repr, COEFFICIENTS))}")
        if not 0 <= weight < float("inf"):
            raise ConfigError(f"weight={weight}; wanted a finite number ≥ 0")
        if not 0 <= quantile <= 1:
            raise ConfigError(f"quantile={quantile}; wanted a number from 0 to 1")
        counts = {"refresh_epochs": refresh_epochs, "refresh_steps": refresh_steps, "measure_batches": measure_batches}
        for name, value in counts.items():
            if value is not None and not (value >= 1 and value == int(value)):
                raise ConfigError(f"{name}={value}; wanted a whole number, at least 1")
        if refresh_steps is not None and coefficients in ON_NO_SCHEDULE:
            what = f"coefficients={coefficients!r}, which {ON_NO_SCHEDULE[coefficients]}"
            raise ConfigError(f"refresh_steps={refresh_steps} does nothing with {what}; leave it out")
        if refresh_memory and coefficients in ON_NO_SCHEDULE:
            what = f"coefficients={coefficients!r}, which {ON_NO_SCHEDULE[coefficients]}"
            raise ConfigError(f"refresh_memory={refresh_memory} does nothing with {what}; leave it out")
        RunningSensitivity(refresh_memory)  # refuses what is no share
        if not 0 <= eps < float("inf"):
            raise ConfigError(f"eps={eps}; wanted a finite number ≥ 0")
        if warmup < 0:
            raise ConfigError(f"warmup={warmup}; wanted a number of steps ≥ 0")
        self.weight, self.warmup = weight, warmup
        self.refresh_epochs, self.refresh_steps = refresh_epochs, refresh_steps
        self.measure_batches, self.draws, self.estimator, self.of, self.eps = measure_batches, draws, estimator, of, eps
        self.refresh_memory = refresh_memory
        self.only, self.exclude = only, exclude
        self.coefficients, self.quantile = coefficients, quantile
        self.engine = engine
        self._engine = parse_engine(engine)
        if weight:
            plain = takes_plain(self._engine)
            self.compatibility = Compatibility(
                replaces=frozenset({"gradient"} if plain else ()),
                option=f"engine {engine!r}" if plain else "",
                not_compiled=NOT_COMPILED.get(kind_of(inner_of(self._engine)).__name__, ""),
            )
        if of == "fisher":
            self.compatibility = replace(self.compatibility, kinds=ONLY_CLASSES, option="of='fisher'")
        self._start()

    def build(self, task: Task) -> Network:
        if self.weight and self.coefficients != "ones" and not task.can_measure:
            raise ConfigError(
                "DSPReg measures c during training: give the Task a `samples` function, or use coefficients='ones'"
            )
        if self.uses_c and task.num_domains < 2:
            raise ConfigError(
                f"DSPReg compares source domains and there is 1: {task.domains[0]}. Give at least two, or use "
                "coefficients='ones'"
            )
        self._start()
        return self.base.build(task)

    def configure_optimizer(self, optimizer: torch.optim.Optimizer) -> None:  # noqa: ARG002
        self.ones()  # a pattern that matches nothing is refused before there is a run
        splits = kind_of(inner_of(self._engine)) is finite_difference and part_of(self._engine) < 1
        if self.weight and splits and (why := couples_samples(self.stack.layers, self.net)):
            raise ConfigError(
                f"engine {self.engine!r} wants a loss that is a mean over samples, each computed by itself, and {why}. "
                "Leave part= out, which would save nothing here"
            )

    def _start(self) -> None:
        self._memory = Memory()
        self._asked_at = -1  # the last step that asked for a gradient
        self._seconds = 0.0  # spent refreshing since the last record
        self._recorded_at: int | None = None
        self._noticed: set[str] = set()
        self.c = ParamVector()  # ones until it is measured
        self._running = RunningSensitivity(self.refresh_memory)
        self._unit = ParamVector()  # these ones, so as not to write them at every step
        self.refreshed_at: int | None = None

    # The coefficients.

    @property
    def uses_c(self) -> bool:
        """Whether c is measured, so that a trainer keeps a profile before and after."""
        return bool(self.weight) and self.coefficients != "ones"

    def due(self, t: int, steps_per_epoch: int | None = None) -> bool:
        """Whether c is measured before step t; the length of an epoch is that of the task, unless there is none yet."""
        match self.coefficients:
            case "ones":
                return False
            case "static":
                return t == 0
        return refresh_due(t, self.refresh_epochs, self.refresh_steps, steps_per_epoch or self.task.steps_per_epoch)

    def update(self, direction: Direction, batches: Sequence[Batch]) -> Log:
        # a layer above, such as Fish, may update several times in one step
        if self.weight and self.due(self.t) and self.refreshed_at != self.t:
            started = time.perf_counter()
            measure = self.remember_c_and_mean if self.refresh_memory else self.measure_c_and_mean
            self.c = self.arrange(*measure())
            self.refreshed_at = self.t
            self.log_event("refresh", layers=by_layer(self.c))
            self._seconds += time.perf_counter() - started
        return self.base.update(direction, batches)

    def measure_c(self) -> ParamVector:
        """c on fresh samples of the source domains."""
        return self.measure_c_and_mean()[0]

    def measure_c_and_mean(self) -> tuple[ParamVector, ParamVector]:
        """c, and the mean over domains s̄ up to a factor for each tensor; s̄ is empty where nothing uses it."""
        with self._measuring() as (meter, f, domains):
            c, mean = measure_c_and_mean(meter, f, domains, self.eps, keeps_mean=self.coefficients == "matched")
        return c.map(lambda c, one: c.to(one.dtype), self.ones()), mean

    def remember_c_and_mean(self) -> tuple[ParamVector, ParamVector]:
        """The same of s over this and earlier refreshes."""
        with self._measuring() as (meter, f, domains):
            self._running.add(measure_s(meter, f, domains))
        c = self._running.c(self.eps).map(lambda c, one: c.to(one.dtype), self.ones())
        return c, average(self._running.s.values()) if self.coefficients == "matched" else ParamVector()

    def profile(self) -> Profile:
        """On the samples a refresh at this step takes."""
        with self._measuring() as (meter, f, domains):
            return build_profile(meter, f, domains, eps=self.eps)

    def _measuring(self) -> AbstractContextManager[tuple[Meter, Function, dict[str, list[Samples]]]]:
        how = {"of": self.of, "estimator": self.estimator, "draws": self.draws}
        return measuring(self, self.measure_batches, **how, only=self.only, exclude=self.exclude)

    def ones(self) -> ParamVector:
        """c = 1 for every penalised parameter."""
        params = ParamVector(trainable(self.net)).select(self.only, self.exclude)
        return params.map(lambda p: torch.ones_like(at_least_float32(p.detach())))

    def arrange(self, c: ParamVector, mean_sensitivity: ParamVector | None = None) -> ParamVector:
        """c as the option `coefficients` wants it; `"matched"` needs s̄."""
        match self.coefficients:
            case "mean":
                mean = c.flat().double().mean()
                return c.map(lambda t: torch.full_like(t, float(mean)))
            case "shuffled":
                return ParamVector((name, shuffle(t, self._order(name))) for name, t in c.items())
            case "matched":
                assert mean_sensitivity is not None
                s = mean_sensitivity
                return ParamVector((name, shuffle_matched(t, s[name], self._order(name))) for name, t in c.items())
            case "reversed":
                return c.map(reverse_ranks)
            case "hard":
                threshold = upper_quantile(c, self.quantile)
                return c.map(lambda t: (t >= threshold).to(t.dtype))
        return c

    def _order(self, name: str) -> torch.Generator:
        return generator(*self.task.key, self.t, name, "shuffle")

    # The penalty.

    def gradient(self, objective: Objective, batches: Sequence[Batch]) -> tuple[Tensor, ParamVector]:
        self.stage("_asked_at", self.t)
        if self.stack.first_time(self, "gradient"):
            self._memory.seen = []  # of a step that did not come to its end
        if not self.weight or self.t < self.warmup:
            return self.base.gradient(objective, batches)
        refuse_half_precision(self.net, self._engine, self.engine)
        recording = self.stack.recording and self._recorded_at != self.t  # once, also if a layer above asks again
        step = self.pose(objective, batches, keeps_plain=recording)
        result = self._engine(step)
        if recording:
            self._recorded_at = self.t
            self._record(step, result)
        return result.loss, result.gradient

    def pose(self, objective: Objective, batches: Sequence[Batch], *, keeps_plain: bool = True) -> Step:
        """The problem of this step, as an engine takes it."""
        if not self.c and not self._unit:
            self._unit = self.ones()
        elif self.c and self._unit:
            self._unit = ParamVector()
        c = self.c or self._unit
        step = Step(self.base.gradient, objective, batches, self.net, c, self.weight, self._memory, keeps_plain)
        if not isinstance(objective, OutputObjective):  # a layer above has made something else of it
            return step

        def sample(part: float) -> Sample:
            sample_wise = couples_samples(self.stack.layers, self.net) is None
            return sample_batches(objective, batches, (*self.task.key, self.t), part, sample_wise=sample_wise)

        return replace(step, linearise=partial(StackTangent, net=self.net), sample=sample)

    def _record(self, step: Step, result: Penalised) -> None:
        """L, R, the penalty's share ‖penalty part‖/‖g‖, quantiles of c, its age and the time refreshing took."""
        L, R, part, ratio = figures(step, result, self._engine)
        low, middle, high = np.quantile(step.c.flat().cpu().numpy(), (0.1, 0.5, 0.9)).tolist()
        self.note(L=L, R=R, ratio=ratio, c_10=low, c_50=middle, c_90=high)
        if self.refreshed_at is not None:
            self.note(age=self.t - self.refreshed_at)
        self.note(refresh_seconds=self._seconds)
        self._seconds = 0.0

        mean = self._memory.bias_corrected_mean()
        if mean and part >= mean.norm():
            self._notice(
                "engine 'momentum' has no fixed point here: 2λ·λmax(H·diag c) ≥ 1, so its running mean grows without "
                "bound. Use a smaller weight, or engine 'lookahead'"
            )
        elif ratio > 1:
            self._notice("the penalty's gradient is larger than the loss's; a smaller weight may be meant")
        elif ratio < 1e-3 and (mean or kind_of(inner_of(self._engine)) is not momentum):
            self._notice("the penalty's gradient is less than a thousandth of the loss's; it changes next to nothing")

    def _notice(self, text: str) -> None:
        if text not in self._noticed:
            self._noticed.add(text)
            warnings.warn(f"DSPReg, step {self.t}: {text}", Notice, stacklevel=2)

    # What lives longer than a step.

    def on_step_end(self) -> None:
        # steps of an adversary do not count: every second one may be, and `lazy(2)` would miss all
        if self._asked_at == self.t:
            self._memory.commit()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> DSPReg:
        super()._apply(fn, recurse)
        self.c = self.c.map(at_least_float32)
        self._memory.mean = self._memory.mean.map(fn)
        self._running.map(lambda s: at_least_float32(fn(s)))
        self._unit = ParamVector()
        return self

    def get_extra_state(self) -> dict[str, Any]:
        memory = {"mean": dict(self._memory.mean), "mass": self._memory.mass, "steps": self._memory.steps}
        running = {"running": self._running.state_dict()} if self.refresh_memory else {}
        return super().get_extra_state() | {"memory": memory} | running

    def set_extra_state(self, state: dict[str, Any]) -> None:
        super().set_extra_state(state)
        memory = state["memory"]
        self._memory = Memory(memory["steps"], to_param_device(memory["mean"], self.net), memory["mass"])
        if self.refresh_memory:
            self._running.load_state_dict(state["running"], partial(to_param_device, net=self.net))


def couples_samples(layers: Sequence[Algorithm], net: Network) -> str | None:
    """Why the loss of a stack is not a mean over samples that are computed one by one; None if it is."""
    for layer in layers[:-1]:
        for arrow in ("forward", "loss"):
            if overrides(type(layer), arrow):
                return f"{type(layer).__name__} has its own {arrow}"
    for name, module in net.named_modules():
        if isinstance(module, _BatchNorm) and (module.training or not module.track_running_stats):
            return f"{name} is batch norm that uses the statistics of a batch"
        if module.training and (getattr(module, "drop_prob", 0) or (isinstance(module, _DropoutNd) and module.p)):
            return f"{name} drops at random"
    return None


def by_layer(c: ParamVector) -> dict[str, dict[str, float]]:
    """Mean, median and largest c of every layer."""
    layers: dict[str, list[Tensor]] = {}
    for name, tensor in c.items():
        layers.setdefault(layer_of(name), []).append(tensor.reshape(-1).double())
    joined = {layer: torch.cat(parts) for layer, parts in layers.items()}
    return {
        layer: {"mean": float(v.mean()), "median": float(v.median()), "max": float(v.max())}
        for layer, v in joined.items()
    }

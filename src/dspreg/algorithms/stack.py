"""What all layers of one stack share: the task, the optimiser, and the life of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from dspreg.algorithms.task import SourceValidation, Task
from dspreg.batches import Batch, Outputs
from dspreg.networks.fold_batch_norm import fold_batch_norm
from dspreg.precision import LossScaler
from dspreg.randomness import seeded
from dspreg.vectors import ParamVector, scaled_gradients

if TYPE_CHECKING:
    from dspreg.algorithms.base import ERM, Algorithm, Log
    from dspreg.networks import Network

Optimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
SCALE = "lr_scale"  # timm's word: in a group of parameters, the factor on the learning rate that it has already


@dataclass
class Stack:
    """Made by `setup`, which gives it to every layer."""

    task: Task
    layers: tuple[Algorithm, ...]  # the outermost first, ERM last
    steps: int = 0  # taken so far
    notes: Log = field(default_factory=dict)  # of the current step
    events: list[dict[str, Any]] = field(default_factory=list)  # of the current step
    recording: bool = False  # whether the current step's log is kept, so that costly figures are worth taking
    optimizer: torch.optim.Optimizer = field(init=False)
    scaler: LossScaler | None = None  # in half precision
    folds_batch_norm: bool = False  # whether frozen batch norm is computed within the convolution before it
    skipped: bool = False  # whether a gradient of the current step overflowed, so that it changes nothing but the scale
    # evaluate(f, batches): a function of the whole stack's outputs, such as a loss, with the step's random numbers
    evaluate: Callable[[Callable[[Outputs], Any], Sequence[Batch]], Any] = field(init=False)
    masks: Mapping[str, Tensor] = field(default_factory=dict)  # parameter of the network → entries that are trained
    _rates: Callable[[int], float] | None = None  # step → factor on all learning rates
    _full_rates: list[float] = field(default_factory=list)  # of the optimiser's groups, at a factor of 1
    _fixed: dict[str, Tensor] = field(default_factory=dict)  # values that masked parameters keep
    _staged: dict[tuple[Algorithm, str, int | None], Any] = field(default_factory=dict)
    _done: set[tuple[Algorithm, str]] = field(default_factory=set)  # in the current step

    @property
    def top(self) -> Algorithm:
        """The outermost layer."""
        return self.layers[0]

    def follow(self, rates: Callable[[int], float]) -> None:
        """Multiply learning rates by `rates(t)` in step t, however many steps the optimiser takes in it.

        Called once the optimiser is complete. What a layer sets within a step, as ERMPlusPlus does, counts for it.
        """
        self._rates, self._full_rates = rates, [group["lr"] for group in self.optimizer.param_groups]

    def train_entries(self, masks: Mapping[str, Tensor]) -> None:
        """From now on, entries of these parameters of the network where a mask is False stay as they are, bitwise."""
        params = dict(self.net.named_parameters())
        self.masks = {name: mask.to(params[name].device) for name, mask in masks.items()}
        self._fixed = {name: params[name].detach().clone() for name in masks}

    def masked(self, g: ParamVector) -> ParamVector:
        """A gradient of the network, 0 where an entry is not trained."""
        if not self.masks:
            return g
        return ParamVector((name, t * self.masks[name] if name in self.masks else t) for name, t in g.items())

    @torch.no_grad()
    def _keep_entries(self) -> None:
        params = dict(self.net.named_parameters()) if self.masks else {}
        for name, mask in self.masks.items():
            params[name].copy_(torch.where(mask, params[name], self._fixed[name]))

    @property
    def net(self) -> Network:
        """The network of ERM, at the bottom."""
        return cast("ERM", self.layers[-1]).network

    @contextmanager
    def stepping(self, *, record: bool) -> Iterator[Log]:
        """One step: what was staged is written if it succeeds and dropped if it does not. Yields the notes."""
        self.notes, self.events, self.recording, self._staged, self.skipped = {}, [], record, {}, False
        self._done.clear()
        if self._rates is not None:
            factor = self._rates(self.steps)
            for group, rate in zip(self.optimizer.param_groups, self._full_rates, strict=True):
                group["lr"] = rate * factor
        start = [(p, p.detach().clone()) for p in self.top.parameters()] if self.scaler else []
        try:
            yield self.notes
        except BaseException:
            self._staged.clear()
            raise
        if self.skipped:  # what layers made of such a gradient, parameters as well, is no number
            self._staged.clear()
            self.notes.clear()
            with torch.no_grad():
                for p, value in start:
                    p.copy_(value)
        else:
            self._write_staged()
            self._keep_entries()  # before a layer averages them: others than the optimiser may have moved them
            for layer in self.layers:
                layer.on_step_end()
            self._keep_entries()
        self.steps += 1

    def folding(self) -> AbstractContextManager[None]:
        """What passes through the network run in."""
        return fold_batch_norm() if self.folds_batch_norm else nullcontext()

    def step_optimizer(self) -> None:
        """One step along the `.grad` of the parameters, which are cleared."""
        for name, p in self.net.named_parameters() if self.masks else ():
            if p.grad is not None and name in self.masks:  # so that no moment or norm of the optimiser has them in it
                p.grad *= self.masks[name]
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.skipped |= self.scaler.step(self.optimizer)
        self._keep_entries()  # weight decay moves what has no gradient
        self.optimizer.zero_grad()

    def first_time(self, layer: Algorithm, what: str) -> bool:
        """Whether `layer` asks this for the first time in the current step; arrows may be called several times."""
        before = (layer, what) in self._done
        self._done.add((layer, what))
        return not before

    def stage(self, layer: Algorithm, name: str, value: Any, row: int | None = None) -> None:
        self._staged.setdefault((layer, name, row), value)

    def report_validation_below(self, layer: Algorithm, validation: SourceValidation) -> None:
        """Between two steps: hand the figures of what is below a layer to it, before the stack is evaluated."""
        self.events, self._staged = [], {}
        with seeded(*self.task.key, self.steps, "before evaluation"):
            layer.before_evaluation(validation)
        self._write_staged()

    def report_validation(self, validation: SourceValidation) -> None:
        """Between two steps: hand the figures of an evaluation to every layer."""
        self.events, self._staged = [], {}
        with seeded(*self.task.key, self.steps, "evaluation"):  # a resumed run draws the same numbers
            for layer in self.layers:
                layer.on_evaluation(validation)
        self._write_staged()

    def _write_staged(self) -> None:
        for (layer, name, row), value in self._staged.items():
            if row is None:
                setattr(layer, name, value)
            else:
                getattr(layer, name)[row] = value
        self._staged.clear()


def descend(stack: Stack, loss: Callable[[Outputs], Tensor], parts: nn.Module, batches: Sequence[Batch]) -> Tensor:
    """For `update`: one optimiser step of `parts` alone, on another loss of the stack's outputs. Returns the loss.

    Called after `self.base.update`, it sees the parameters that have moved.
    """
    value: Tensor = stack.evaluate(loss, batches)
    give_gradients(value, parts)
    stack.step_optimizer()
    return value.detach()


def give_gradients(loss: Tensor, parts: nn.Module) -> None:
    """Set `.grad` of these parameters alone, ready for an optimiser's step."""
    params = [p for p in parts.parameters() if p.requires_grad]
    for p, g in zip(params, scaled_gradients(loss, params), strict=True):
        p.grad = g


def regroup(optimizer: torch.optim.Optimizer, params: Iterable[nn.Parameter], **options: Any) -> None:
    """For `configure_optimizer`: give these parameters options of their own; unknown options are left out.

    The network's own parameters stay in the first groups: see `network_groups`.
    """
    moved = list(params)
    ids = {id(p) for p in moved}
    for group in optimizer.param_groups:
        group["params"] = [p for p in group["params"] if id(p) not in ids]
    known = {name: value for name, value in options.items() if name in optimizer.defaults}
    optimizer.add_param_group({"params": moved, **known})


def network_groups(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """The groups that the optimiser was made with: one, or with layer decay several, the first without decay."""
    return [group for n, group in enumerate(optimizer.param_groups) if n == 0 or SCALE in group]

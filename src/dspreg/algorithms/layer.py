"""What every algorithm has besides its arrows: a place in a stack, options, and the life of a step."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch
from torch import Tensor, nn

from dspreg.algorithms.task import Task
from dspreg.batches import Batch, Outputs
from dspreg.networks import Network
from dspreg.vectors import ParamVector, trainable

if TYPE_CHECKING:
    from dspreg.algorithms.base import ERM, Algorithm, Log


@dataclass
class Stack:
    """What all layers of one stack share."""

    task: Task
    top: Algorithm  # the outermost layer
    steps: int = 0  # taken so far
    notes: Log = field(default_factory=dict)  # of the current step
    told: list[dict[str, Any]] = field(default_factory=list)  # events of the current step
    recording: bool = False  # whether the current step's log is kept, so that costly figures are worth taking
    optimizer: torch.optim.Optimizer = field(init=False)
    # evaluated(loss, batches): a loss of the whole stack's outputs, with the random numbers of the current step
    evaluated: Callable[[Callable[[Outputs], Tensor], Sequence[Batch]], Tensor] = field(init=False)


class Layer(nn.Module):
    """One layer of a stack: it knows the others, and writes its state when a step is over. The arrows: `Algorithm`."""

    base: Algorithm
    remembers: ClassVar[tuple[str, ...]] = ()  # attributes besides buffers that are saved

    def __init__(self) -> None:
        super().__init__()
        self._staged: dict[tuple[str, int | None], Any] = {}

    # Its place in the stack.

    def layers(self) -> Iterator[Algorithm]:
        """This layer and all below it."""
        yield cast("Algorithm", self)
        yield from self.base.layers()

    @property
    def bottom(self) -> ERM:
        return self.base.bottom

    @property
    def stack(self) -> Stack:
        shared = self.bottom.__dict__.get("stack")
        if shared is None:
            raise RuntimeError(f"{type(self).__name__} has no network yet: call setup(task, optimizer) first")
        return cast(Stack, shared)

    @property
    def net(self) -> Network:
        """What `build` returned at the top of the stack."""
        return self.stack.top.bottom.network

    @property
    def task(self) -> Task:
        return self.stack.task

    @property
    def t(self) -> int:
        """Steps taken so far."""
        return self.stack.steps

    # The life of a step.

    def stage(self, name: str, value: Any, *, rows: Sequence[int] | None = None) -> None:
        """Set attribute `name` (or these rows of it, one per domain) when the step is over.

        The first value staged in a step counts: it belongs to θ, later ones to points nearby.
        """
        if rows is None:
            self._staged.setdefault((name, None), value)
        else:
            for row, one in zip(rows, value.detach(), strict=True):
                self._staged.setdefault((name, row), one)

    def note(self, **scalars: Tensor | float) -> None:
        """Values for the log, as `Class.name`; the first of a step counts. Tensors stay on their device."""
        for name, value in scalars.items():
            value = value.detach() if isinstance(value, Tensor) else torch.tensor(value)
            self.stack.notes.setdefault(f"{type(self).__name__}.{name}", value)

    def tell(self, event: str, **values: Any) -> None:
        """Something that happened at this step and is no scalar; the trainer keeps it beside the records."""
        self.stack.told.append({"event": event, "step": self.t, **values})

    @contextmanager
    def stepping(self, *, record: bool) -> Iterator[Log]:
        """One step: what was staged is written if it succeeds and dropped if it does not. Yields the notes."""
        stack = self.stack
        stack.notes, stack.told, stack.recording = {}, [], record
        try:
            yield stack.notes
        except BaseException:
            for layer in self.layers():
                layer.discard()
            raise
        for layer in self.layers():
            layer.commit()
        stack.steps += 1

    def commit(self) -> None:
        """Write what was staged in this step."""
        for (name, row), value in self._staged.items():
            if row is None:
                setattr(self, name, value)
            else:
                getattr(self, name)[row] = value
        self._staged.clear()

    def discard(self) -> None:
        """Forget what was staged: the step did not come to its end."""
        self._staged.clear()

    # What is saved, and what is shown.

    def get_extra_state(self) -> dict[str, Any]:
        """What `remembers` names, vectors as plain dictionaries."""
        values = {name: getattr(self, name) for name in self.remembers}
        return {n: dict(v) if isinstance(v, ParamVector) else v for n, v in values.items()}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        for name in self.remembers:
            value = state[name]
            setattr(self, name, self.placed(value) if isinstance(getattr(self, name), ParamVector) else value)

    def placed(self, tensors: Mapping[str, Tensor]) -> ParamVector:
        """A loaded vector, where the parameters are."""
        params = trainable(self.net)
        return ParamVector((name, tensor.to(params[name].device, copy=True)) for name, tensor in tensors.items())

    def extra_repr(self) -> str:
        """For print: `weight=0.5, rho=0.1`."""
        return ", ".join(f"{name}={value!r}" for name, value in self.options().items())

    def options(self, also: Collection[str] = ()) -> dict[str, Any]:
        """The options that differ from their defaults, and those asked for."""
        values = {name: (getattr(self, name), p.default) for name, p in options_of(type(self)).items()}
        return {name: value for name, (value, default) in values.items() if value != default or name in also}


def options_of(cls: type[Layer]) -> dict[str, inspect.Parameter]:
    """The keyword options of an algorithm's constructor."""
    return {p.name: p for p in inspect.signature(cls).parameters.values() if p.kind is p.KEYWORD_ONLY}

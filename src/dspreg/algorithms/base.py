"""The five arrows of a training step, and ERM, which fills them.

    build     task                    → network            what is trained?
    forward   domain batches          → outputs            how are images read?
    loss      outputs                 → scalar             what is minimised?
    gradient  (objective, batches)    → loss, vector in θ  in which direction?
    update    (direction, batches)    → log                how do the parameters move?

An algorithm is a layer around another one; ERM is at the bottom of every stack. A layer overrides the arrow it
changes, calls the same arrow of `self.base` in it, and passes the others through. Later arrows receive earlier ones
as functions, so that a layer may evaluate them again elsewhere without knowing what else is in the stack.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from dspreg.algorithms.measuring import measuring
from dspreg.algorithms.optimising import Optimizer, give_gradients
from dspreg.algorithms.order import require_order, require_trained
from dspreg.algorithms.task import Task
from dspreg.batches import Batch, Objective, Outputs
from dspreg.networks import Network
from dspreg.priors import Prior
from dspreg.randomness import seeded
from dspreg.sensitivity import Profile
from dspreg.sensitivity.measure import profiled
from dspreg.vectors import ParamVector, gradient, trainable

Direction = Callable[[Sequence[Batch]], tuple[Tensor, ParamVector]]
Log = dict[str, Tensor]
ARROWS = ("build", "forward", "loss", "gradient", "update")


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


class Algorithm(nn.Module):
    """A layer around `base`. Override the arrow you change and call `self.base` in it.

    The constructor records options, under the names of its arguments; `build` constructs. Random numbers come from
    torch's global generator, which is replayed within a step; what lives longer than a step is a buffer or a
    `ParamVector` named in `remembers`, changed only through `stage`.
    """

    space: ClassVar[Mapping[str, Prior]] = {}  # where random search draws each option from
    counted: ClassVar[tuple[str, ...]] = ()  # options that are numbers of steps, and shorter in a short run
    replaces: ClassVar[frozenset[str]] = frozenset()  # arrows that on purpose do not reach the base
    moves_features: bool = False  # whether it can't do with a featurizer that is frozen as a whole
    one_by_one: ClassVar[bool] = False  # whether it asks the arrow below for one domain at a time
    compares: ClassVar[bool] = False  # whether it is nothing on a single domain
    remembers: ClassVar[tuple[str, ...]] = ()  # attributes besides buffers that are saved

    def __init__(self, base: Algorithm | None = None):
        super().__init__()
        require_layer(base, f"{type(self).__name__}(base)")
        self.base: Algorithm = base if base is not None else ERM()
        self._staged: dict[tuple[str, int | None], Any] = {}

    # The arrows.

    def build(self, task: Task) -> Network:
        return self.base.build(task)

    def forward(self, batches: Sequence[Batch]) -> Outputs:
        return cast(Outputs, self.base(batches))

    def loss(self, out: Outputs) -> Tensor:
        return self.base.loss(out)

    def gradient(self, objective: Objective, batches: Sequence[Batch]) -> tuple[Tensor, ParamVector]:
        return self.base.gradient(objective, batches)

    def update(self, direction: Direction, batches: Sequence[Batch]) -> Log:
        return self.base.update(direction, batches)

    def predict(self, x: Tensor) -> Tensor:
        """Logits (B, C) for evaluation."""
        return self.base.predict(x)

    def measured(self, batch: Batch) -> Callable[[Tensor], Tensor]:
        """The function x → logits whose sensitivity is measured on `batch`; samples must not mix in it."""
        return self.base.measured(batch)

    def profile(self) -> Profile:
        """All that `dspreg.measure` tells of the whole stack at this step, null and reliability too."""
        return self.base.profile()

    # Before training.

    def setup(self, task: Task, optimizer: Optimizer, device: str | torch.device = "cpu") -> Algorithm:
        """Build the network and one optimiser over all parameters of the stack.

        Args:
            task: The experiment.
            optimizer: Makes the optimiser from the parameters: `lambda params: torch.optim.Adam(params, lr=1e-3)`.
            device: Where the network goes after it was made on the CPU, so that all devices start from the same bits.
        """
        if not callable(optimizer):
            raise TypeError("setup wants a function that makes the optimiser: lambda params: Adam(params, lr=1e-3)")
        require_order(self)
        self.bottom.stack = Stack(task, self)
        with seeded(*task.key, "build"):
            self.bottom.network = self.build(task)
        require_trained(self)
        self.to(device)
        self.stack.optimizer = optimizer([p for p in self.parameters() if p.requires_grad])
        for layer in self.layers():
            layer.tune(self.stack.optimizer)
        return self

    def tune(self, optimizer: torch.optim.Optimizer) -> None:
        """Called once the optimiser is made: `regroup` gives parameters of this layer's own other options."""

    # Offered to every layer.

    @property
    def uses_c(self) -> bool:
        """Whether this layer measures c, so that a trainer shows it before and after."""
        return False

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

    def descend(self, loss: Callable[[Outputs], Tensor], parts: nn.Module, batches: Sequence[Batch]) -> Tensor:
        """For `update`: one optimiser step of `parts` alone, on another loss of the stack's outputs. Returns the loss.

        Called after `self.base.update`, it sees the parameters that have moved.
        """
        value = self.stack.evaluated(loss, batches)
        give_gradients(value, parts)
        self.stack.optimizer.step()
        self.stack.optimizer.zero_grad()
        return value.detach()

    # The life of a step.

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

    @classmethod
    def arrows(cls) -> tuple[str, ...]:
        """The arrows this class changes."""
        return tuple(arrow for arrow in ARROWS if getattr(cls, arrow) is not getattr(Algorithm, arrow))

    @classmethod
    def changes(cls) -> set[str]:
        """What a layer above may undo: the arrows, and how it predicts."""
        return {*cls.arrows()} | ({"predict"} if cls.predict is not Algorithm.predict else set())

    def extra_repr(self) -> str:
        """For print: `weight=0.5, rho=0.1`."""
        return ", ".join(f"{name}={value!r}" for name, value in self.options().items())

    def options(self, also: Collection[str] = ()) -> dict[str, Any]:
        """The options that differ from their defaults, and those asked for."""
        values = {name: (getattr(self, name), p.default) for name, p in options_of(type(self)).items()}
        return {name: value for name, (value, default) in values.items() if value != default or name in also}

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

    def layers(self) -> Iterator[Algorithm]:
        """This layer and all below it."""
        yield self
        yield from self.base.layers()

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


def options_of(cls: type[Algorithm]) -> dict[str, inspect.Parameter]:
    """The keyword options of an algorithm's constructor."""
    return {p.name: p for p in inspect.signature(cls).parameters.values() if p.kind is p.KEYWORD_ONLY}


def require_layer(base: object, what: str) -> None:
    if base is not None and not isinstance(base, Algorithm):
        given = base.__name__ if isinstance(base, type) else repr(base)
        raise TypeError(f"{what} was given {given}; the base is a layer such as CORAL(), and text is for dspreg.parse")


class ERM(Algorithm):
    """Empirical risk minimisation: the mean cross-entropy over all samples of all domains. The bottom of every stack.

    L = Σ_d (n_d/N) · CE_d, one forward pass for all domains. One optimiser step along its gradient.
    """

    network: Network

    def __init__(self) -> None:
        nn.Module.__init__(self)  # no base below
        self._staged = {}

    def build(self, task: Task) -> Network:
        # separate keys: whatever else a stack builds, all arms of a trial start from the same weights
        with seeded(*task.key, "backbone"):
            features = task.backbone()
        if not hasattr(features, "width"):
            raise TypeError(f"the backbone {type(features).__name__} has no `width`, the number of its features")
        with seeded(*task.key, "classifier"):
            return Network(features, nn.Linear(features.width, task.num_classes))

    def forward(self, batches: Sequence[Batch]) -> Outputs:
        features = self.net.featurizer(torch.cat([b.x for b in batches]))
        return Outputs.of(batches, features, self.net.classifier(features))

    def loss(self, out: Outputs) -> Tensor:
        return out.weights.dot(out.risks())  # @ would be rounded to half precision under autocast

    def gradient(self, objective: Objective, batches: Sequence[Batch]) -> tuple[Tensor, ParamVector]:
        loss = objective(batches)
        return loss.detach(), gradient(loss, self.net)

    def update(self, direction: Direction, batches: Sequence[Batch]) -> Log:
        loss, g = direction(batches)
        for name, p in trainable(self.net).items():
            p.grad = g.get(name)
        self.stack.optimizer.step()
        self.stack.optimizer.zero_grad()
        return {"loss": loss}

    def predict(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.net(x))

    def measured(self, batch: Batch) -> Callable[[Tensor], Tensor]:  # noqa: ARG002
        return self.stack.top.predict

    def profile(self) -> Profile:
        with measuring(self) as (meter, f, domains):
            return profiled(meter, f, domains, eps=0.0)

    @property
    def bottom(self) -> ERM:
        return self

    @property
    def stack(self) -> Stack:
        return super().stack

    @stack.setter
    def stack(self, shared: Stack) -> None:
        self.__dict__["stack"] = shared  # not by nn.Module's way: the top would become a part of its own part

    def layers(self) -> Iterator[Algorithm]:
        yield self

    def get_extra_state(self) -> dict[str, Any]:
        return {"steps": self.t}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.stack.steps = state["steps"]

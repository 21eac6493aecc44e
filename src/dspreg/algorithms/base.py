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

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from dspreg.algorithms.layer import Layer, Stack
from dspreg.algorithms.measuring import measuring
from dspreg.algorithms.optimising import Optimizer, give_gradients
from dspreg.algorithms.order import require_order, require_trained
from dspreg.algorithms.task import Task
from dspreg.batches import Batch, Objective, Outputs
from dspreg.distributions import Distribution
from dspreg.networks import Network
from dspreg.randomness import seeded
from dspreg.sensitivity import Profile
from dspreg.sensitivity.measure import build_profile
from dspreg.vectors import ParamVector, gradient, trainable

Direction = Callable[[Sequence[Batch]], tuple[Tensor, ParamVector]]
Log = dict[str, Tensor]
ARROWS = ("build", "forward", "loss", "gradient", "update")


class Algorithm(Layer):
    """A layer around `base`. Override the arrow you change and call `self.base` in it.

    The constructor records options, under the names of its arguments; `build` constructs. Random numbers come from
    torch's global generator, which is replayed within a step; what lives longer than a step is a buffer or a
    `ParamVector` named in `remembers`, changed only through `stage`.
    """

    space: ClassVar[Mapping[str, Distribution]] = {}  # where random search draws each option from
    counted: ClassVar[tuple[str, ...]] = ()  # options that are numbers of steps, and shorter in a short run
    replaces: ClassVar[frozenset[str]] = frozenset()  # arrows that on purpose do not reach the base
    moves_features: bool = False  # whether it can't do with a featurizer that is frozen as a whole
    one_by_one: ClassVar[bool] = False  # whether it asks the arrow below for one domain at a time
    compares: ClassVar[bool] = False  # whether it is nothing on a single domain

    def __init__(self, base: Algorithm | None = None):
        super().__init__()
        require_layer(base, f"{type(self).__name__}(base)")
        self.base = base if base is not None else ERM()

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

    def descend(self, loss: Callable[[Outputs], Tensor], parts: nn.Module, batches: Sequence[Batch]) -> Tensor:
        """For `update`: one optimiser step of `parts` alone, on another loss of the stack's outputs. Returns the loss.

        Called after `self.base.update`, it sees the parameters that have moved.
        """
        value = self.stack.evaluated(loss, batches)
        give_gradients(value, parts)
        self.stack.optimizer.step()
        self.stack.optimizer.zero_grad()
        return value.detach()

    @classmethod
    def arrows(cls) -> tuple[str, ...]:
        """The arrows this class changes."""
        return tuple(arrow for arrow in ARROWS if getattr(cls, arrow) is not getattr(Algorithm, arrow))

    @classmethod
    def changes(cls) -> set[str]:
        """What a layer above may undo: the arrows, and how it predicts."""
        return {*cls.arrows()} | ({"predict"} if cls.predict is not Algorithm.predict else set())


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
        Layer.__init__(self)  # no base below

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
            return build_profile(meter, f, domains, eps=0.0)

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

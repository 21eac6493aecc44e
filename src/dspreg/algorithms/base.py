"""What a method is: a layer around another one. ERM is at the bottom of every stack.

Five arrows make a training step:

    build          task                  → network            what is trained?
    forward        domain batches        → outputs            how are images read?
    loss           outputs               → scalar             what is minimised?
    gradient       (objective, batches)  → loss, vector in θ  in which direction?
    update         (direction, batches)  → log                how do the parameters move?

Around the steps there are six more:

    predict        x                     → logits (B, C)      what does the model say?
    measured       batch                 → (x → logits)       of which function is c measured?
    on_step_end    ()                                         called when a step is over and θ is where it ended
    before_evaluation  source validation of the base          called between steps; what it changes is evaluated
    on_evaluation  source validation                          called between steps, with accuracy and loss
    on_load        ()                                         called when a saved model was loaded, to predict with

A layer overrides what it changes, calls the same of `self.base` in it, and passes the others through. Later arrows
receive earlier ones as functions, so that a layer may evaluate them again elsewhere without knowing what else is in the
stack. It declares, where there is something to declare:

    space               where random search draws each option from
    step_options        options that are numbers of steps, or decays per step, and shorter in a short run
    saved_attributes    attributes, besides modules and buffers, that live longer than a step: vectors, tensors, numbers
    compatibility       what it demands of the other layers

and uses:

    self.net, self.task       what `build` returned at the top of the stack, and what is known of the experiment
    self.t                    within a step its number, counted from 0; between steps the number of steps taken
    self.stage(name, value)   in an arrow, which may be evaluated several times: set an attribute when the step is over
    self.note(name=value)     a scalar for the log
    self.log_event(name, …)   an event for the log that is no scalar

State lives in modules, buffers and `saved_attributes`. It is in every checkpoint, and in the saved model if the layer
has its own `predict`: what predicts is what is saved. It changes through `stage`, or directly in `on_step_end`,
`before_evaluation` and `on_evaluation`; a mean of the weights is updated in `on_step_end`
(examples/weight_averaging.py).
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from dspreg.algorithms.compatibility import (
    Compatibility,
    adopt_old_names,
    overrides,
    require_compatible,
    require_kind_known,
    require_trainable_featurizer,
)
from dspreg.algorithms.stack import Optimizer, Stack
from dspreg.algorithms.task import SourceValidation, Task
from dspreg.batches import Batch, Objective, Outputs
from dspreg.distributions import Distribution
from dspreg.errors import Notice
from dspreg.networks import Network
from dspreg.randomness import seeded
from dspreg.vectors import ParamVector, depends_on, gradient, trainable

Direction = Callable[[Sequence[Batch]], tuple[Tensor, ParamVector]]
Log = dict[str, Tensor]


class Algorithm(nn.Module):
    """A layer around `base`. Override the arrow you change and call `self.base` in it.

    The constructor records options, under the names of its arguments; `build` constructs. Random numbers come from
    torch's global generator, which is replayed within a step.
    """

    space: ClassVar[Mapping[str, Distribution]] = {}
    step_options: ClassVar[tuple[str, ...]] = ()
    saved_attributes: ClassVar[tuple[str, ...]] = ()
    experimental: ClassVar[bool] = False  # in no table: for a method whose constants are not published
    file_defaults: ClassVar[Mapping[str, Any]] = {}  # of options whose default has changed: `specs.FILE_DEFAULTS`
    compatibility: Compatibility = Compatibility()
    base: Algorithm
    _stack: Stack | None = None
    _said_below = False  # that c is measured of what is below

    def __init__(self, base: Algorithm | None = None):
        super().__init__()
        require_layer(base, f"{type(self).__name__}(base)")
        self.base = base if base is not None else ERM()

    def __init_subclass__(cls, **options: Any):
        super().__init_subclass__(**options)
        adopt_old_names(cls)

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

    # After and between steps.

    def predict(self, x: Tensor) -> Tensor:
        """Logits (B, C) for evaluation, and of the saved model."""
        return self.base.predict(x)

    def measured(self, batch: Batch) -> Callable[[Tensor], Tensor]:
        """The function x → logits whose sensitivity to the parameters of `net` is measured on `batch`.

        Samples must not mix in it, and autograd must lead from it to these parameters. By default it is `predict`. A
        prediction that does not depend on them, such as that of averaged weights, would have c = 0 everywhere; then it
        is that of the layers below, so that c is of the network that is trained. Override it to choose yourself.
        """
        if not overrides(type(self), "predict"):
            return self.base.measured(batch)
        with torch.enable_grad():
            depends = depends_on(self.predict(batch.x[:2]), self.net)
        if depends:
            return self.predict
        if not self._said_below:
            self._said_below = True
            warnings.warn(
                f"{type(self).__name__}.predict is no differentiable function of the parameters that are trained, so c "
                "is measured of what is below it; override `measured` to say so, or to measure something else",
                Notice,
                stacklevel=2,
            )
        return self.base.measured(batch)

    def on_step_end(self) -> None:
        """Called once when a step has succeeded, however often a layer above has called `update` in it.

        Change modules, buffers and attributes of this layer here. What was staged has been set, and `self.t` is still
        the number of this step.
        """

    def before_evaluation(self, validation: SourceValidation) -> None:
        """Called before every evaluation, with figures of `self.base` on held-out images of the sources.

        For a layer that decides by them what it predicts with, such as SWAD: what it changes here is what is evaluated
        and saved, also at the end of training. Overriding it costs one more pass over these images per evaluation.
        """

    def on_evaluation(self, validation: SourceValidation) -> None:
        """Called after an evaluation, with figures on held-out images of the sources, never of the target.

        What it changes is in the checkpoint that follows, so that a resumed run ends in the same bits. It is not called
        after the last evaluation: nothing may change between the last record and the model that is saved.
        """

    def on_load(self) -> None:
        """Called when a saved model has been loaded, to predict with and not to train on.

        A layer that predicts at weights of its own moves the network there, so that exporting and measuring find them.
        """

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
        layers = tuple(self.layers())
        require_compatible(layers)
        require_kind_known(layers, task.kind)
        stack = Stack(task, layers)
        for layer in layers:
            layer._stack = stack
        with seeded(*task.key, "build"):
            layers[-1].network = self.build(task)
        require_trainable_featurizer(layers)
        self.to(device)
        stack.optimizer = optimizer([p for p in self.parameters() if p.requires_grad])
        for layer in layers:
            layer.configure_optimizer(stack.optimizer)
        return self

    @classmethod
    def fill_options(
        cls,
        options: Mapping[str, Any],
        seed: int | None,  # noqa: ARG003
        settings: Mapping[str, Any],  # noqa: ARG003
    ) -> Mapping[str, Any]:
        """Options as given, with those added that follow from the training's own: called once, before there is a run.

        Args:
            options: As the user gave them.
            seed: Of a random draw of options; None for the defaults.
            settings: All options of the training, by the names of `TrainConfig`.
        """
        return options

    def configure_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Called once the optimiser is made: `regroup` gives parameters of this layer's own other options."""

    # Offered to every layer.

    @property
    def stack(self) -> Stack:
        """What all layers share."""
        if self._stack is None:
            raise RuntimeError(f"{type(self).__name__} has no network yet: call setup(task, optimizer) first")
        return self._stack

    @property
    def net(self) -> Network:
        """What `build` returned at the top of the stack."""
        return cast(ERM, self.stack.layers[-1]).network

    @property
    def task(self) -> Task:
        return self.stack.task

    @property
    def t(self) -> int:
        """Steps taken so far: within a step its number, counted from 0."""
        return self.stack.steps

    def layers(self) -> Iterator[Algorithm]:
        """This layer and all below it."""
        yield self
        yield from self.base.layers()

    def stage(self, name: str, value: Any, *, rows: Sequence[int] | None = None) -> None:
        """Set attribute `name` (or these rows of it, one per domain) when the step is over.

        The first value staged in a step counts: it belongs to θ, later ones to points nearby.
        """
        if rows is None:
            self.stack.stage(self, name, value)
        else:
            for row, one in zip(rows, value.detach(), strict=True):
                self.stack.stage(self, name, one, row)

    def note(self, **scalars: Tensor | float) -> None:
        """Values for the log, as `Class.name`; the first of a step counts. Tensors stay on their device."""
        for name, value in scalars.items():
            value = value.detach() if isinstance(value, Tensor) else torch.tensor(value)
            self.stack.notes.setdefault(f"{type(self).__name__}.{name}", value)

    def log_event(self, event: str, **values: Any) -> None:
        """Something that happened at this step and is no scalar; the trainer keeps it beside the records."""
        self.stack.events.append({"event": event, "step": self.t, **values})

    # Saving and display.

    def get_extra_state(self) -> dict[str, Any]:
        """What `saved_attributes` names, vectors as plain dictionaries."""
        values = {name: getattr(self, name) for name in self.saved_attributes}
        return {n: dict(v) if isinstance(v, ParamVector) else v for n, v in values.items()}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        for name in self.saved_attributes:
            value = state[name]
            if isinstance(value, dict) and isinstance(getattr(self, name), ParamVector | None):
                value = to_param_device(value, self.net)
            elif isinstance(value, Tensor):
                value = value.to(next(self.net.parameters()).device, copy=True)
            setattr(self, name, value)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Algorithm:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name in self.saved_attributes:
            value = getattr(self, name)
            if isinstance(value, ParamVector):
                setattr(self, name, value.map(fn))
            elif isinstance(value, Tensor) and name not in self._buffers:
                setattr(self, name, fn(value))
        return self

    def options(self, also: Collection[str] = ()) -> dict[str, Any]:
        """The options that differ from their defaults, and those asked for."""
        values = {name: (getattr(self, name), p.default) for name, p in options_of(type(self)).items()}
        return {name: value for name, (value, default) in values.items() if value != default or name in also}

    def extra_repr(self) -> str:
        """For print: `weight=0.5, rho=0.1`."""
        return ", ".join(f"{name}={value!r}" for name, value in self.options().items())

    def __getattr__(self, name: str) -> Any:
        if name == "tell":  # its name in version 0.1
            warnings.warn("`tell` is now `log_event`", Notice, stacklevel=2)
            return self.log_event
        return super().__getattr__(name)


def require_layer(base: object, what: str) -> None:
    if base is not None and not isinstance(base, Algorithm):
        given = base.__name__ if isinstance(base, type) else repr(base)
        raise TypeError(f"{what} was given {given}; the base is a layer such as CORAL(), and text is for dspreg.parse")


def options_of(cls: type[Algorithm]) -> dict[str, inspect.Parameter]:
    """The keyword options of an algorithm's constructor."""
    return {p.name: p for p in inspect.signature(cls).parameters.values() if p.kind is p.KEYWORD_ONLY}


def to_param_device(tensors: Mapping[str, Tensor], net: nn.Module) -> ParamVector:
    """A loaded vector, each tensor a copy where the parameter of its name is."""
    params = trainable(net)
    return ParamVector((name, tensor.to(params[name].device, copy=True)) for name, tensor in tensors.items())


class ERM(Algorithm):
    """Empirical risk minimisation: the mean cross-entropy over all samples of all domains. The bottom of every stack.

    L = Σ_d (n_d/N) · CE_d, one forward pass for all domains. One optimiser step along its gradient. Where the task is
    not of classes, CE is `batches.sample_losses` of its kind.
    """

    network: Network

    def __init__(self) -> None:
        nn.Module.__init__(self)  # no base below

    def build(self, task: Task) -> Network:
        # separate keys: whatever else a stack builds, all methods of a trial start from the same weights
        with seeded(*task.key, "backbone"):
            features = task.backbone()
        if isinstance(features, Network):
            net = features
        else:
            if not hasattr(features, "width"):
                raise TypeError(f"the backbone {type(features).__name__} has no `width`, the number of its features")
            with seeded(*task.key, "classifier"):
                net = Network(features, nn.Linear(features.width, task.num_classes))
        with seeded(*task.key, "adapt"):
            task.adapt(net)
        return net

    def forward(self, batches: Sequence[Batch]) -> Outputs:
        features = self.net.featurizer(torch.cat([b.x for b in batches]))
        return Outputs.of(batches, features, self.net.classifier(features), self.task.kind)

    def loss(self, out: Outputs) -> Tensor:
        return out.weights.dot(out.risks())  # @ would be rounded to half precision under autocast

    def gradient(self, objective: Objective, batches: Sequence[Batch]) -> tuple[Tensor, ParamVector]:
        loss = objective(batches)
        return loss.detach(), self.stack.masked(gradient(loss, self.net))

    def update(self, direction: Direction, batches: Sequence[Batch]) -> Log:
        loss, g = direction(batches)
        for name, p in trainable(self.net).items():
            p.grad = g.get(name)
        self.stack.step_optimizer()
        return {"loss": loss}

    def predict(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.net(x))

    def measured(self, batch: Batch) -> Callable[[Tensor], Tensor]:  # noqa: ARG002
        return self.predict

    def layers(self) -> Iterator[Algorithm]:
        yield self

    def get_extra_state(self) -> dict[str, Any]:
        return {"steps": self.t}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.stack.steps = state["steps"]

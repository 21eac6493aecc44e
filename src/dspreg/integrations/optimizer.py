"""An optimiser that takes its step along the penalised gradient of a closure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor

from dspreg.errors import ConfigError
from dspreg.penalty.penalty import Penalty


class PenaltyOptimizer(torch.optim.Optimizer):
    """Any optimiser, with the gradient of `penalty`.

        optimizer = PenaltyOptimizer(torch.optim.AdamW(model.parameters()), dspreg.Penalty(model, weight=1e-3))
        for x, y in loader:
            loss = optimizer.step(lambda: criterion(model(x), y))

    It is `zero_grad()`, `penalty.backward(closure)` and `optimizer.step()`, to the bit. Unlike torch's closures, this
    one only returns the loss: it neither clears gradients nor calls `backward`.

    Learning-rate schedules take it as they take the optimiser inside, whose `param_groups` and `state` it shows.

    Args:
        optimizer: The one that moves the parameters. Not one that evaluates its closure itself, such as LBFGS.
        penalty: Of the same model.
        clip: Called between the two, such as `lambda: clip_grad_norm_(model.parameters(), 1.0)`.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, penalty: Penalty, clip: Callable[[], Any] = lambda: None):
        if isinstance(optimizer, torch.optim.LBFGS):
            raise ConfigError(
                "LBFGS evaluates its closure several times in a step, along gradients of its own; wanted an optimiser "
                "that steps along .grad, such as SGD or AdamW"
            )
        self.optimizer, self.penalty, self.clip = optimizer, penalty, clip
        self.made = False
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self.made = True
        self.param_groups = optimizer.param_groups  # the same list: a schedule changes both
        self.state = optimizer.state

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Clear the gradients, take a step, and return what `penalty.backward` does: the loss at θ before it.

        Args:
            closure: Returns the loss, with its graph, or `(loss, anything)`.
        """
        if closure is None:
            raise ConfigError("step() was given no closure; wanted step(lambda: criterion(model(x), y))")
        self.optimizer.zero_grad()
        with torch.enable_grad():
            result = self.penalty.backward(_without_backward(closure, self.optimizer))
        self.clip()
        self.optimizer.step()
        return result

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if self.made:
            self.optimizer.add_param_group(param_group)
        else:  # torch's constructor, which repeats what the optimiser inside has
            super().add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        return {"optimizer": self.optimizer.state_dict(), "penalty": self.penalty.state_dict()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self.optimizer.load_state_dict(cast(dict[str, Any], state_dict["optimizer"]))
        self.penalty.load_state_dict(state_dict["penalty"])
        self.param_groups, self.state = self.optimizer.param_groups, self.optimizer.state  # new ones, after loading


def _without_backward(closure: Callable[[], Any], optimizer: torch.optim.Optimizer) -> Callable[[], Any]:
    """The closure, refused if it has computed gradients itself: they would be counted twice."""

    def checked() -> Any:
        result = closure()
        loss = result[0] if isinstance(result, tuple) else result
        moved = any(p.grad is not None for group in optimizer.param_groups for p in group["params"])
        if isinstance(loss, Tensor) and moved:
            raise ConfigError(
                "the closure calls backward; wanted one that only returns the loss: PenaltyOptimizer clears gradients "
                "and computes them itself"
            )
        return result

    return checked

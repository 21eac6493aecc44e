"""Layers to put below or above an algorithm that is looked at, and what they raise."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from dspreg.algorithms import Algorithm, Task, describe
from dspreg.algorithms.base import Direction, Log
from dspreg.batches import Batch, Objective, Outputs
from dspreg.networks import Network
from dspreg.vectors import ParamVector, move_to, theta


class LawBroken(AssertionError):
    """An algorithm breaks a law of stacking, or a data set what the package relies on."""


def nudge(arrow: str | None = None) -> Algorithm:
    """A layer to put below another: it changes the result of one arrow, or of none, a little, which must show above.

    It overrides that arrow alone, so that it may stand below a layer that replaces others.
    """
    changed = {} if arrow is None else {arrow: _NUDGES[arrow]}
    made: Algorithm = type("Nudge", (Algorithm,), changed)()
    return made


def _nudge_build(self: Algorithm, task: Task) -> Network:
    net = self.base.build(task)
    with torch.no_grad():
        for p in net.parameters():
            p.mul_(1.1)
    return net


def _nudge_forward(self: Algorithm, batches: Sequence[Batch]) -> Outputs:
    out: Outputs = self.base(batches)
    return out.replace(logits=1.1 * out.logits)


def _nudge_loss(self: Algorithm, out: Outputs) -> Tensor:
    return self.base.loss(out) + 0.1 * out.logits.square().mean()


def _nudge_gradient(self: Algorithm, objective: Objective, batches: Sequence[Batch]) -> tuple[Tensor, ParamVector]:
    loss, g = self.base.gradient(objective, batches)
    return loss, g * 1.1


def _nudge_update(self: Algorithm, direction: Direction, batches: Sequence[Batch]) -> Log:
    log = self.base.update(direction, batches)
    move_to(self.net, theta(self.net) * 1.1)
    return log


def _nudge_predict(self: Algorithm, x: Tensor) -> Tensor:
    return self.base.predict(x) * 1.1


_NUDGES = {
    "build": _nudge_build,
    "forward": _nudge_forward,
    "loss": _nudge_loss,
    "gradient": _nudge_gradient,
    "update": _nudge_update,
    "predict": _nudge_predict,
}


class Twice(Algorithm):
    """Evaluates the objective and the gradient twice at the same point and compares bits."""

    comparing = False

    def gradient(self, objective: Objective, batches: Sequence[Batch]) -> tuple[Tensor, ParamVector]:
        if not self.comparing:
            return self.base.gradient(objective, batches)
        before = deepcopy(self.base.state_dict())
        values = [objective(batches).detach() for _ in range(2)]
        (_, g), (_, again) = self.base.gradient(objective, batches), self.base.gradient(objective, batches)
        same = torch.equal(*values) and set(g) == set(again) and all(torch.equal(g[n], again[n]) for n in g)
        after = self.base.state_dict()
        # batch norm counts a batch the first time a step looks at it (training/step.py)
        norms = [n for n, m in self.base.named_modules() if isinstance(m, _BatchNorm)]
        kept = [n for n, t in before.items() if isinstance(t, Tensor) and n.rpartition(".")[0] not in norms]
        if not same or any(not torch.equal(before[n], after[n]) for n in kept):
            raise LawBroken(
                f"law 2: {describe(self.base)} is not the same function twice in one step; draw random numbers from "
                "torch alone and change state only through self.stage"
            )
        return self.base.gradient(objective, batches)

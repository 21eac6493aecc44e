"""Closures of a user's training loop as functions of θ, which can be evaluated again at another θ.

A closure computes a loss in any way: with dropout, batch norm, several networks, in several processes. A penalty
has to evaluate it twice, and only θ may differ between the two evaluations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from dspreg.batches import Objective
from dspreg.errors import ConfigError
from dspreg.penalty.wrappers import DdpProcesses
from dspreg.randomness import Generators
from dspreg.vectors import ParamVector, leaves, trainable

Closure = Callable[[], Any]  # → loss, or (loss, anything)


class Passes:
    """The forward and backward passes of one step.

    Args:
        net: Its parameters are θ, and its buffers end as after one forward pass.
        processes: The processes that share the step.
        scale: The factor of a GradScaler. Returned losses and gradients are unscaled.
    """

    def __init__(self, net: nn.Module, processes: DdpProcesses, scale: float = 1.0):
        self.net, self.processes, self.scale = net, processes, scale
        self.params = trainable(net)
        self.named: dict[str, Tensor] = dict(self.params)  # θ, and any other tensor that gets a gradient
        self.others: list[list[Any]] = []  # what each closure returned beside its loss, in the first pass
        self._before: _State | None = None
        self._after: _State | None = None

    def loss(self, closures: Sequence[Any]) -> Tensor:
        """The objective: the loss of one closure."""
        (closure,) = closures
        result = closure()
        loss, *others = result if isinstance(result, (tuple, list)) else (result,)
        check_loss(loss)
        if self._after is None:
            self.others.append(others)
        return loss  # type: ignore[no-any-return]

    def gradient(self, objective: Objective, closures: Sequence[Any]) -> tuple[Tensor, ParamVector]:
        """The sum of the objective over closures, and its gradient, averaged over processes by DDP.

        Computed by `backward()`, so that all hooks run. Every `.grad` is left as it was.
        """
        last = len(closures) - 1
        if self._after is None:
            self.others = []
        with self._replayed(), self._grads_set_aside() as set_aside:
            total = torch.zeros(())
            for i, closure in enumerate(closures):
                with nullcontext() if i == last else self.processes.no_sync():
                    loss = objective([closure])
                    for leaf in leaves(loss):
                        set_aside(leaf)
                    (loss * self.scale if self.scale != 1 else loss).backward()
                total = total.to(loss) + loss.detach()
            return total, self._collect_gradients()

    def second(self, objective: Objective, closures: Sequence[Any]) -> tuple[Tensor, ParamVector]:
        """The same for an objective that contains gradients, which DDP's reduction cannot differentiate."""
        with self.processes.no_sync():
            loss, g = self.gradient(objective, closures)
        return loss, self.processes.mean(g, self.named)

    def add(self, total: ParamVector) -> None:
        """Add to every `.grad`, scaled as a GradScaler expects it."""
        for name, g in total.items():
            leaf = self.named[name]
            g = (g * self.scale if self.scale != 1 else g).to(leaf.dtype)
            leaf.grad = g if leaf.grad is None else leaf.grad.add_(g)

    def finish(self) -> None:
        """Leave random state and buffers as after one plain pass."""
        if self._after is not None:
            self._after.restore()

    def _collect_gradients(self) -> ParamVector:
        gradients = {}
        for name, leaf in self.named.items():
            if (g := leaf.grad) is None:
                continue
            if g.layout != torch.strided:
                raise ConfigError(f"the gradient of {name!r} is sparse; a penalty needs dense ones: use sparse=False")
            own = self.processes.own_copy(g)
            gradients[name] = own / self.scale if self.scale != 1 else own
        return ParamVector(gradients)

    @contextmanager
    def _replayed(self) -> Iterator[None]:
        """Every evaluation starts from the same random state and buffers."""
        if self._before is None:
            self._before = _State(self.net)
        else:
            self._before.restore()
        with torch.enable_grad():
            yield
        if self._after is None:
            self._after = _State(self.net)

    @contextmanager
    def _grads_set_aside(self) -> Iterator[Callable[[Tensor], None]]:
        """Inside, every `.grad` is None; afterwards it is what it was. Yields a function that adds a tensor."""
        before: dict[int, tuple[Tensor, Tensor | None]] = {}

        def set_aside(leaf: Tensor) -> None:
            if id(leaf) not in before:
                before[id(leaf)] = leaf, leaf.grad
                leaf.grad = None
                self.named[f"outside the model, {len(self.named)}"] = leaf

        try:
            for leaf in self.named.values():
                before[id(leaf)] = leaf, leaf.grad
                leaf.grad = None
            yield set_aside
        finally:
            for leaf, grad in before.values():
                leaf.grad = grad


class _State:
    """A snapshot of the global random generators and of a network's buffers."""

    def __init__(self, net: nn.Module):
        self.generators = Generators()
        modules = [(module, name, b) for module in net.modules() for name, b in module._buffers.items()]
        self.buffers = [(module, name, b, b.clone()) for module, name, b in modules if b is not None]

    @torch.no_grad()
    def restore(self) -> None:
        self.generators.restore()
        for module, name, buffer, value in self.buffers:
            module._buffers[name] = buffer.copy_(value)


def check_loss(loss: Any) -> None:
    """Refuse a loss without a gradient, with the likely reason."""
    if not isinstance(loss, Tensor):
        raise ConfigError(
            f"the closure returned a {type(loss).__name__}; wanted a scalar tensor, or a tuple that begins with one. "
            "A closure computes the loss and returns it: lambda: criterion(model(x), y)"
        )
    if loss.numel() != 1:
        raise ConfigError(
            f"the closure returned a loss of shape {tuple(loss.shape)}; wanted a scalar: take its mean() or sum(), "
            "or drop reduction='none'"
        )
    if not loss.requires_grad:
        raise ConfigError(
            "the closure's loss has no gradient: it was detached, computed under no_grad, or made by .item(). Compute "
            "the loss inside the closure, and return it unchanged"
        )

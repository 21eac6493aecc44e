"""The functions of somebody's own loop as a function of θ: asked again elsewhere, it is the same function.

A closure computes a loss however it likes: with dropout, batch norm, several networks, in several processes. A penalty
has to evaluate it twice, and only θ may differ between the two.
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
    """The passes of one step.

    Args:
        net: Its parameters are θ, and its buffers end as after one forward pass.
        processes: Those that share the step.
        scale: What a GradScaler multiplies losses with. Losses and gradients that come out are unscaled.
    """

    def __init__(self, net: nn.Module, processes: DdpProcesses, scale: float = 1.0):
        self.net, self.processes, self.scale = net, processes, scale
        self.params = trainable(net)
        self.named: dict[str, Tensor] = dict(self.params)  # θ, and what else turns out to get a gradient
        self.others: list[list[Any]] = []  # what each closure returned beside its loss, the first time
        self._before: _State | None = None
        self._after: _State | None = None

    def loss(self, closures: Sequence[Any]) -> Tensor:
        """The objective: of one closure."""
        (closure,) = closures
        found = closure()
        loss, *others = found if isinstance(found, (tuple, list)) else (found,)
        check_loss(loss)
        if self._after is None:
            self.others.append(others)
        return loss  # type: ignore[no-any-return]

    def gradient(self, objective: Objective, closures: Sequence[Any]) -> tuple[Tensor, ParamVector]:
        """The sum of the objective over closures and its gradient, averaged over processes as DDP does it.

        By `backward()`, so that whatever hangs on it takes place, and with everybody's `.grad` left as it was.
        """
        last = len(closures) - 1
        if self._after is None:
            self.others = []
        with self._once_more(), self._grads_aside() as aside:
            total = torch.zeros(())
            for i, closure in enumerate(closures):
                with nullcontext() if i == last else self.processes.apart():
                    loss = objective([closure])
                    for leaf in leaves(loss):
                        aside(leaf)
                    (loss * self.scale if self.scale != 1 else loss).backward()
                total = total.to(loss) + loss.detach()
            return total, self._collected()

    def second(self, objective: Objective, closures: Sequence[Any]) -> tuple[Tensor, ParamVector]:
        """The same for an objective that holds gradients, which DDP's own reduction cannot go through."""
        with self.processes.apart():
            loss, g = self.gradient(objective, closures)
        return loss, self.processes.mean(g, self.named)

    def add(self, total: ParamVector) -> None:
        """To everybody's `.grad`, scaled as the optimiser's owner expects it."""
        for name, g in total.items():
            leaf = self.named[name]
            g = (g * self.scale if self.scale != 1 else g).to(leaf.dtype)
            leaf.grad = g if leaf.grad is None else leaf.grad.add_(g)

    def finish(self) -> None:
        """Random numbers and buffers as one plain pass would have left them."""
        if self._after is not None:
            self._after.restore()

    def _collected(self) -> ParamVector:
        found = {}
        for name, leaf in self.named.items():
            if (g := leaf.grad) is None:
                continue
            if g.layout != torch.strided:
                raise ConfigError(f"the gradient of {name!r} is sparse; a penalty needs dense ones: use sparse=False")
            own = self.processes.own_copy(g)
            found[name] = own / self.scale if self.scale != 1 else own
        return ParamVector(found)

    @contextmanager
    def _once_more(self) -> Iterator[None]:
        """Every evaluation starts from the same random numbers and buffers."""
        if self._before is None:
            self._before = _State(self.net)
        else:
            self._before.restore()
        with torch.enable_grad():
            yield
        if self._after is None:
            self._after = _State(self.net)

    @contextmanager
    def _grads_aside(self) -> Iterator[Callable[[Tensor], None]]:
        """Inside, nothing has a gradient yet; afterwards everything has the one it had."""
        kept: dict[int, tuple[Tensor, Tensor | None]] = {}

        def aside(leaf: Tensor) -> None:
            if id(leaf) not in kept:
                kept[id(leaf)] = leaf, leaf.grad
                leaf.grad = None
                self.named[f"outside the model, {len(self.named)}"] = leaf

        try:
            for leaf in self.named.values():
                kept[id(leaf)] = leaf, leaf.grad
                leaf.grad = None
            yield aside
        finally:
            for leaf, grad in kept.values():
                leaf.grad = grad


class _State:
    """Global random generators, and the buffers of a network."""

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
    """Refuse what has no gradient, with the likely reason."""
    if not isinstance(loss, Tensor):
        raise ConfigError(
            f"the closure returned a {type(loss).__name__}; wanted a scalar tensor, or a tuple that begins with one. "
            "A closure computes the loss and returns it: lambda: criterion(model(x), y)"
        )
    if loss.numel() != 1:
        raise ConfigError(
            f"the closure returned a loss of shape {tuple(loss.shape)}; wanted one number: take its mean() or sum(), "
            "or drop reduction='none'"
        )
    if not loss.requires_grad:
        raise ConfigError(
            "the closure's loss has no gradient: it was detached, computed under no_grad, or by .item(). Return the "
            "loss as it comes from the criterion, and compute it inside the closure"
        )

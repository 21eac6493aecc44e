"""Closures of a user's training loop as functions of θ, which can be evaluated again at another θ.

A closure computes a loss in any way: with dropout, batch norm, several networks, in several processes. A penalty
has to evaluate it twice, and only θ may differ between the two evaluations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dspreg.batches import Objective
from dspreg.errors import ConfigError
from dspreg.networks.batch_norm import scratch_buffers
from dspreg.penalty.tangent import Graph, displace
from dspreg.penalty.wrappers import DdpProcesses
from dspreg.randomness import Generators, Key, generator
from dspreg.vectors import ParamVector, leaves, standing_at, trainable

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
        self._starts: list[Generators] = []  # of each closure, in the first pass

    def loss(self, closures: Sequence[Any]) -> Tensor:
        """The objective: the loss of one closure."""
        (closure,) = closures
        return self._call(closure)[0]

    def _call(self, closure: Closure) -> tuple[Tensor, list[Any]]:
        loss, others = _split(closure())
        check_loss(loss)
        if self._after is None:
            self.others.append(others)
        return loss, others

    def gradient(
        self, objective: Objective, closures: Sequence[Any], *, retain_graph: bool = False
    ) -> tuple[Tensor, ParamVector]:
        """The sum of the objective over closures, and its gradient, averaged over processes by DDP.

        Computed by `backward()`, so that all hooks run. Every `.grad` is left as it was.
        """
        last = len(closures) - 1
        if self._after is None:
            self.others, self._starts = [], []
        with self.replayed(), self._grads_set_aside() as set_aside:
            total = torch.zeros(())
            for i, closure in enumerate(closures):
                if self._after is None and last:
                    self._starts.append(Generators())
                with nullcontext() if i == last else self.processes.no_sync():
                    loss = objective([closure])
                    for leaf in leaves(loss):
                        set_aside(leaf)
                    (loss * self.scale if self.scale != 1 else loss).backward(retain_graph=retain_graph)
                total = total.to(loss) + loss.detach()
            return total, self._collect_gradients()

    def second(self, objective: Objective, closures: Sequence[Any]) -> tuple[Tensor, ParamVector]:
        """The same for an objective that contains gradients, which DDP's reduction cannot differentiate."""
        with self.processes.no_sync():
            loss, g = self.gradient(objective, closures)
        return loss, self.processes.mean(g, self.named)

    def sample(self, closures: Sequence[Closure], key: Sequence[Key], part: float) -> tuple[Objective, list[Closure]]:
        """This part of the closures, drawn by the key without replacement, and the objective on it.

        Its expectation is the sum over all. Each draws the random numbers of its first call.
        """
        if len(closures) < 2:
            raise ConfigError(
                f"part={part} takes a part of a list of closures, and there is one closure. Split the batch, "
                "penalty.backward([closure, closure, …]) with each loss divided by their number, or leave part= out"
            )
        count = max(1, round(part * len(closures)))
        chosen = torch.randperm(len(closures), generator=generator(*key, "part"))[:count].sort().values.tolist()

        def replay(i: int) -> Any:
            self._starts[i].restore()
            loss, others = _split(closures[i]())
            return loss * (len(closures) / count), *others

        return self.loss, [partial(replay, i) for i in chosen]

    def outputs(self, closure: Closure) -> tuple[Tensor, Tensor]:
        """The loss of a closure, and the logits that it returned with it."""
        loss, others = self._call(closure)
        return loss, check_logits(others)

    def cut(self, loss: Tensor, logits: Tensor) -> Graph:
        """The graph of a loss, cut at the logits."""
        before, after = ({id(leaf) for leaf in leaves(t)} for t in (logits, loss))
        direct = {name: leaf for name, leaf in self.named.items() if id(leaf) in after - before}
        graph = Graph(loss, [logits], [logits], direct)
        if graph.slopes[0] is None:
            raise ConfigError(
                "the closure's loss does not depend on the logits that it returned. Return the tensor that the loss "
                "was computed from, unchanged: logits = model(x); return criterion(logits, y), logits. Of a compiled "
                "closure, compile the model alone"
            )
        return graph

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Another evaluation beside a graph that is still needed: no buffer and no parameter changes in place."""
        assert self._before is not None
        with scratch_buffers(self.net), self.processes.no_broadcast(), torch.no_grad():
            self._before.lend()
            yield

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
    def replayed(self) -> Iterator[None]:
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

    def lend(self) -> None:
        """The same with copies for buffers, inside `scratch_buffers`."""
        self.generators.restore()
        for module, name, _, value in self.buffers:
            module._buffers[name] = value.clone()


class ClosureTangent:
    """Of the sum of closures: f are the logits that each returns beside its loss.

    Args:
        passes: Of this step.
        closures: All, or some as `Passes.sample` returns them.
        keeps_graph: Use the graph of the gradient for the product too. Not for several closures, which are never in
            memory together, nor for compiled models, whose graphs can be used once.
    """

    def __init__(self, passes: Passes, closures: Sequence[Closure], keeps_graph: bool):
        self.passes, self.closures = passes, closures
        self.keeps_graph = keeps_graph and len(closures) == 1
        self._graph: Graph | None = None

    def gradient(self) -> tuple[Tensor, ParamVector]:
        """L and g at θ."""
        kept: list[tuple[Tensor, Tensor]] = []

        def keep(closures: Sequence[Any]) -> Tensor:
            loss, logits = self.passes.outputs(closures[0])
            if self.keeps_graph:
                kept.append((loss, logits))
            return loss

        result = self.passes.gradient(keep, self.closures, retain_graph=self.keeps_graph)
        if kept:
            self._graph = self.passes.cut(*kept[0])
        return result

    def product(self, v: ParamVector) -> ParamVector:
        """G v, averaged over processes."""
        passes, processes = self.passes, self.passes.processes
        point, h = displace(passes.net, v)
        if not point:
            return ParamVector()
        graph, self._graph = self._graph, None
        if graph is not None:
            with standing_at(passes.net, point, keeps_graphs=True), passes.beside():
                ahead = _split(self.closures[0]())[1][0]
            total = self._curve(graph, ahead, v, h)
        else:
            with processes.no_sync():
                with standing_at(passes.net, point), passes.replayed():
                    there = [check_logits(_split(closure())[1]).detach() for closure in self.closures]
                with passes.replayed():
                    total = ParamVector()
                    for closure, ahead in zip(self.closures, there, strict=True):
                        total = total + self._curve(passes.cut(*passes.outputs(closure)), ahead, v, h)
        return processes.mean(total, passes.named)

    def _curve(self, graph: Graph, ahead: Tensor, v: ParamVector, h: float) -> ParamVector:
        return graph.product([(ahead - graph.outputs[0].detach()) / h], v, self.passes.named)


def _split(result: Any) -> tuple[Any, list[Any]]:
    """What a closure returned: its loss, and everything else."""
    loss, *others = result if isinstance(result, (tuple, list)) else (result,)
    return loss, others


def check_logits(others: Sequence[Any]) -> Tensor:
    """What a closure returned beside its loss, for an engine that needs the logits."""
    wanted = "wanted (loss, logits): logits = model(x); return criterion(logits, y), logits"
    if not others:
        raise ConfigError(f"engine 'gauss_newton' needs the logits, and the closure returned the loss alone; {wanted}")
    logits = others[0]
    if not isinstance(logits, Tensor):
        raise ConfigError(
            f"engine 'gauss_newton' needs the logits, and the closure returned its loss and a {type(logits).__name__}; "
            f"{wanted}"
        )
    if not logits.requires_grad:
        raise ConfigError(
            "engine 'gauss_newton' needs the logits with their gradient, and the closure returned them detached; "
            f"{wanted}"
        )
    return logits


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

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
from torch.nn.parallel import DataParallel

from dspreg.batches import Objective
from dspreg.errors import ConfigError
from dspreg.penalty.forward_state import ForwardState, Reached, fingerprints
from dspreg.penalty.tangent import Graph, Sample, displace
from dspreg.penalty.wrappers import DdpProcesses
from dspreg.randomness import Generators, Key, generator
from dspreg.vectors import ParamVector, graph_nodes, leaves, standing_at, trainable

Closure = Callable[[], Any]  # → loss, or (loss, anything)

EARLIER = (
    "the closure uses a tensor that was computed outside of it, with its graph, and would be the same in a second call "
    "at another θ. Compute it inside of the closure, or detach() it if no gradient is to go through it"
)
REENTRANT = (
    "engines 'exact' and 'gauss_newton' differentiate in a way that reentrant checkpointing does not allow. Use "
    "checkpoint(…, use_reentrant=False), or engine 'lookahead'"
)
_STEPS = (
    "An optimiser that steps inside of backward would step before the penalty is known, and once for every pass. "
    "Remove its hooks, and call optimizer.step() after penalty.backward()"
)


class Passes:
    """The forward and backward passes of one step.

    Args:
        net: Its parameters are θ, and its buffers end as after one forward pass.
        processes: The processes that share the step.
        reached: Other modules that closures have called, known from earlier steps.
        scale: The factor of a GradScaler. Returned losses and gradients are unscaled.
        once: Whether every closure is called once, at θ.
        by_grad: Whether `torch.autograd.grad` is used, which does not see into reentrant checkpoints.
    """

    def __init__(
        self,
        net: nn.Module,
        processes: DdpProcesses,
        reached: Reached,
        scale: float = 1.0,
        *,
        once: bool = False,
        by_grad: bool = True,
    ):
        self.net, self.processes, self.scale, self.once, self.by_grad = net, processes, scale, once, by_grad
        self.state = ForwardState(net, reached)
        self.accumulates = processes.accumulates
        self.params = trainable(net)
        self.named: dict[str, Tensor] = dict(self.params)  # θ, and any other tensor that gets a gradient
        self.others: list[list[Any]] = []  # what each closure returned beside its loss, in the first pass
        self._broadcasts = processes.broadcasts
        self._starts: list[Generators] = []  # of each closure, in the first pass

    def loss(self, closures: Sequence[Any]) -> Tensor:
        """The objective: the loss of one closure."""
        (closure,) = closures
        return self._call(closure)[0]

    def _call(self, closure: Closure) -> tuple[Tensor, list[Any]]:
        start = next_node_number()
        with torch.autograd.set_multithreading_enabled(False):  # nodes made by another thread have numbers of their own
            loss, others = _split(closure())
        check_loss(loss)
        self._check_graph(loss, start)
        if self.state.first:
            self.others.append(others)
        return loss, others

    def gradient(
        self, objective: Objective, closures: Sequence[Any], *, retain_graph: bool = False
    ) -> tuple[Tensor, ParamVector]:
        """The sum of the objective over closures, and its gradient, averaged over processes by DDP.

        Computed by `backward()`, so that all hooks run. Every `.grad` is left as it was.
        """
        last = len(closures) - 1
        if self.state.first:
            self.others, self._starts = [], []
        with self.replayed(), self._grads_set_aside() as set_aside:
            total = torch.zeros(())
            for i, closure in enumerate(closures):
                if self.state.first and last:
                    self._starts.append(Generators())
                with nullcontext() if i == last else self.processes.no_sync_between():
                    loss = objective([closure])
                    reached = leaves(loss)
                    for leaf in reached:
                        set_aside(leaf)
                    with self._refused_steps(reached):
                        (loss * self.scale if self.scale != 1 else loss).backward(retain_graph=retain_graph)
                total = total.to(loss) + loss.detach()
            return total, self._collect_gradients()

    def second(self, objective: Objective, closures: Sequence[Any]) -> tuple[Tensor, ParamVector]:
        """The same for an objective that contains gradients, which DDP's reduction cannot differentiate."""
        with self.processes.no_sync():
            loss, g = self.gradient(objective, closures)
        return loss, self.processes.mean(g, self.named)

    def sample(self, closures: Sequence[Closure], key: Sequence[Key], part: float) -> Sample:
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

        return Sample(self.loss, [partial(replay, i) for i in chosen], count / len(closures))

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
        with self.state.lent(), self.processes.no_broadcast(), torch.no_grad():
            yield

    def add(self, total: ParamVector) -> None:
        """Add to every `.grad`, scaled as a GradScaler expects it."""
        if not self.accumulates:  # as DDP averages what was accumulated inside of `no_sync`
            before = ParamVector((n, p.grad) for n, p in self.named.items() if p.grad is not None)
            for name, g in self.processes.mean(before, self.named).items():
                self.named[name].grad = g
        for name, g in total.items():
            leaf = self.named[name]
            g = (g * self.scale if self.scale != 1 else g).to(leaf.dtype)
            leaf.grad = g if leaf.grad is None else leaf.grad.add_(g)

    def finish(self) -> None:
        """Leave random state, buffers and untrained parameters as after one plain pass."""
        self.state.finish()

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
        """Every evaluation starts from the same random state, buffers and untrained parameters."""
        if not self.state.first:
            self.processes.broadcasts = self._broadcasts
        with self.state.evaluated(), torch.enable_grad():
            yield

    @contextmanager
    def _refused_steps(self, reached: Sequence[Tensor]) -> Iterator[None]:
        """A backward pass, refused if it changes what it goes back to."""
        for leaf in reached:
            if leaf._post_accumulate_grad_hooks or hasattr(leaf, "_in_backward_optimizers"):
                raise ConfigError(f"{self._name(leaf)} has a hook that runs as soon as its gradient is there. {_STEPS}")
        versions = [leaf._version for leaf in reached]
        marks = fingerprints(reached) if self.state.first and self.state.reached.new else None
        yield
        moved = [leaf for leaf, version in zip(reached, versions, strict=True) if leaf._version != version]
        if marks is not None and not moved:
            moved = [leaf for leaf, a, b in zip(reached, marks, fingerprints(reached), strict=True) if a != b]
        if moved:
            raise ConfigError(f"{self._name(moved[0])} was changed by the backward pass itself. {_STEPS}")

    def _name(self, leaf: Tensor) -> str:
        return next((repr(name) for name, t in self.named.items() if t is leaf), "a tensor outside of the model")

    def _check_graph(self, loss: Tensor, start: int) -> None:
        """Refuse graphs that a second call would not make anew, or that have parts only `backward()` goes through."""
        again = not (self.once and self.state.first)
        again = again and not any(
            isinstance(m, DataParallel) for m in self.net.modules()
        )  # which makes nodes in threads
        for node in graph_nodes(loss):
            if again and node._sequence_nr() < start:
                raise ConfigError(EARLIER)
            if self.by_grad and node.name() == "CheckpointFunctionBackward":
                raise ConfigError(REENTRANT)

    @contextmanager
    def _grads_set_aside(self) -> Iterator[Callable[[Tensor], None]]:
        """Inside, every `.grad` is None; afterwards it is what it was. Yields a function that adds a tensor."""
        before: dict[int, tuple[Tensor, Tensor | None]] = {}

        def keep(leaf: Tensor) -> None:
            before[id(leaf)] = leaf, None if leaf.grad is None else self.processes.own_copy(leaf.grad)
            leaf.grad = None

        def set_aside(leaf: Tensor) -> None:
            if id(leaf) not in before:
                keep(leaf)
                self.named[f"outside the model, {len(self.named)}"] = leaf

        try:
            for leaf in self.named.values():
                keep(leaf)
            yield set_aside
        finally:
            for leaf, grad in before.values():
                leaf.grad = grad


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
        point, inverse = displace(passes.net, v)
        graph, self._graph = self._graph, None
        if graph is not None and not passes.state.moves_parameters:
            with standing_at(passes.net, point, keeps_graphs=True), passes.beside():
                ahead = _split(self.closures[0]())[1][0]
            total = self._curve(graph, ahead, v, inverse)
        else:
            with processes.no_sync():
                with standing_at(passes.net, point), passes.replayed():
                    there = [check_logits(_split(closure())[1]).detach() for closure in self.closures]
                with passes.replayed():
                    total = ParamVector()
                    for closure, ahead in zip(self.closures, there, strict=True):
                        total = total + self._curve(passes.cut(*passes.outputs(closure)), ahead, v, inverse)
        return processes.mean(total, passes.named)

    def _curve(self, graph: Graph, ahead: Tensor, v: ParamVector, inverse: Tensor) -> ParamVector:
        return graph.product([(ahead - graph.outputs[0].detach()) * inverse], v, self.passes.named)


def next_node_number() -> int:
    """The number of the next node that autograd makes in this thread; earlier nodes have smaller ones."""
    with torch.enable_grad():
        node: Any = torch.zeros((), requires_grad=True).clone().grad_fn
    return int(node._sequence_nr())


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

"""What a forward pass changes besides gradients: random generators, buffers, and parameters that are not trained.

A penalty evaluates a closure more than once. Every evaluation starts from the same state, and afterwards the state is
that after the first, as if there had been one: batch norm has counted one batch, a running average of the weights has
moved once. This holds for the network and for every other module that the closure calls, such as the discriminator of
a GAN or the key encoder of MoCo.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from dspreg.errors import ConfigError
from dspreg.io.text import join_few
from dspreg.randomness import Generators

_AGAIN = (
    "It would change again each time that the closure is called. Update a running average or a key encoder outside of "
    "the closure, such as after optimizer.step(), or use engine 'exact', which calls one closure once"
)


class Reached:
    """The modules outside of the network that closures have called so far; kept from step to step.

    In the first evaluation of a step, a hook on all modules finds new ones before they run. `torch.compile` compiles a
    module anew under such a hook, so that there is none for a compiled network, nor after a compiled module was seen.
    """

    def __init__(self, hooks: bool = True):
        self.modules: WeakKeyDictionary[nn.Module, None] = WeakKeyDictionary()  # in the order they were found
        self.hooks = hooks
        self.new = True  # until a step was taken

    @contextmanager
    def found(self, report: Callable[[nn.Module], None]) -> Iterator[None]:
        """Inside, `report` is called with every module that is about to run."""

        def on_call(module: nn.Module, _: Any) -> None:
            if getattr(module, "_is_replica", False):  # of DataParallel, which makes new ones for every pass
                return
            if hasattr(module, "_orig_mod"):
                self.hooks = False
            report(module)

        hook = register_module_forward_pre_hook(on_call) if self.hooks else None
        try:
            yield
        finally:
            if hook is not None:
                hook.remove()


class ForwardState:
    """The state of one step.

    Parameters that are not trained are copied in case the closure changes them, as many as are trained. Of the others a
    fingerprint is kept, and a change is refused.

    Args:
        net: Its trainable parameters are θ, which are not part of the state.
        reached: Modules known from earlier steps; new ones are added.
    """

    def __init__(self, net: nn.Module, reached: Reached):
        self.net, self.reached = net, reached
        self.first = True  # until the first evaluation has ended
        self._modules: dict[int, nn.Module] = {}
        self._found: dict[int, list[_Parameter]] = {}  # by module that was found in this step
        self._seen = {id(p) for p in net.parameters() if p.requires_grad}
        self._room = sum(p.numel() for p in net.parameters() if p.requires_grad)
        self._generators, self._buffers = Generators(), list[_Buffer]()
        self._after: tuple[Generators, list[_Buffer]] | None = None
        self._copies: list[_Parameter] = []
        self._others: list[tuple[str, Tensor]] = []
        self._marks: list[Any] = []  # their fingerprints

    @contextmanager
    def evaluated(self) -> Iterator[None]:
        """Every evaluation starts from the same state."""
        if not self._modules:
            self._generators = Generators()
            for module in (self.net, *self.reached.modules):
                self._record(module)
            self._found = {}
        else:  # also if the first evaluation failed and is tried again
            self._refuse_changed()
            self._restore(self._generators, self._buffers)
            for copy in self._copies:
                copy.set(copy.before)
        if not self.first:
            with self._checked():
                yield
            return
        with self.reached.found(self._record):
            yield
        self.first = False
        self._after = Generators(), [b for module in self._modules.values() for b in _buffers_of(module)]
        for copy in self._copies:
            copy.keep_after()

    def finish(self) -> None:
        """Leave everything as after the first evaluation."""
        if self._after is not None:
            self._restore(*self._after)
            for copy in self._copies:
                copy.set(copy.after)

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Another evaluation beside a graph that is still needed: buffers are copies inside, and nothing is written.

        The originals are put back, instead of their contents being restored: autograd cannot go back through batch norm
        whose statistics were changed since.
        """
        self._refuse_changed()
        self._generators.restore()
        now = [(b.module, b.name, b.module._buffers.get(b.name)) for b in self._buffers]
        try:
            for b in self._buffers:
                b.module._buffers[b.name] = b.value.clone()
            with self._checked():
                yield
        finally:
            for module, name, buffer in now:
                module._buffers[name] = buffer

    @property
    def moves_parameters(self) -> bool:
        """Whether the first evaluation has changed parameters that are not trained."""
        return any(copy.moved for copy in self._copies)

    def _record(self, module: nn.Module) -> None:
        """Remember the state of a module before it runs."""
        if id(module) in self._modules:
            return
        own = "" if module is self.net else f"{type(module).__name__}."
        if own:
            self.reached.modules[module] = None
        copies = self._found[id(module)] = []
        others = []
        for path, m in module.named_modules():
            if id(m) in self._modules:
                continue
            self._modules[id(m)] = m
            self._buffers += _buffers_of(m)
            for name, p in m._parameters.items():
                if p is None or id(p) in self._seen:
                    continue
                self._seen.add(id(p))
                if p.numel() <= self._room:
                    self._room -= p.numel()
                    copies.append(_Parameter(p))
                else:
                    others.append((own + f"{path}.{name}".removeprefix("."), p))
        self._copies += copies
        self._others += others
        self._marks += fingerprints([p for _, p in others])

    @contextmanager
    def _checked(self) -> Iterator[None]:
        """An evaluation after the first, refused if it changes what cannot be put back."""
        with self.reached.found(self._check_unchanged) if self._found else nullcontext():
            yield
        self._refuse_changed()

    def _check_unchanged(self, module: nn.Module) -> None:
        """Refuse a module that has changed before it was called: so it had before its state was first known."""
        if any(not copy.equals(copy.before) for copy in self._found.get(id(module), ())):
            raise ConfigError(f"the closure changes a {type(module).__name__} before it calls it. {_AGAIN}")

    def _refuse_changed(self) -> None:
        """Refuse if a parameter has changed of which there is no copy."""
        if self._others:
            marks = zip(self._others, self._marks, fingerprints([p for _, p in self._others]), strict=True)
            if names := [repr(name) for (name, _), old, new in marks if old != new]:
                raise ConfigError(f"the closure changes {join_few(names, 3)}, which no gradient trains. {_AGAIN}")

    @staticmethod
    @torch.no_grad()
    def _restore(generators: Generators, buffers: Iterable[_Buffer]) -> None:
        generators.restore()
        for b in buffers:
            b.module._buffers[b.name] = b.buffer.copy_(b.value)


class _Buffer:
    """A buffer, and what is in it now."""

    def __init__(self, module: nn.Module, name: str, buffer: Tensor):
        self.module, self.name, self.buffer, self.value = module, name, buffer, buffer.clone()


class _Parameter:
    """A parameter that is not trained, before and after the first evaluation."""

    def __init__(self, p: Tensor):
        self.p, self.before, self.moved = p, p.detach().clone(), False
        self.after = self.before

    def keep_after(self) -> None:
        self.moved = not self.equals(self.before)
        if self.moved:
            self.after = self.p.detach().clone()

    def equals(self, value: Tensor) -> bool:
        return torch.equal(self.p, value)

    @torch.no_grad()
    def set(self, value: Tensor) -> None:
        if not self.equals(value):  # a graph that has saved it refuses even the same values once they are written
            self.p.copy_(value)


def _buffers_of(module: nn.Module) -> list[_Buffer]:
    return [_Buffer(module, name, b) for name, b in module._buffers.items() if b is not None]


@torch.no_grad()
def fingerprints(tensors: Sequence[Tensor]) -> list[tuple[int, int, float]]:
    """Of each tensor something that differs once it is written to, also by `t.data.mul_(…)`, which has no version."""
    norms: dict[int, float] = {}
    real = [t.detach() for t in tensors if t.is_floating_point() and t.layout == torch.strided and t.numel()]
    for kind in {(t.device, t.dtype) for t in real}:
        group = [t for t in real if (t.device, t.dtype) == kind]
        found = torch.stack(list(torch._foreach_norm(group))).nan_to_num(nan=-1.0).tolist()
        norms |= {t.data_ptr(): n for t, n in zip(group, found, strict=True)}
    return [(t._version, t.data_ptr(), norms.get(t.data_ptr(), 0.0)) for t in tensors]

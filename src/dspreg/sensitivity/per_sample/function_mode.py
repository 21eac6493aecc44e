"""Intercept a forward pass at measured parameters, and square their per-sample gradients in the backward pass.

When a measured parameter enters a function with a layer rule, such as a convolution, the function is called with the
parameter detached, so that autograd computes no gradient of it, and a tap on the output calls the rule with the
gradient of the output. The caller does not matter: a layer of torch, a subclass with its own forward, or a plain call.
Any other use of a parameter is recorded, because such a parameter needs another strategy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from inspect import BoundArguments, signature
from types import FunctionType
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from dspreg.sensitivity.per_sample.accumulator import Accumulator
from dspreg.sensitivity.per_sample.interceptors import KEYWORDS, RESHAPES, RULES

GradientHook = Callable[[Tensor], None]  # called with the gradient of an output


class ParameterTaps(TorchFunctionMode):
    """Inside, calls of torch functions with measured parameters are intercepted.

    Args:
        params: The measured parameters by name.
        samples: B. A tensor whose first dimension is no multiple of B does not belong to these samples.
        sums: The squares are added to it.
    """

    def __init__(self, params: Mapping[str, Tensor], samples: int, sums: Accumulator):
        super().__init__()
        self.names = {id(p): name for name, p in params.items()}
        self.samples, self.sums = samples, sums
        self.uses: dict[str, int] = {}  # how often each parameter entered a rule
        self.sizes: dict[str, float] = {}  # outputs per sample there
        self.other: set[str] = set()  # parameters that were used in another way
        self.skip: set[str] = set()  # parameters whose squares are not needed
        self.views: list[Tensor] = []  # reshaped parameters
        self.batch_second = False  # inside torch's attention, where positions come before samples
        device = next(iter(params.values())).device
        self.anchor = torch.zeros((), device=device, requires_grad=True)  # input of all taps, to differentiate by

    @property
    def once(self) -> set[str]:
        """The parameters with a single use, by a rule. Gradients of several uses must be summed before squaring."""
        return {name for name, times in self.uses.items() if times == 1} - self.other

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        entering = {self.names[id(t)] for t in _tensors((*args, *kwargs.values())) if id(t) in self.names}
        if func is F.multi_head_attention_forward and entering:
            return self._attention(args, kwargs)
        if entering and (rule := RULES.get(func)) and (arguments := _bind(rule, self, args, kwargs)):
            out = rule(*arguments.args, **arguments.kwargs)
            if out is not None:
                return out
        out = func(*args, **kwargs)
        if entering and _only_reshapes(func, args):  # γ.reshape(1, -1, 1, 1) is γ
            self.names[id(out)] = self.names[id(args[0])]
            self.views.append(out)  # so that no other tensor gets its id
            return out
        if entering and any(True for _ in _tensors((out,))):  # reading its shape or dtype is no use
            self.other |= entering
        return out

    def tap(self, out: Tensor, weight: str | None, bias: str | None, x: Tensor | None, use: GradientHook) -> Tensor:
        """`out`, with `use` to be called on its gradient. x is what the weight is multiplied with."""
        names = [name for name in (weight, bias) if name is not None]
        for name in names:
            self.uses[name] = self.uses.get(name, 0) + 1
            self.sizes[name] = out.numel() / self.samples

        def on_gradient(g: Tensor) -> None:
            if not self.skip.issuperset(names):
                if weight is not None:
                    self.sums.choose_scale(weight, g, x)
                if bias is not None:
                    self.sums.choose_scale(bias, g)
                use(g)

        return cast(Tensor, _Tap.apply(out, self.anchor, on_gradient))

    @property
    def seen(self) -> set[str]:
        return set(self.uses) | self.other

    def name(self, p: Tensor | None) -> str | None:
        return self.names.get(id(p)) if p is not None else None

    def active(self, name: str | None) -> str | None:
        """The name, or None for a parameter whose squares are not needed."""
        return None if name in self.skip else name

    def batch_first(self, x: Tensor, dims: int) -> Callable[[Tensor], Tensor] | None:
        """A function that makes x and its outputs batch-first, with `dims` dimensions per position; None if unknown.

        Windows of an image, or frames of a video, may be part of the batch dimension: B·k rows, k of each sample.
        """
        rows, n = (x.shape[0] if x.ndim else 0), self.samples
        if self.batch_second:
            return lambda t: t.reshape(-1, n, t.shape[-1]).transpose(0, 1)
        if rows == n:
            return lambda t: t
        if rows == 0 or rows % n or x.ndim <= dims:
            return None
        return lambda t: t.reshape(n, rows // n, *t.shape[1:])

    def _attention(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """torch's attention is dispatched as one function; intercept the calls inside it instead."""
        before, self.batch_second = self.batch_second, True
        try:
            with self:
                return _without_dispatch(F.multi_head_attention_forward)(*args, **kwargs)
        finally:
            self.batch_second = before


class _Tap(torch.autograd.Function):
    """The identity, in place; its backward pass calls `use` with the gradient."""

    @staticmethod
    def forward(ctx: Any, out: Tensor, anchor: Tensor, use: GradientHook) -> Tensor:  # noqa: ARG004
        ctx.use = use
        ctx.mark_dirty(out)
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, None, None]:
        with torch.no_grad():
            ctx.use(g)
        return (g if ctx.needs_input_grad[0] else None), None, None


def _tensors(values: Iterable[Any]) -> Iterable[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from _tensors(value)


def _only_reshapes(func: Any, args: Sequence[Any]) -> bool:
    """Whether the call keeps all entries of the first argument, in their order."""
    if func is Tensor.__getitem__:
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        return all(i is None or i is ... or (isinstance(i, slice) and i == slice(None)) for i in index)
    return func in RESHAPES


def _bind(rule: Callable[..., Any], taps: ParameterTaps, args: Any, kwargs: Mapping[str, Any]) -> BoundArguments | None:
    """The arguments by the names of the rule; None if it lacks one, such as out=."""
    try:
        return _signature(rule).bind(taps, *args, **{KEYWORDS.get(k, k): v for k, v in kwargs.items()})
    except TypeError:
        return None


_signature = lru_cache(signature)


@lru_cache
def _without_dispatch(function: FunctionType) -> FunctionType:
    """The function without its own __torch_function__ dispatch, so that the calls inside it are intercepted instead."""
    scope = function.__globals__ | {"has_torch_function": lambda _: False}
    copy = FunctionType(function.__code__, scope, function.__name__, function.__defaults__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy

"""Watch a forward pass for measured parameters, and square their per-sample gradients in the backward pass.

Where a measured parameter enters a function that `rules` knows, a convolution say, the function is called with the
parameter detached, so that autograd computes no gradient of it, and a tap on the output calls the rule when the
gradient of the output is there. It does not matter whose function it is: a layer of torch, a subclass with its own
forward, or a plain call. Whatever else happens to a parameter is noted, for such a parameter needs another way.
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

Given = Callable[[Tensor], None]  # takes the gradient of an output


class ParameterTaps(TorchFunctionMode):
    """Inside, calls are watched.

    Args:
        params: The measured parameters by name.
        samples: B. A tensor that does not begin with a multiple of B is not of these samples.
        sums: Where the squares go.
    """

    def __init__(self, params: Mapping[str, Tensor], samples: int, sums: Accumulator):
        super().__init__()
        self.names = {id(p): name for name, p in params.items()}
        self.samples, self.sums = samples, sums
        self.tapped: dict[str, int] = {}  # how often each parameter entered a rule
        self.sizes: dict[str, float] = {}  # numbers per sample that came out there
        self.other: set[str] = set()  # parameters that were used in another way
        self.skip: set[str] = set()  # parameters whose squares are not wanted
        self.shapes: list[Tensor] = []  # parameters in another shape
        self.samples_second = False  # inside torch's attention, where positions come before samples
        device = next(iter(params.values())).device
        self.anchor = torch.zeros((), device=device, requires_grad=True)  # what all taps hang on

    @property
    def once(self) -> set[str]:
        """The parameters all of whose gradient one tap sees. Those of two have to be summed before the square."""
        return {name for name, times in self.tapped.items() if times == 1} - self.other

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        entering = {self.names[id(t)] for t in _tensors((*args, *kwargs.values())) if id(t) in self.names}
        if func is F.multi_head_attention_forward and entering:
            return self._attention(args, kwargs)
        if entering and (rule := RULES.get(func)) and (arguments := _bound(rule, self, args, kwargs)):
            out = rule(*arguments.args, **arguments.kwargs)
            if out is not None:
                return out
        out = func(*args, **kwargs)
        if entering and _only_reshapes(func, args):  # γ.reshape(1, -1, 1, 1) is γ
            self.names[id(out)] = self.names[id(args[0])]
            self.shapes.append(out)  # so that no other tensor gets its id
            return out
        if entering and any(True for _ in _tensors((out,))):  # its shape or dtype is no use of a parameter
            self.other |= entering
        return out

    def tap(self, out: Tensor, weight: str | None, bias: str | None, x: Tensor | None, use: Given) -> Tensor:
        """`out`, whose gradient `use` will be given. x is what the weight is multiplied with."""
        names = [name for name in (weight, bias) if name is not None]
        for name in names:
            self.tapped[name] = self.tapped.get(name, 0) + 1
            self.sizes[name] = out.numel() / self.samples

        def tapped(g: Tensor) -> None:
            if not self.skip.issuperset(names):
                if weight is not None:
                    self.sums.choose_scale(weight, g, x)
                if bias is not None:
                    self.sums.choose_scale(bias, g)
                use(g)

        return cast(Tensor, _Tap.apply(out, self.anchor, tapped))

    @property
    def seen(self) -> set[str]:
        return set(self.tapped) | self.other

    def name(self, p: Tensor | None) -> str | None:
        return self.names.get(id(p)) if p is not None else None

    def if_measured(self, name: str | None) -> str | None:
        return None if name in self.skip else name

    def in_front(self, x: Tensor, dims: int) -> Callable[[Tensor], Tensor] | None:
        """How x and what is made of it come to have the samples in front, with `dims` dimensions per position.

        Windows of an image, or frames of a video, may have been put into the batch: B·k rows, k of each sample.
        """
        rows, n = (x.shape[0] if x.ndim else 0), self.samples
        if self.samples_second:
            return lambda t: t.reshape(-1, n, t.shape[-1]).transpose(0, 1)
        if rows == n:
            return lambda t: t
        if rows == 0 or rows % n or x.ndim <= dims:
            return None
        return lambda t: t.reshape(n, rows // n, *t.shape[1:])

    def _attention(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Torch's attention is one function to us; watch what it calls inside."""
        before, self.samples_second = self.samples_second, True
        try:
            with self:
                return _open(F.multi_head_attention_forward)(*args, **kwargs)
        finally:
            self.samples_second = before


class _Tap(torch.autograd.Function):
    """The identity, in place; its backward pass shows the gradient to `use`."""

    @staticmethod
    def forward(ctx: Any, out: Tensor, anchor: Tensor, use: Given) -> Tensor:  # noqa: ARG004
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
    """Whether the numbers of the first argument stay all there, in their order."""
    if func is Tensor.__getitem__:
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        return all(i is None or i is ... or (isinstance(i, slice) and i == slice(None)) for i in index)
    return func in RESHAPES


def _bound(
    rule: Callable[..., Any], taps: ParameterTaps, args: Any, kwargs: Mapping[str, Any]
) -> BoundArguments | None:
    """The arguments as the rule names them; None if it does not know one, such as out=."""
    try:
        return _signature(rule).bind(taps, *args, **{KEYWORDS.get(k, k): v for k, v in kwargs.items()})
    except TypeError:
        return None


_signature = lru_cache(signature)


@lru_cache
def _open(function: FunctionType) -> FunctionType:
    """The function without its own question who overrides it, so that what it calls is watched instead."""
    scope = function.__globals__ | {"has_torch_function": lambda _: False}
    opened = FunctionType(function.__code__, scope, function.__name__, function.__defaults__)
    opened.__kwdefaults__ = function.__kwdefaults__
    return opened

"""Frozen batch norm within the convolution before it.

With frozen statistics γ(Wx − μ)/σ + β is itself a convolution, of weight Wγ/σ and bias β − μγ/σ. Both are made of the
parameters at every pass and inside of autograd. Parameters, names and gradients stay what they are, up to rounding;
what is saved are the passes over activations, forwards and backwards, that batch norm takes by itself.

Inside `fold_batch_norm` torch's convolutions return a promise. Frozen batch norm that is the first to read it computes
both at once. Whatever else reads it, a hook or a function with a derivative of its own as well, gets the plain
convolution, so no network has to be known to be fit for this. What is checkpointed is computed again later, in the
backward pass, and so is left as it is.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

CONVOLUTIONS = (torch.conv1d, torch.conv2d, torch.conv3d)


@contextmanager
def fold_batch_norm() -> Iterator[None]:
    """Inside, frozen batch norm behind a convolution is folded into it. Not under autocast."""
    mode = _Convolutions()
    with mode, _functions_read_promises():
        yield
    mode.keep_promises()


_reading = threading.RLock()
_inside = 0  # how many `fold_batch_norm` this process is in


@contextmanager
def _functions_read_promises() -> Iterator[None]:
    """Inside, functions with a derivative of their own are applied to plain convolutions: torch does not ask a promise.

    Modules with backward hooks are such functions, too.
    """
    global _inside
    with _reading:
        _inside += 1
        if _inside == 1:
            Function.apply = classmethod(_apply)
    try:
        yield
    finally:
        with _reading:
            _inside -= 1
            if not _inside:
                _give_back_apply()


def _apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
    with torch._C.DisableTorchFunction():  # else it would be promised again
        args, kwargs = _read(args, kwargs)
    return _OWN_APPLY.__get__(None, cls)(*args, **kwargs) if _OWN_APPLY else super(Function, cls).apply(*args, **kwargs)


def _give_back_apply() -> None:
    if _OWN_APPLY:
        Function.apply = _OWN_APPLY
    else:
        del Function.apply


_OWN_APPLY: Any = vars(Function).get("apply")  # None where torch has it in a class above


def _read(args: Any, kwargs: Any) -> Any:
    """The same arguments, with what was promised."""
    return tree_map_only(_Promise, lambda each: each.convolution.plain(), (args, kwargs))


class _Convolutions(TorchFunctionMode):
    """Inside, convolutions return promises."""

    def __init__(self) -> None:
        super().__init__()
        self.promised: list[weakref.ref[_Promise]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func not in CONVOLUTIONS or len(args) < 2 or torch.is_autocast_enabled(args[0].device.type):
            return func(*args, **kwargs)
        if _saves_otherwise():
            return func(*args, **kwargs)
        x, weight, *rest = (each.convolution.plain() if isinstance(each, _Promise) else each for each in args)
        others = dict(kwargs)
        bias = rest.pop(0) if rest else others.pop("bias", None)
        # one that autograd follows, so that a reader that passes us by raises an error, and no gradient is lost
        follows = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, weight, bias))
        promise = torch.empty(0, requires_grad=follows).as_subclass(_Promise)
        promise.convolution = _Convolution(func, x, weight, bias, tuple(rest), others, torch.is_grad_enabled())
        self.promised.append(weakref.ref(promise))
        return promise

    def keep_promises(self) -> None:
        """Compute what somebody still holds: later the parameters may be others."""
        for each in self.promised:
            promise = each()
            if promise is not None:
                promise.convolution.plain()


def _saves_otherwise() -> bool:
    """Whether what a function saves for its derivative is not kept as it is, but computed again, say."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


@dataclass
class _Convolution:
    """A call of one of torch's convolutions."""

    function: Callable[..., Tensor]
    x: Tensor
    weight: Tensor
    bias: Tensor | None
    rest: tuple[Any, ...]  # stride, padding, …
    others: dict[str, Any]  # or some of them by name
    with_gradient: bool
    output: Tensor | None = None

    def plain(self) -> Tensor:
        """The output, computed once."""
        if self.output is None:
            with torch.set_grad_enabled(self.with_gradient):
                self.output = self.function(self.x, self.weight, self.bias, *self.rest, **self.others)
        return self.output

    def normalise(
        self,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,  # noqa: ARG002
        eps: float = 1e-5,
    ) -> Tensor | None:
        """`F.batch_norm` of the output, by one convolution. None where that is not possible, or takes longer."""
        if training or running_mean is None or running_var is None or weight is None or bias is None:
            return None
        if self.output is not None or self.with_gradient is not torch.is_grad_enabled():
            return None
        if len({t.dtype for t in (self.x, self.weight, weight)}) > 1:
            return None
        if self.activations < self.weight.numel():  # folding passes over the weight instead of them
            return None
        scale = weight * torch.rsqrt(running_var + eps)
        shift = bias - running_mean * scale if self.bias is None else bias + (self.bias - running_mean) * scale
        kernel = self.weight * scale.view(-1, *[1] * (self.weight.ndim - 1))
        return self.function(self.x, kernel, shift, *self.rest, **self.others)

    @property
    def activations(self) -> int:
        """About as many numbers as the output has."""
        stride = self.rest[0] if self.rest else self.others.get("stride", 1)
        strides: tuple[int, ...] = (stride,) if isinstance(stride, int) else tuple(stride)
        reduction = math.prod(strides * (self.x.ndim - 2) if len(strides) == 1 else strides)
        return int(self.x.numel() // self.x.shape[1] * len(self.weight) // reduction)


class _Promise(Tensor):
    """The output of a convolution that nobody has read yet."""

    convolution: _Convolution

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _DIMENSIONS:
            return args[0].convolution.x.ndim
        if func is F.batch_norm and isinstance(args[0], _Promise):
            done = args[0].convolution.normalise(*args[1:], **kwargs)
            if done is not None:
                return done
        args, kwargs = _read(args, kwargs)
        return func(*args, **kwargs)


_DIMENSIONS = (Tensor.dim, Tensor.ndim.__get__)  # type: ignore[attr-defined]  # which batch norm looks at first

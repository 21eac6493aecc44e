"""The activation pattern of a network: on which side of its kink every unit is.

A network of ReLUs consists of smooth pieces. Its gradient jumps from piece to piece, so a finite difference of
gradients measures jumps as well as curvature, and the more of them the smaller the displacement. Here a first
evaluation records which side every unit is on, and a second one leaves it there: it is on the piece of the first, also
where θ has moved off it, and the difference is that piece's curvature, which is what differentiating twice gives.

The functions are recognised where torch is called, whichever module or function calls it: the ReLU family, SELU and
ELU, the hard and shrinking activations, `clamp`, `abs`, maxima and minima, max pooling, and comparisons, whose results
are repeated. So is what a loss detaches; parameters that it detaches and slopes that it takes are not (GMDG has both).
What chooses by sorting keeps its kinks. What torch has compiled or scripted is out of sight, and so is a backward pass:
activations that checkpointing computes again are refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any
from weakref import WeakSet

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import CheckpointError

from dspreg.errors import ConfigError
from dspreg.networks.network import Network

Held = Callable[..., Any]  # a function that stays on its piece; called with the arguments of the function


class ActivationPattern:
    """The pieces that all functions with kinks were on, in the order of their calls."""

    def __init__(self) -> None:
        self.pieces: list[tuple[Callable[..., Any], Held]] = []

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Inside, every function with a kink records its piece."""
        self.pieces = []
        with _Calls(self._record):
            yield

    @contextmanager
    def replayed(self) -> Iterator[None]:
        """Inside, the same calls are expected, and each stays on the piece that was recorded."""
        left = iter(self.pieces)

        def replay(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
            expected, held = next(left, (None, func))
            if expected is not func:
                raise ConfigError(_CHANGED)
            return held(*args, **kwargs)

        try:
            with _Calls(replay):
                yield
        except CheckpointError as error:
            raise ConfigError(_CHECKPOINTED) from error
        if next(left, None) is not None:
            raise ConfigError(_CHANGED)

    def _record(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        tensors = [each for each in (*args, *kwargs.values()) if isinstance(each, Tensor)]
        # whole numbers, such as labels, do not move with θ, and |z| of a complex number is smooth but at 0
        smooth = func not in (*_COMPARISONS, *_CUTS) and not any(each.is_floating_point() for each in tensors)
        with torch.no_grad():
            rule = None if smooth else KINKED.get(func, _constant)
            held = rule and rule(*args, **kwargs)  # before `func`, which may work in place
        self.pieces.append((func, held or func))
        return held(*args, **kwargs) if held and func in _HELD_TWICE else func(*args, **kwargs)

    def require_visible(self, net: nn.Module) -> None:
        """Refuse a network with scripted kinks, or with kinks of which none was recorded where parameters move what
        reaches them."""
        seen = any(func not in (*_COMPARISONS, *_CUTS) for func, _ in self.pieces)
        found = set() if seen else {type(m).__name__ for m in _unfrozen(net) if isinstance(m, _MODULES)}
        if found := found | _scripted_kinks(net):
            raise ConfigError(
                f"the network has {', '.join(sorted(found))}, and none of them was seen at work: what is compiled or "
                "scripted does not show its kinks. Use engine 'gauss_newton' or 'lookahead', or the model before it "
                "was compiled"
            )


_CHANGED = (
    "the loss was computed in another way at its second evaluation: with other ReLUs, or in another order. Only θ may "
    "differ between the two evaluations; use engine 'exact', which needs one"
)


_scripted_without_kinks: WeakSet[nn.Module] = WeakSet()


def _scripted_kinks(net: nn.Module) -> set[str]:
    """Functions with kinks that scripted modules call."""
    found = set()
    for module in net.modules():
        if isinstance(module, torch.jit.ScriptModule) and module not in _scripted_without_kinks:
            graph = str(module.inlined_graph) if hasattr(module, "forward") else ""  # a list of modules has none
            called = {name.strip("_") for name in re.findall(r"aten::(\w+)", graph)} & _KINKED_NAMES
            if not called:
                _scripted_without_kinks.add(module)
            found |= called
    return found


class _Calls(TorchFunctionMode):
    """Inside, functions with kinks are called by `call`."""

    def __init__(self, call: Callable[[Callable[..., Any], tuple[Any, ...], Mapping[str, Any]], Any]):
        super().__init__()
        self.call = call

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _BACKWARD:
            _refuse_checkpointing(args[0])
        if func in KINKED or (func in _CUTS and args and args[0].grad_fn is not None):
            return self.call(func, args, kwargs)
        return func(*args, **kwargs)


def _refuse_checkpointing(root: Any) -> None:
    """The backward pass, in which reentrant checkpointing computes activations again, is out of our sight."""
    nodes, queue = set(), [t.grad_fn for t in ([root] if isinstance(root, Tensor) else root)]
    while queue:
        node = queue.pop()
        if node is not None and node not in nodes:
            nodes.add(node)
            queue.extend(parent for parent, _ in node.next_functions)
    if any(node.name() == "CheckpointFunctionBackward" for node in nodes):
        raise ConfigError(_CHECKPOINTED)


_BACKWARD = (Tensor.backward, torch.autograd.backward, torch.autograd.grad)
_CHECKPOINTED = (
    "engine 'finite_difference' cannot hold the ReLUs of a network with checkpointing, which computes them again in "
    "the backward pass. Use engine 'exact' with checkpoint(…, use_reentrant=False), or engine 'lookahead'"
)


# What follows has the arguments of the functions of torch that it stands for, and returns the held one, or None for a
# call without a kink. Masks are bytes and are multiplied: on a CPU `where` and `masked_fill` take eight times as long.


def _bytes(mask: Tensor) -> Tensor:
    return mask.view(torch.uint8)  # faster to multiply with than booleans


def _relu(input: Tensor, inplace: bool = False) -> Held:
    positive = _bytes(input > 0)
    return lambda input, *_, **__: input.mul_(positive) if inplace else input * positive


def _clamp(input: Tensor, min: Any = None, max: Any = None, *, inplace: bool = False) -> Held:
    """At a bound the slope is 0. With `where`, since 0 · ∞ is no number, and what a mask made infinite is clamped."""
    below = None if min is None else input <= min
    above = None if max is None else input >= max

    def held(input: Tensor, min: Any = None, max: Any = None, **_: Any) -> Tensor:
        out = input.clone() if inplace else input
        for mask, bound in ((below, min), (above, max)):
            if mask is not None:
                out = torch.where(mask, bound, out)
        return input.copy_(out) if inplace else out

    return held


def _clamp_min(input: Tensor, min: Any, *, inplace: bool = False) -> Held:
    return _clamp(input, min, inplace=inplace)


def _clamp_max(input: Tensor, max: Any, *, inplace: bool = False) -> Held:
    held = _clamp(input, None, max, inplace=inplace)
    return lambda input, max: held(input, None, max)


def _hardtanh(input: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Held:
    inside = _bytes((input > min_val) & (input < max_val))
    bounds = [(mask, b) for mask, b in ((input <= min_val, min_val), (input >= max_val, max_val)) if b]

    def held(input: Tensor, *_: Any, **__: Any) -> Tensor:
        out = input.mul_(inside) if inplace else input * inside
        for mask, bound in bounds:
            out = out.add_(_bytes(mask), alpha=bound)
        return out

    return held


def _relu6(input: Tensor, inplace: bool = False) -> Held:
    return _hardtanh(input, 0.0, 6.0, inplace)


def _leaky_relu(input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Held:
    positive = _bytes(input > 0)
    return _in_place(inplace, lambda x: x * negative_slope + x * positive * (1 - negative_slope))


def _hardswish(input: Tensor, inplace: bool = False) -> Held:
    inside, above = _bytes((input > -3) & (input < 3)), _bytes(input >= 3)
    return _in_place(inplace, lambda x: x * (x + 3) / 6 * inside + x * above)


def _hardsigmoid(input: Tensor, inplace: bool = False) -> Held:
    inside, above = _bytes((input > -3) & (input < 3)), _bytes(input >= 3)
    return _in_place(inplace, lambda x: (x / 6 + 0.5) * inside + above)


def _elu(input: Tensor, alpha: float = 1.0, inplace: bool = False, *, scale: float = 1.0) -> Held | None:
    if alpha == 1:  # both sides have one slope
        return None
    positive = _bytes(input > 0)
    negative = 1 - positive
    # the exponential is of 0 on the other side, where it might be infinite
    return _in_place(inplace, lambda x: x * positive * scale + torch.expm1(x * negative) * (alpha * scale))


def _selu(input: Tensor, inplace: bool = False) -> Held | None:
    return _elu(input, 1.6732632423543772, inplace, scale=1.0507009873554805)


def _threshold(input: Tensor, threshold: float, value: float, inplace: bool = False) -> Held:
    above = input > threshold
    return _in_place(inplace, lambda x: torch.where(above, x, value))


def _softshrink(input: Tensor, lambd: float = 0.5) -> Held:
    above, below = _bytes(input > lambd), _bytes(input < -lambd)
    return lambda input, *_, **__: (input - lambd) * above + (input + lambd) * below


def _hardshrink(input: Tensor, lambd: float = 0.5) -> Held:
    outside = _bytes(input.abs() > lambd)
    return lambda input, *_, **__: input * outside


def _rrelu(*_: Any, **__: Any) -> Held:
    raise ConfigError(
        "engine 'finite_difference' cannot hold RReLU, whose slopes are drawn anew. Use engine 'exact', 'lookahead' or "
        "'gauss_newton', or another activation"
    )


def _in_place(inplace: bool, compute: Callable[[Tensor], Tensor]) -> Held:
    return lambda input, *_, **__: input.copy_(compute(input.clone())) if inplace else compute(input)


def _prelu(input: Tensor, weight: Tensor) -> Held:  # noqa: ARG001
    positive = _bytes(input > 0)

    def held(input: Tensor, weight: Tensor) -> Tensor:
        by_channel = weight if weight.numel() == 1 else weight.view(1, -1, *[1] * (input.ndim - 2))
        return input * by_channel + input * positive * (1 - by_channel)

    return held


def _abs(input: Tensor) -> Held:
    sign = input.sign().to(torch.int8)
    return lambda input: input * sign


def _larger(input: Tensor, other: Tensor, *, sign: int) -> Held:
    """Of two tensors the larger (sign 1) or the smaller one (−1), entry by entry; equal ones share."""
    first, equal = input > other if sign > 0 else input < other, input == other
    # not by shares alone: one of the two may be infinite, and 0 · ∞ is no number
    return lambda input, other: torch.where(equal, (input + other) / 2, torch.where(first, input, other))


def _extreme(input: Tensor, dim: Any = (), keepdim: bool = False, *, of: Callable[..., Tensor]) -> Held:
    """The extreme over dimensions; equal entries share."""
    equal = torch.eq(input, of(input, dim, True))
    count = equal.sum(dim, keepdim=True)
    # what a mask has made infinite is left out, not multiplied by 0
    return lambda input, *_, **__: torch.where(equal, input / count, 0).sum(dim, keepdim=keepdim)


def _max(input: Tensor, *args: Any, of: Callable[..., Any], sign: int, **kwargs: Any) -> Held:
    """`max` and `min`: over everything, over a dimension with the place, or of two tensors."""
    if isinstance(args[0] if args else kwargs.get("other"), Tensor):
        return _larger(input, *args, sign=sign, **kwargs)
    if not args and not kwargs:
        return _extreme(input, of=torch.amax if sign > 0 else torch.amin)
    dim = args[0] if args else kwargs["dim"]
    found = of(input, *args, **kwargs)
    at = found.indices if found.indices.ndim == input.ndim else found.indices.unsqueeze(dim)
    return lambda input, *_, **__: type(found)((input.gather(dim, at).view_as(found.indices), found.indices))


def _unfrozen(net: nn.Module) -> Iterator[nn.Module]:
    """Without those of a featurizer that is frozen: no parameter moves its kinks, and it may be given as features."""
    frozen: set[nn.Module] = set()
    if isinstance(net, Network) and not any(p.requires_grad for p in net.featurizer.parameters()):
        frozen = set(net.featurizer.modules())
    yield from (module for module in net.modules() if module not in frozen)


def _max_pool(input: Tensor, *args: Any, pool: Callable[..., Any], dims: int, **options: Any) -> Held | None:
    if options.pop("return_indices", False):
        return None
    _, chosen = pool(input, *args, return_indices=True, **options)
    flat = chosen.flatten(-dims)
    return lambda input, *_, **__: input.flatten(-dims).gather(-1, flat).view_as(chosen)


def _repeat(*args: Any, of: Callable[..., Any], **kwargs: Any) -> Held:
    """What has discrete values has the same again."""
    found = of(*args, **kwargs)
    return lambda *_, **__: found


def _constant(input: Tensor) -> Held:
    """What a loss takes for a constant is the same again, as it is for who differentiates twice."""
    found = input.detach().clone()  # what follows may work in place
    return lambda *_, **__: found


_HELD: dict[Callable[..., Held | None], tuple[Callable[..., Any], ...]] = {
    _relu: (F.relu, torch.relu, Tensor.relu),
    _relu6: (F.relu6,),
    _hardtanh: (F.hardtanh,),
    _leaky_relu: (F.leaky_relu,),
    _prelu: (F.prelu, torch.prelu, Tensor.prelu),
    _hardswish: (F.hardswish,),
    _hardsigmoid: (F.hardsigmoid,),
    _elu: (F.elu,),
    _selu: (F.selu, torch.selu),
    _threshold: (F.threshold, torch.threshold),
    _softshrink: (F.softshrink,),
    _hardshrink: (F.hardshrink, torch.hardshrink, Tensor.hardshrink),
    _rrelu: (F.rrelu, torch.rrelu, F.rrelu_, torch.rrelu_),
    _abs: (torch.abs, Tensor.abs, Tensor.__abs__),
    _clamp: (torch.clamp, Tensor.clamp, torch.clip, Tensor.clip),
    _clamp_min: (torch.clamp_min, Tensor.clamp_min),
    _clamp_max: (torch.clamp_max, Tensor.clamp_max),
    partial(_relu, inplace=True): (torch.relu_, Tensor.relu_, F.relu_),
    partial(_hardtanh, inplace=True): (F.hardtanh_,),
    partial(_leaky_relu, inplace=True): (F.leaky_relu_,),
    partial(_elu, inplace=True): (F.elu_,),
    partial(_selu, inplace=True): (F.selu_, torch.selu_),
    partial(_threshold, inplace=True): (F.threshold_,),  # type: ignore[attr-defined]
    partial(_clamp, inplace=True): (Tensor.clamp_, torch.clamp_, Tensor.clip_, torch.clip_),
    partial(_clamp_min, inplace=True): (Tensor.clamp_min_,),
    partial(_clamp_max, inplace=True): (Tensor.clamp_max_,),
    partial(_larger, sign=1): (torch.maximum, Tensor.maximum),
    partial(_larger, sign=-1): (torch.minimum, Tensor.minimum),
    partial(_max, of=torch.max, sign=1): (torch.max, Tensor.max),
    partial(_max, of=torch.min, sign=-1): (torch.min, Tensor.min),
    partial(_extreme, of=torch.amax): (torch.amax, Tensor.amax),
    partial(_extreme, of=torch.amin): (torch.amin, Tensor.amin),
    partial(_max_pool, pool=F.max_pool1d, dims=1): (F.max_pool1d,),
    partial(_max_pool, pool=F.max_pool2d, dims=2): (F.max_pool2d,),
    partial(_max_pool, pool=F.max_pool3d, dims=3): (F.max_pool3d,),
    partial(_max_pool, pool=F.adaptive_max_pool1d, dims=1): (F.adaptive_max_pool1d,),
    partial(_max_pool, pool=F.adaptive_max_pool2d, dims=2): (F.adaptive_max_pool2d,),
    partial(_max_pool, pool=F.adaptive_max_pool3d, dims=3): (F.adaptive_max_pool3d,),
}
_COMPARISONS = (
    torch.gt, torch.ge, torch.lt, torch.le, torch.sign, torch.argmax, torch.argmin, Tensor.gt, Tensor.ge, Tensor.lt,
    Tensor.le, Tensor.__gt__, Tensor.__ge__, Tensor.__lt__, Tensor.__le__, Tensor.sign, Tensor.argmax, Tensor.argmin,
)  # fmt: skip
# Of what the network has computed. Parameters are detached by layers above the loss, which want them displaced.
_CUTS = (torch.detach, Tensor.detach)
KINKED: dict[Callable[..., Any], Callable[..., Held | None]] = {
    **{function: rule for rule, functions in _HELD.items() for function in functions},
    **{function: partial(_repeat, of=function) for function in _COMPARISONS},
}
_KINKED_NAMES = {f.__name__.strip("_") for functions in _HELD.values() for f in functions} - {"elu"}  # mostly smooth
_HELD_TWICE = (  # at both evaluations: the kernels round otherwise, or have another slope at the kink itself
    F.hardswish, F.hardsigmoid, F.elu, F.elu_, F.selu, F.selu_, torch.selu, torch.selu_,
    *(function for function in KINKED if function.__name__.strip("_").startswith(("clamp", "clip"))),
)  # fmt: skip
_MODULES = (
    nn.ReLU, nn.Hardtanh, nn.LeakyReLU, nn.PReLU, nn.Hardswish, nn.Hardsigmoid, nn.SELU, nn.Threshold, nn.Softshrink,
    nn.Hardshrink, nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d,
)  # fmt: skip

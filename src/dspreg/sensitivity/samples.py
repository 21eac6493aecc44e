"""Batches of any loader in one form: inputs and, if there are any, labels."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import getattr_static
from itertools import islice
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules import module
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler

from dspreg.errors import DataError, Notice

LABELS = ("labels", "label", "y", "target", "targets")
NOTICED, ENDLESS = 100, 1_000  # batches of a loader without a length

Inputs = Tensor | dict[str, Tensor]
Function = Callable[..., Any]  # a network, or the prediction of a stack


def architecture(net: nn.Module) -> tuple[object, ...]:
    """A key for what is cached about a network: modules, shapes, hooks, forward methods and plain attributes.

    It differs once a module was replaced, a hook was added or a flag was set. What cannot be seen here, such as a flag
    in another object, must be checked again each time.
    """
    return (tuple(_describe_module(name, m) for name, m in net.named_modules()), *map(tuple, _GLOBAL_HOOKS))


_GLOBAL_HOOKS = (module._global_forward_hooks, module._global_forward_pre_hooks)
_PLAIN = frozenset((bool, int, float, str, type(None)))


def _describe_module(name: str, m: nn.Module) -> tuple[object, ...]:
    own = m.__dict__
    return (
        name,
        type(m),
        getattr_static(type(m), "forward", None),  # a function of the class holds no network
        id(own.get("forward")),
        tuple(v for v in own.values() if type(v) in _PLAIN),
        tuple(None if p is None else p.shape for p in m._parameters.values()),
        tuple(b is None for b in m._buffers.values()),
        tuple(m._forward_hooks),  # by number, which is never used again
        tuple(m._forward_pre_hooks),
    )


Value = TypeVar("Value")


class Facts(Generic[Value]):
    """What was found out about networks, forgotten once something about the network has changed."""

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[nn.Module, tuple[object, dict[object, Value]]] = WeakKeyDictionary()

    def about(self, net: nn.Module, now: tuple[object, ...]) -> dict[object, Value]:
        """What is known, to be added to; `now` is its `architecture`."""
        before, facts = self._known.get(net, (None, {}))
        if before != now:
            facts = {}
            self._known[net] = now, facts
        return facts


@dataclass(frozen=True)
class Samples:
    """Samples of one domain."""

    inputs: Inputs  # (B, …), or several such tensors by name
    y: Tensor | None = None  # (B,) labels, (B, C) soft labels, or whatever `loss` takes

    def __len__(self) -> int:
        first = self.inputs if isinstance(self.inputs, Tensor) else next(iter(self.inputs.values()))
        return len(first)

    def map(self, fn: Callable[[Tensor], Tensor]) -> Samples:
        inputs = fn(self.inputs) if isinstance(self.inputs, Tensor) else {k: fn(v) for k, v in self.inputs.items()}
        return Samples(inputs, None if self.y is None else fn(self.y))

    def tensors(self) -> list[Tensor]:
        inputs = [self.inputs] if isinstance(self.inputs, Tensor) else list(self.inputs.values())
        return inputs + ([] if self.y is None else [self.y])

    @property
    def signature(self) -> tuple[object, ...]:
        """Dtype and shape of one sample: what a network does with one holds for all of the same signature."""
        return tuple((t.dtype, t.shape[1:]) for t in self.tensors())

    def take(self, index: slice | Tensor) -> Samples:
        return self.map(lambda t: t[index])

    def to(self, device: torch.device) -> Samples:
        return self.map(lambda t: t.to(device))

    def with_labels(self, y: Tensor) -> Samples:
        return replace(self, y=y)

    def outputs(self, f: Function) -> Tensor:
        """`f` of the inputs: a tensor, or the `logits` of what it returns."""
        # copies: a first layer that works in place would change the samples for the next pass, and for the caller
        inputs = self.map(torch.clone).inputs
        out = f(inputs) if isinstance(inputs, Tensor) else f(**inputs)
        out = getattr(out, "logits", out)
        if not isinstance(out, Tensor):
            raise DataError(
                f"the network returned a {type(out).__name__}; wanted a tensor (B, …) or an object with `.logits`. "
                "Wrap it in a module that returns the logits."
            )
        return out


def concatenate(parts: Sequence[Samples]) -> Samples:
    """All samples of parts with the same signature, in order."""
    if len(parts) == 1:
        return parts[0]
    inputs = [p.inputs if isinstance(p.inputs, dict) else {"": p.inputs} for p in parts]
    joined: dict[str, Tensor] = {k: torch.cat([i[k] for i in inputs]) for k in inputs[0]}
    labels = [p.y for p in parts if p.y is not None]
    return Samples(joined.get("", joined), torch.cat(labels) if labels else None)


def read_batch(batch: Any) -> Samples:
    """One item of a loader: `(x, y)`, `x`, or a dictionary.

    In a dictionary the labels are under "labels", "label", "y", "target" or "targets". The other entries go to the
    network: a single one as its only argument, several by name.
    """
    if isinstance(batch, Tensor):
        return Samples(batch)
    if isinstance(batch, Mapping):
        tensors = {k: v for k, v in batch.items() if isinstance(v, Tensor)}
        label = next((k for k in LABELS if k in tensors), None)
        inputs = {k: v for k, v in tensors.items() if k != label}
        y = None if label is None else tensors[label]
        if inputs:
            return Samples(next(iter(inputs.values())) if len(inputs) == 1 else inputs, y)
    if isinstance(batch, (tuple, list)) and batch and isinstance(batch[0], Tensor):
        y = batch[1] if len(batch) > 1 else None
        if y is None or isinstance(y, Tensor):
            return Samples(batch[0], y)
    if (x := getattr(batch, "x", None)) is not None and isinstance(x, Tensor):
        return Samples(x, getattr(batch, "y", None))
    raise DataError(
        f"a loader yielded {_describe(batch)}; wanted (x, y), x, or a dictionary of tensors. "
        "Wrap a data set in a torch DataLoader, which collates samples into tensors with a leading batch dimension."
    )


def batches_of(domain: str, loader: Iterable[Any], max_batches: int | None, device: torch.device) -> Iterator[Samples]:
    """The batches of one domain, checked; the loader is iterated once."""
    if isinstance(loader, tuple) and len(loader) == 2 and all(isinstance(t, Tensor) for t in loader):
        raise DataError(f"the domain {domain!r} is a pair of tensors; wanted batches: [(x, y)], or a DataLoader")
    count = 0
    if max_batches is None and not _has_length(loader):
        loader = _require_an_end(domain, loader)
    for i, batch in enumerate(islice(loader, max_batches)):
        samples = read_batch(batch).to(device)
        sizes = {len(t) if t.ndim else 0 for t in samples.tensors()}
        if len(sizes) > 1 or 0 in sizes:
            raise DataError(
                f"batch {i} of {domain!r} has tensors with {sorted(sizes)} samples; wanted one number > 0. "
                "A data set itself yields single samples: wrap it in a torch DataLoader"
            )
        for t in samples.tensors():
            if t.is_floating_point() and not torch.isfinite(t).all():
                raise DataError(
                    f"batch {i} of {domain!r} has NaN or infinite numbers; check its images and their transform"
                )
        count += 1
        yield samples
    if not count:
        raise DataError(f"the domain {domain!r} yielded no batch; is its folder empty, or its iterator exhausted?")


def _has_length(loader: Iterable[Any]) -> bool:
    try:
        len(loader)  # type: ignore[arg-type]
    except Exception:  # `len` of an endless loader may raise
        return False
    return True


def _require_an_end(domain: str, loader: Iterable[Any]) -> Iterator[Any]:
    """The batches of a loader without a length, which may never end."""
    for i, batch in enumerate(loader):
        if i == NOTICED:
            text = f"the domain {domain!r} has given {NOTICED} batches and does not say how many there are"
            warnings.warn(f"{text}; max_batches=16 would be enough for c", Notice, stacklevel=2)
        if i == ENDLESS:
            raise DataError(
                f"the domain {domain!r} has given {ENDLESS:,} batches and does not say how many there are: its loader "
                "may never end. Give max_batches= (16 batches of 32 make c reliable), or a loader with a length"
            )
        yield batch


def notice_same_data(domains: Mapping[str, Iterable[Any]]) -> None:
    """Warn about domains with the same data: c would be 0, or the noise of two draws."""
    names: dict[tuple[int, ...], Any] = {}
    for name, loader in domains.items():
        earlier = names.setdefault(_identity(loader), name)
        if earlier != name:
            text = f"the domains {earlier!r} and {name!r} have the same data: c compares a domain with itself"
            warnings.warn(f"{text}. Give each domain a loader of its own images", Notice, stacklevel=3)


def _identity(loader: Iterable[Any]) -> tuple[int, ...]:
    """Equal for the same object, and for loaders of all of one data set."""
    if isinstance(loader, DataLoader):
        plain = type(loader.sampler) in (SequentialSampler, RandomSampler)  # others may select a part of the data set
        if plain and type(loader.batch_sampler) is BatchSampler:
            return (id(loader.dataset), 0)
    return (id(loader),)


def _describe(batch: Any) -> str:
    if isinstance(batch, (tuple, list)):
        return f"a {type(batch).__name__} of " + ", ".join(type(item).__name__ for item in batch[:4])
    if isinstance(batch, Mapping):
        return "a dictionary with " + ", ".join(f"{k}: {type(v).__name__}" for k, v in list(batch.items())[:4])
    return f"a {type(batch).__name__}"

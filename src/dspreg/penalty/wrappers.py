"""Models wrapped by `torch.compile` or DistributedDataParallel, and the processes that train them together."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from dspreg.errors import ConfigError, Notice
from dspreg.vectors import ParamVector


class DdpProcesses:
    """The processes that train a model together: those of its DDP wrapper, or this one alone."""

    def __init__(self, model: nn.Module):
        self.ddp = next((m for m in model.modules() if isinstance(m, DistributedDataParallel)), None)
        self._own_no_sync = 0  # how many of our own `no_sync` this is in
        if self.ddp is None and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            warnings.warn(
                f"{dist.get_world_size()} processes, but no DistributedDataParallel in the model: each process "
                "computes a penalty of its own. Pass the wrapped model to Penalty",
                Notice,
                stacklevel=3,
            )

    @property
    def group(self) -> Any:
        """The process group; None for one process."""
        return None if self.ddp is None else self.ddp.process_group

    @property
    def accumulates(self) -> bool:
        """Whether this is inside of the user's `no_sync`: gradients are summed now and averaged later."""
        return self.ddp is not None and not self.ddp.require_backward_grad_sync

    @property
    def broadcasts(self) -> bool:
        """Whether the next forward pass sends buffers around."""
        return self.ddp is not None and self.ddp.require_forward_param_sync

    @broadcasts.setter
    def broadcasts(self, value: bool) -> None:
        if self.ddp is not None:
            self.ddp.require_forward_param_sync = value

    @contextmanager
    def synchronised(self) -> Iterator[None]:
        """Inside, gradients are averaged although the user is inside of `no_sync`: c is multiplied with the mean g.

        `.grad` is then the same in all processes, and averaging it again, as DDP does after `no_sync`, changes nothing.
        """
        if self.ddp is None:
            yield
            return
        accumulates, self.ddp.require_backward_grad_sync = self.accumulates, True
        # a compiled model would be compiled anew with the hook
        hook = None if is_compiled(self.ddp) else self.ddp.register_forward_pre_hook(self._refuse_no_sync)
        self._own_no_sync = 0
        try:
            yield
        finally:
            if hook is not None:
                hook.remove()
            self.ddp.require_backward_grad_sync = not accumulates
            if accumulates:
                self.broadcasts = False  # as a forward pass inside of `no_sync` leaves it

    def _refuse_no_sync(self, *_: Any) -> None:
        if torch.is_grad_enabled() and self.accumulates and not self._own_no_sync:
            raise ConfigError(
                "the closure enters no_sync, and a penalty needs the mean gradient of all processes. Leave no_sync out "
                "of the closure. To accumulate, pass a list: penalty.backward([closure, closure, …])"
            )

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Inside, gradients are not averaged."""
        if self.ddp is None:
            yield
            return
        broadcasts = self.broadcasts  # of buffers; DDP's no_sync disables it for the next pass too
        self._own_no_sync += 1
        try:
            with self.ddp.no_sync():
                yield
        finally:
            self._own_no_sync -= 1
            self.broadcasts = broadcasts

    def no_sync_between(self) -> AbstractContextManager[None]:
        """`no_sync` for all parts of a batch but the last; not with `static_graph`, which has to see every pass."""
        return nullcontext() if self.ddp is None or self.ddp.static_graph else self.no_sync()

    @contextmanager
    def no_broadcast(self) -> Iterator[None]:
        """Inside, a forward pass does not send buffers around."""
        broadcasts, self.broadcasts = self.broadcasts, False
        try:
            yield
        finally:
            self.broadcasts = broadcasts

    def own_copy(self, g: Tensor) -> Tensor:
        """A gradient that the next pass does not overwrite."""
        return g.clone() if self.ddp is not None and self.ddp.gradient_as_bucket_view else g

    def mean(self, g: ParamVector, params: Mapping[str, Tensor]) -> ParamVector:
        """The mean over processes, of the parameters that DDP averages. A name that is absent in all stays absent."""
        if self.ddp is None:
            return g
        shared = {id(p) for p in self.ddp.parameters()}
        names = [name for name, p in params.items() if id(p) in shared]
        present = torch.tensor([float(name in g) for name in names], device=params[names[0]].device)
        dist.all_reduce(present, group=self.group)
        names = [name for name, count in zip(names, present.tolist(), strict=True) if count]
        if not names:
            return g
        flat = torch.cat([(g[n] if n in g else torch.zeros_like(params[n])).reshape(-1) for n in names])
        dist.all_reduce(flat, group=self.group)
        flat /= dist.get_world_size(self.group)
        parts = flat.split([params[n].numel() for n in names])
        return ParamVector(
            dict(g) | {n: part.view_as(params[n]).to(params[n].dtype) for n, part in zip(names, parts, strict=True)}
        )


def unwrap(model: nn.Module) -> nn.Module:
    """The model inside its wrappers."""
    while (inside := _inside(model)) is not None:
        model = model.get_submodule(inside)
    return model


def plain_names(model: nn.Module) -> dict[str, str]:
    """The trainable parameters: name without the parts that wrappers add → name in the model."""
    names = {}
    for name, p in model.named_parameters():
        if p.requires_grad:
            module, parts = model, []
            for part in name.split(".")[:-1]:
                if part != _inside(module):
                    parts.append(part)
                module = getattr(module, part)
            names[".".join([*parts, name.rpartition(".")[2]])] = name
    return names


def is_compiled(model: nn.Module) -> bool:
    """Whether the model or a part of it is compiled by `torch.compile`."""
    return any(hasattr(m, "_orig_mod") or m._compiled_call_impl is not None for m in model.modules())


def runs_in_threads(model: nn.Module) -> bool:
    """Whether the model or a part of it is spread over several GPUs, each with a thread of its own."""
    return any(isinstance(m, DataParallel) and len(m.device_ids) > 1 for m in model.modules())


def refuse_shards(model: nn.Module) -> None:
    """Refuse sharded parameters: a shard of θ cannot be displaced by the shard of c⊙g of another process."""
    names = {kind.__name__ for m in model.modules() for kind in type(m).__mro__}
    names |= {kind.__name__ for p in model.parameters() for kind in (type(p), type(p.data))}
    if found := names & {"FullyShardedDataParallel", "FSDPModule", "DTensor"}:
        raise ConfigError(
            f"the model is sharded ({', '.join(sorted(found))}), and a penalty needs whole parameters. Use "
            "DistributedDataParallel, or train the sharded model without a penalty"
        )


def _inside(module: nn.Module) -> str | None:
    """The attribute under which a wrapper holds the wrapped module."""
    if isinstance(module, (DistributedDataParallel, DataParallel)):
        return "module"
    return "_orig_mod" if hasattr(module, "_orig_mod") else None

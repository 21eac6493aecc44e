"""Models wrapped by `torch.compile` or DistributedDataParallel, and the processes that train them together."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Inside, gradients are not averaged."""
        if self.ddp is None:
            yield
            return
        broadcasts = self.ddp.require_forward_param_sync  # of buffers; DDP's no_sync disables it for the next pass too
        try:
            with self.ddp.no_sync():
                yield
        finally:
            self.ddp.require_forward_param_sync = broadcasts

    @contextmanager
    def no_broadcast(self) -> Iterator[None]:
        """Inside, a forward pass does not send buffers around."""
        if self.ddp is None:
            yield
            return
        broadcasts, self.ddp.require_forward_param_sync = self.ddp.require_forward_param_sync, False
        try:
            yield
        finally:
            self.ddp.require_forward_param_sync = broadcasts

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

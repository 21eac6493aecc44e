"""Evaluation mode without side effects, and a check that samples do not influence each other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from dspreg.errors import DataError
from dspreg.networks.batch_norm import scratch_buffers
from dspreg.randomness import untouched
from dspreg.sensitivity.samples import Facts, Function, Samples


@contextmanager
def evaluation_mode(net: nn.Module) -> Iterator[None]:
    """Inside, every module is in evaluation mode; afterwards flags, buffers and random state are as before."""
    flags = {module: module.training for module in net.modules()}
    fast = torch.backends.mha.get_fastpath_enabled()
    try:
        torch.backends.mha.set_fastpath_enabled(False)  # the fused encoder layer cannot be vectorised over samples
        with untouched(), scratch_buffers(net), torch.enable_grad():
            net.eval()
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for module, training in flags.items():
            module.training = training


_separate = Facts[bool]()


def require_separate_samples(
    net: nn.Module, now: tuple[object, ...], f: Function, samples: Samples, *, again: bool = True
) -> None:
    """Refuse a network that mixes samples.

    Args:
        net, now: What is known about it is kept until its `architecture` changes.
        f: It, or a function of it.
        samples: Of one domain.
        again: Check a network that is known, too, on two samples: not every change can be seen from outside.
    """
    known = _separate.about(net, now)
    if samples.signature not in known:
        refuse_mixed_samples(f, samples)
        known[samples.signature] = True
    elif again:
        refuse_mixed_samples(f, samples.take(slice(0, 2)))


@torch.no_grad()
def refuse_mixed_samples(f: Function, samples: Samples) -> None:
    """Refuse a network whose output for one sample depends on the others: it has no per-sample gradient."""
    few = samples.take(slice(0, 4))
    if len(few) == 1:  # add a second one: mirrored along its last dimension
        few = few.map(lambda t: torch.cat([t, t.flip(-1)]))
    try:
        batched = few.outputs(f)
    except (RuntimeError, TypeError, IndexError) as error:
        kinds = ", ".join(f"{t.dtype} {tuple(t.shape)}".removeprefix("torch.") for t in few.tensors())
        raise DataError(f"the network cannot process these samples ({kinds}): {error}") from error
    if batched.ndim == 0 or len(batched) != len(few):
        raise DataError(
            f"the network returned shape {tuple(batched.shape)} for {len(few)} samples; "
            "wanted a leading batch dimension: one row of outputs per sample"
        )
    scale = batched.abs().amax().clamp(min=torch.finfo(batched.dtype).tiny)
    if not torch.isfinite(scale):
        raise DataError("the network's output is NaN or infinite on these samples; check its weights and inputs")
    tolerance = 1e-3 if batched.dtype != torch.float64 else 1e-9
    if (few.outputs(f) - batched).abs().amax() > tolerance * scale:
        raise DataError(
            "the network is random in evaluation mode: the same samples gave two different outputs. "
            "Use nn.Dropout, which evaluation mode switches off, instead of F.dropout(x) or torch.rand in forward"
        )
    mixing = [n for n, m in f.named_modules() if _mixes(m)] if isinstance(f, nn.Module) else []
    try:
        single = torch.cat([few.take(slice(i, i + 1)).outputs(f) for i in range(len(few))])
        mixed = bool((single - batched).abs().amax() > tolerance * scale)
    except ValueError:  # batch norm that takes the batch's statistics refuses a single sample
        mixed = bool(mixing)
        if not mixed:
            raise
    if mixed:
        raise DataError(
            "the network mixes samples: its output for one sample changes with the others in the batch, so "
            "per-sample sensitivities have no meaning. "
            + (f"Batch norm without running statistics: {', '.join(mixing[:4])}. " if mixing else "")
            + "Keep running statistics (track_running_stats=True, evaluation mode), or use group norm or layer norm"
        )


def _mixes(module: nn.Module) -> bool:
    return isinstance(module, nn.modules.batchnorm._BatchNorm) and (module.running_mean is None or module.training)

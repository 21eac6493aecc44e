"""Measuring in several processes: each measures its own batches, and all get the same profile."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dspreg.errors import DataError
from dspreg.sensitivity.meter import Meter
from dspreg.sensitivity.statistics import Spread
from dspreg.sensitivity.summary import Domain
from dspreg.vectors import ParamVector


class ProcessGroup:
    """A `torch.distributed` process group."""

    def __init__(self, group: Any):
        self.group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)

    @contextmanager
    def raise_together(self) -> Iterator[None]:
        """Inside, an error in one process is raised in all of them; otherwise the others would wait for ever."""
        error: Exception | None = None
        try:
            yield
        except Exception as caught:
            error = caught
        messages = self._gather(None if error is None else f"{type(error).__name__}: {error}")
        if error is not None:
            raise error
        for rank, message in enumerate(messages):
            if message is not None:
                raise DataError(f"process {rank} could not measure: {message}")

    def merge(
        self, domains: Mapping[str, Domain], pseudo: Sequence[ParamVector] | None, meter: Meter
    ) -> list[ParamVector] | None:
        """Merge the sums and counts of all processes into `domains`, and return the pseudo-domains of all processes."""
        measured = self._gather((tuple(domains), pseudo is None))
        if len(set(measured)) > 1:
            each = "; ".join(str(names) for names, _ in measured)
            raise DataError(f"the processes measure different domains: {each}")
        factors = self._align_scales(meter)
        shares = []  # of this process in every domain; a pseudo-domain is as large as its domain
        for domain in domains.values():
            own = domain.within.weight
            if self.rank % 2:  # otherwise the first batch of every process would be in the same half
                rest = {
                    name: (domain.within.mean[name] * own - total).clamp_(min=0) for name, total in domain.odd.items()
                }
                domain.odd, domain.in_odd = rest, int(own) - domain.in_odd
            self._merge_spread(domain.within, factors)
            shares.append(own / domain.within.weight)
            domain.odd = self._all_reduce({name: total * factors[name] for name, total in domain.odd.items()})
            domain.in_odd = sum(self._gather(domain.in_odd))
        if pseudo is None:
            return None
        weighted = (
            {name: t * (factors[name] * share) for name, t in mean.items()}
            for mean, share in zip(pseudo, shares, strict=True)
        )
        return [ParamVector(self._all_reduce(mean)) for mean in weighted]

    def _align_scales(self, meter: Meter) -> dict[str, float]:
        """Set every parameter's scale to the smallest of all processes; returns the factors for the sums."""
        gathered = self._gather(dict(meter.scales))
        factors = {}
        for name in meter.params:
            known = [scales[name] for scales in gathered if name in scales]
            own = meter.scales.get(name, 1.0)  # without a scale the sums are zero
            if known:
                meter.scales[name] = min(known)
            factors[name] = (min(known, default=1.0) / own) ** 2
        return factors

    def _merge_spread(self, spread: Spread, factors: Mapping[str, float]) -> None:
        """From means m_r and relative variances r_r over the w_r samples of process r to those over all samples:

        m = Σ w_r m_r / Σ w_r        r = Σ (m_r/m)² r_r + w_r (m_r/m − 1)²
        """
        weights = self._gather((spread.weight, spread.count))
        total = sum(weight for weight, _ in weights)
        own = {name: mean * factors[name] for name, mean in spread.mean.items()}
        mean = self._all_reduce({name: m * (spread.weight / total) for name, m in own.items()})
        relative = {}
        for name, m in own.items():
            share = m / mean[name].clamp(min=torch.finfo(m.dtype).tiny)
            off = torch.where(mean[name] > 0, share - 1, 0)
            relative[name] = share.square() * spread.relative[name] + off.square() * spread.weight
        spread.mean, spread.relative = ParamVector(mean), ParamVector(self._all_reduce(relative))
        spread.weight, spread.count = total, sum(count for _, count in weights)

    def _all_reduce(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The sum over processes, all tensors in one message."""
        flat = torch.cat([t.reshape(-1) for t in tensors.values()])
        dist.all_reduce(flat, group=self.group)
        parts = flat.split([t.numel() for t in tensors.values()])
        return {name: part.view_as(t) for (name, t), part in zip(tensors.items(), parts, strict=True)}

    def _gather(self, value: Any) -> list[Any]:
        """The values of all processes, in the order of ranks."""
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self.group)
        return values

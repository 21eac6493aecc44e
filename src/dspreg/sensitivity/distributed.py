"""Measuring in several processes: each its own batches, and all the same profile."""

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
    """The members of a `torch.distributed` process group."""

    def __init__(self, group: Any):
        self.group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)

    @contextmanager
    def raise_together(self) -> Iterator[None]:
        """What goes wrong inside in one process ends all of them: the others would wait for it for ever."""
        error: Exception | None = None
        try:
            yield
        except Exception as caught:
            error = caught
        messages = self._all(None if error is None else f"{type(error).__name__}: {error}")
        if error is not None:
            raise error
        for rank, message in enumerate(messages):
            if message is not None:
                raise DataError(f"process {rank} could not measure: {message}")

    def join(
        self, domains: Mapping[str, Domain], pseudo: Sequence[ParamVector] | None, meter: Meter
    ) -> list[ParamVector] | None:
        """Put everybody's sums and counts into everybody's domains, and return everybody's pseudo-domains."""
        seen = self._all((tuple(domains), pseudo is None))
        if len(set(seen)) > 1:
            raise DataError(f"the processes measure different domains: {'; '.join(str(names) for names, _ in seen)}")
        factors = self._one_scale(meter)
        shares = []  # of this process in every domain; a pseudo-domain is as large as the domain it stands for
        for domain in domains.values():
            own = domain.within.weight
            if self.rank % 2:  # or everybody's first batch would be in the same half
                rest = {
                    name: (domain.within.mean[name] * own - total).clamp_(min=0) for name, total in domain.odd.items()
                }
                domain.odd, domain.in_odd = rest, int(own) - domain.in_odd
            self._join_spread(domain.within, factors)
            shares.append(own / domain.within.weight)
            domain.odd = self._sum({name: total * factors[name] for name, total in domain.odd.items()})
            domain.in_odd = sum(self._all(domain.in_odd))
        if pseudo is None:
            return None
        weighed = (
            {name: t * (factors[name] * share) for name, t in mean.items()}
            for mean, share in zip(pseudo, shares, strict=True)
        )
        return [ParamVector(self._sum(mean)) for mean in weighed]

    def _one_scale(self, meter: Meter) -> dict[str, float]:
        """The scale of every parameter's sums is then the smallest; returns what sums have to be multiplied with."""
        every = self._all(dict(meter.scales))
        factors = {}
        for name in meter.params:
            known = [scales[name] for scales in every if name in scales]
            own = meter.scales.get(name, 1.0)  # without one the sums are zero
            if known:
                meter.scales[name] = min(known)
            factors[name] = (min(known, default=1.0) / own) ** 2
        return factors

    def _join_spread(self, spread: Spread, factors: Mapping[str, float]) -> None:
        """From means m_r and relative variances r_r over w_r samples of process r to those over all samples:

        m = Σ w_r m_r / Σ w_r        r = Σ (m_r/m)² r_r + w_r (m_r/m − 1)²
        """
        weights = self._all((spread.weight, spread.count))
        total = sum(weight for weight, _ in weights)
        own = {name: mean * factors[name] for name, mean in spread.mean.items()}
        mean = self._sum({name: m * (spread.weight / total) for name, m in own.items()})
        relative = {}
        for name, m in own.items():
            share = m / mean[name].clamp(min=torch.finfo(m.dtype).tiny)
            off = torch.where(mean[name] > 0, share - 1, 0)
            relative[name] = share.square() * spread.relative[name] + off.square() * spread.weight
        spread.mean, spread.relative = ParamVector(mean), ParamVector(self._sum(relative))
        spread.weight, spread.count = total, sum(count for _, count in weights)

    def _sum(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Over processes, all tensors in one message."""
        flat = torch.cat([t.reshape(-1) for t in tensors.values()])
        dist.all_reduce(flat, group=self.group)
        parts = flat.split([t.numel() for t in tensors.values()])
        return {name: part.view_as(t) for (name, t), part in zip(tensors.items(), parts, strict=True)}

    def _all(self, value: Any) -> list[Any]:
        """Everybody's value, in the order of ranks."""
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value, group=self.group)
        return found

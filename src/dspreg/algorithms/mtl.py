"""MTL: tell the classifier which domain it looks at, by the mean of its features."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from dspreg.algorithms.base import Algorithm
from dspreg.algorithms.compatibility import Compatibility
from dspreg.algorithms.task import Task
from dspreg.batches import Batch, Outputs
from dspreg.distributions import Choice
from dspreg.errors import ConfigError
from dspreg.networks import Network


class MTL(Algorithm):
    """Marginal transfer learning: a linear classifier on the features and on the domain's mean features.

        z_i = V f_i + U e_d + b,  e_d ← ema · mean_{i∈d} f_i + (1 − ema) · e_d

    f (N, F) features, e (D, F) embeddings, which start at 0 and are kept without their graph; the gradient goes through
    the mean of the batch. A prediction takes e from the images it is given, as one domain: it depends on how they are
    batched.

    Blanchard et al., JMLR 2021, as a network as in DomainBed, where the embedding is overwritten by noise before it is
    used; ours is used. V and U are one layer of width 2F there, and the sum of the domains' risks is minimised, D times
    ours. Here V and b are the base's classifier and U is `net.marginal`, so that layers above find the classifier they
    know. Changes `build`, `forward` and the prediction; no extra pass.
    """

    space = {"ema": Choice(0.5, 0.9, 0.99, 1.0, key="mtl_ema")}
    compatibility = Compatibility(replaces=frozenset({"forward", "predict"}))
    embeddings: Tensor  # (D, F), the e_d

    def __init__(self, base: Algorithm | None = None, *, ema: float = 0.99):
        super().__init__(base)
        if not 0 < ema <= 1:
            raise ConfigError(f"MTL: ema={ema}; wanted a number above 0, at most 1")
        self.ema = ema

    def build(self, task: Task) -> Network:
        net = self.base.build(task)
        net.marginal = nn.Linear(net.featurizer.width, task.num_classes, bias=False)
        self.register_buffer("embeddings", torch.zeros(task.num_domains, net.featurizer.width))
        return net

    def forward(self, batches: Sequence[Batch]) -> Outputs:
        f = self.net.featurizer(torch.cat([b.x for b in batches]))
        out = Outputs.of(batches, f, self.net.classifier(f), self.task.kind)
        means = torch.stack([each.mean(0) for each in out.by_domain(f)])
        e = self.ema * means + (1 - self.ema) * self.embeddings[list(out.domains)]
        self.stage("embeddings", e, rows=out.domains)
        of_each = torch.cat([one.expand(size, -1) for one, size in zip(e, out.sizes, strict=True)])
        return out.replace(logits=out.logits + self.marginal(of_each))

    def predict(self, x: Tensor) -> Tensor:
        f = self.net.featurizer(x)
        return self.logits(f, f.mean(0))

    def measured(self, batch: Batch) -> Callable[[Tensor], Tensor]:
        with torch.no_grad():
            e = self.net.featurizer(batch.x).mean(0)
        return lambda x: self.logits(self.net.featurizer(x), e)

    def logits(self, f: Tensor, e: Tensor) -> Tensor:
        """(B, C), of features (B, F) of a domain with the embedding e (F,)."""
        return cast(Tensor, self.net.classifier(f)) + self.marginal(e.expand_as(f))

    def marginal(self, e: Tensor) -> Tensor:
        """U e, row by row."""
        return cast(Tensor, cast(nn.Module, self.net.marginal)(e))

"""GroupDRO: weigh the domains by how badly they do."""

from __future__ import annotations

import torch
from torch import Tensor

from dspreg.algorithms.base import Algorithm
from dspreg.algorithms.task import Task
from dspreg.batches import Outputs
from dspreg.distributions import LogUniform
from dspreg.errors import ConfigError
from dspreg.networks import Network


class GroupDRO(Algorithm):
    """Minimise a risk in which domains that do badly gain weight.

        q_d ∝ q_d · exp(η CE_d),  L = Σ_d q_d CE_d

    Sagawa et al., ICLR 2020. `eta` is η. q starts uniform and is kept as a logarithm, so it is saved with the model.
    A step on some of the domains renormalises among those. Changes `loss`, through the weights of the risks, so that
    penalties below it stay; no extra pass.
    """

    space = {"eta": LogUniform(-3, -1, key="groupdro_eta")}
    log_q: Tensor  # (D,)

    def __init__(self, base: Algorithm | None = None, *, eta: float = 0.01):
        super().__init__(base)
        if not eta > 0:
            raise ConfigError(f"GroupDRO: eta={eta}; wanted a number > 0")
        self.eta = eta

    def build(self, task: Task) -> Network:
        self.register_buffer("log_q", torch.zeros(task.num_domains))
        return self.base.build(task)

    def loss(self, out: Outputs) -> Tensor:
        log_q = self.log_q[list(out.domains)] + self.eta * out.risks().detach()
        self.stage("log_q", log_q, rows=out.domains)
        self.note(largest_weight=log_q.softmax(0).max())
        return self.base.loss(out.replace(weights=log_q.softmax(0)))

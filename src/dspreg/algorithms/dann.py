"""DANN: features that a discriminator cannot tell the domain from."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dspreg.algorithms.base import Algorithm, Direction, Log
from dspreg.algorithms.compatibility import Compatibility
from dspreg.algorithms.stack import give_gradients, network_groups, regroup
from dspreg.algorithms.task import Task
from dspreg.batches import Batch, Outputs, at_least_float32
from dspreg.devices import send
from dspreg.distributions import Choice, LogUniform
from dspreg.errors import ConfigError
from dspreg.networks import Network
from dspreg.randomness import seeded
from dspreg.vectors import ParamVector

INF = float("inf")
RANGES = {  # of the options: least, and below what
    "weight": (0, INF), "grad_penalty": (0, INF), "weight_decay_d": (0, INF), "beta1": (0, 1), "mlp_dropout": (0, 1),
    "d_steps_per_g_step": (1, INF), "mlp_width": (1, INF), "mlp_depth": (2, INF),
}  # fmt: skip


class DANN(Algorithm):
    """Domain-adversarial training: a network against a discriminator that guesses the domain from its features.

        network:        min L − weight · A        discriminator:  min A
        A = mean_i CE(disc(f_i), d_i) + grad_penalty · mean_i ‖∂CE(disc(f_i), d_i)/∂f_i‖²

    f (N, F) features, d (N,) domains. A step is one or the other: of every d_steps_per_g_step + 1 steps one is the
    network's, the first with the default 1, and in the others no weight of the network moves. Half the steps then
    train the classifier; the loss in the log of the discriminator's is A.

    Ganin et al., JMLR 2016, in DomainBed's form, which alternates and reverses no gradient. Its lr_g and weight_decay_g
    are those of the run, and so is lr_d if none is given; both optimisers have the betas (beta1, 0.9) where the run's
    knows betas. Search draws lr_d as for large images, and the run's lr by its own key. Changes `loss` and `update`,
    and `build` for the discriminator; one pass, as ERM.
    """

    space = {
        "weight": LogUniform(-2, 2, key="lambda"),
        "d_steps_per_g_step": LogUniform(0, 3, key="d_steps_per_g_step", integer=True, base=2),
        "grad_penalty": LogUniform(-2, 1, key="grad_penalty"),
        "beta1": Choice(0.0, 0.5, key="beta1"),
        "mlp_width": LogUniform(6, 10, key="mlp_width", integer=True, base=2),
        "mlp_depth": Choice(3, 4, 5, key="mlp_depth"),
        "mlp_dropout": Choice(0.0, 0.1, 0.5, key="mlp_dropout"),
        "weight_decay_d": LogUniform(-6, -2, key="weight_decay_d"),
        "lr_d": LogUniform(-5, -3.5, key="lr_d"),
    }
    discriminator: nn.Module

    def __init__(
        self,
        base: Algorithm | None = None,
        *,
        weight: float = 1.0,
        d_steps_per_g_step: int = 1,
        grad_penalty: float = 0.0,
        beta1: float = 0.5,
        mlp_width: int = 256,
        mlp_depth: int = 3,
        mlp_dropout: float = 0.0,
        weight_decay_d: float = 0.0,
        lr_d: float | None = None,
    ):
        super().__init__(base)
        self.weight, self.d_steps_per_g_step, self.grad_penalty = weight, d_steps_per_g_step, grad_penalty
        self.mlp_width, self.mlp_depth, self.mlp_dropout = mlp_width, mlp_depth, mlp_dropout
        self.beta1, self.weight_decay_d, self.lr_d = beta1, weight_decay_d, lr_d
        for name, (least, below) in RANGES.items():
            if not least <= (value := getattr(self, name)) < below:
                wanted = f"at least {least}" if below == INF else f"a number from {least} to below {below}"
                raise ConfigError(f"DANN: {name}={value}; wanted {wanted}")
        if lr_d is not None and not 0 < lr_d < INF:
            raise ConfigError(f"DANN: lr_d={lr_d}; wanted a finite number > 0, or None for the run's")
        self.compatibility = Compatibility(trains_featurizer=grad_penalty > 0)

    def build(self, task: Task) -> Network:
        net = self.base.build(task)
        sizes = [net.featurizer.width, *[self.mlp_width] * (self.mlp_depth - 1), task.num_domains]
        with seeded(*task.key, "DANN"):
            self.discriminator = perceptron(sizes, self.mlp_dropout)
        return net

    def configure_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        own: dict[str, Any] = {} if self.lr_d is None else {"lr": self.lr_d}
        if len(optimizer.defaults.get("betas", ())) == 2:  # not of Adan, whose three mean something else
            own["betas"] = betas = (self.beta1, 0.9)
            for group in network_groups(optimizer):
                group["betas"] = betas
        regroup(optimizer, self.discriminator.parameters(), weight_decay=self.weight_decay_d, **own)

    @property
    def discriminating(self) -> bool:
        """Whether this step is the discriminator's. DomainBed counts a step before it looks."""
        return (self.t + 1) % (self.d_steps_per_g_step + 1) < self.d_steps_per_g_step

    def domain_loss(self, out: Outputs) -> Tensor:
        """A, which the discriminator lowers and the network raises."""
        f = out.features
        domains = send(torch.tensor(out.domains).repeat_interleave(torch.tensor(out.sizes)), f.device)
        guess = at_least_float32(self.discriminator(f))
        each = F.cross_entropy(guess, domains, reduction="none")
        loss = each.mean()
        if self.grad_penalty:
            (slopes,) = torch.autograd.grad(each.sum(), f, create_graph=True)
            loss = loss + self.grad_penalty * slopes.square().sum(1).mean()
        self.note(domain_loss=loss)
        return loss

    def loss(self, out: Outputs) -> Tensor:
        return self.base.loss(out) - self.weight * self.domain_loss(out)

    def update(self, direction: Direction, batches: Sequence[Batch]) -> Log:
        return self.base.update(self.discriminate if self.discriminating else direction, batches)

    def discriminate(self, batches: Sequence[Batch]) -> tuple[Tensor, ParamVector]:
        """A direction in which the network stays where it is: the optimiser skips what has no gradient."""
        loss = self.stack.evaluate(self.domain_loss, batches)
        give_gradients(loss, self.discriminator)
        return loss.detach(), ParamVector()


def perceptron(sizes: Sequence[int], dropout: float) -> nn.Sequential:
    """Linear layers of these widths; dropout, then ReLU between them."""
    layers = [[nn.Linear(a, b), nn.Dropout(dropout), nn.ReLU()] for a, b in pairwise(sizes)]
    return nn.Sequential(*[part for layer in layers for part in layer][:-2])

"""DomainDrop: drop the channels that tell the domain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dspreg.algorithms.base import Algorithm
from dspreg.algorithms.compatibility import ONLY_CLASSES, Compatibility
from dspreg.algorithms.image_reader import domains_of, intercepted, repeat
from dspreg.algorithms.task import Task
from dspreg.batches import Batch, Outputs, at_least_float32
from dspreg.devices import send
from dspreg.errors import ConfigError
from dspreg.networks import Network
from dspreg.networks.feature_hooks import default_places, probe_outputs, require_places
from dspreg.networks.stages import map_stages
from dspreg.randomness import seeded

INF = float("inf")


class DomainDrop(Algorithm):
    """Drop the channels from which a discriminator tells the domain, and ask for one answer under two such drops.

        L + mean_l CE(V_l r(h̄_l) + b_l, d) + weight · ½ mean [KL(p¹ ‖ p²) + KL(p² ‖ p¹)]

    Every image is there twice. h_l (2N, C, H, W) are the maps behind stage l, h̄_l their means over pixels, and r passes
    them on and turns their gradient into −`reverse` times itself: the discriminators V_l learn the domain d, and the
    network unlearns it. In a share `p` of the steps, channels of one random stage are dropped, and the others scaled up
    by as many as are gone:

        score of channel c: mean over pixels of h_c V_dc, scaled from 0 to 1 over channels, before the mean and after it
        dropped: the share `drop` of channels with the largest u_c^(1/score_c),  u_c ~ U(0, 1)

    p¹ and p² are the predictions for the two copies at `temperature`; the mean is over samples and classes.

    Args:
        drop, p, reverse, weight, temperature: As above.
        places: Names of modules of the featurizer that end its stages. None to find them: `model.layer1` to
            `model.layer4` of timm's ResNets.

    Guo et al., ICCV 2023, with the options of their script for PACS and ResNet-18. Theirs divides 0 by 0 where all
    channels of a pixel are equal, and then drops nothing; here such a pixel counts 0. Their batch norm trains. The
    discriminators are in `net`, so that layers above see them among the parameters. Changes `build`, `forward` and
    `loss`; one pass over twice the images.
    """

    # it compares predictions by their softmax
    compatibility = Compatibility(kinds=ONLY_CLASSES, rearranges_samples=True, reads_images=True)

    def __init__(
        self,
        base: Algorithm | None = None,
        *,
        drop: float = 0.33,
        p: float = 0.8,
        reverse: float = 0.25,
        weight: float = 1.5,
        temperature: float = 5.0,
        places: list[str] | None = None,
    ):
        super().__init__(base)
        for name, value in {"reverse": reverse, "weight": weight}.items():
            if not 0 <= value < INF:
                raise ConfigError(f"DomainDrop: {name}={value}; wanted a finite number ≥ 0")
        if not 0 <= drop < 1:
            raise ConfigError(f"DomainDrop: drop={drop}; wanted a share from 0 to below 1")
        if not 0 <= p <= 1:
            raise ConfigError(f"DomainDrop: p={p}; wanted a probability, from 0 to 1")
        if not 0 < temperature < INF:
            raise ConfigError(f"DomainDrop: temperature={temperature}; wanted a finite number > 0")
        self.drop, self.p, self.reverse, self.weight = drop, p, reverse, weight
        self.temperature, self.places = temperature, places

    def build(self, task: Task) -> Network:
        net = self.base.build(task)
        if "domaindrop" in net._modules:
            raise ConfigError("DomainDrop stands twice in this stack; wanted once")
        featurizer = net.featurizer
        places = self.places if self.places is not None else map_stages(featurizer) or default_places(featurizer)
        require_places(featurizer, places, "DomainDrop")
        seen = probe_outputs(featurizer, places)
        for place in places:
            if place not in seen or seen[place].ndim != 4:
                gives = tuple(seen[place].shape) if place in seen else "nothing"
                raise ConfigError(
                    f"DomainDrop wants feature maps (B, C, H, W), and {place} gives {gives}; name other places=[…], or "
                    "take a convolutional network"
                )
        with seeded(*task.key, "DomainDrop"):
            channels = {place: seen[place].shape[1] for place in places}
            stages = [Stage(n, task.num_domains, self.drop, self.reverse) for n in channels.values()]
        for place, stage in zip(places, stages, strict=True):
            featurizer.get_submodule(place).register_forward_hook(stage)
        net.domaindrop = nn.ModuleList(stages)
        return net

    def forward(self, batches: Sequence[Batch]) -> Outputs:
        stages = [each for each in self.net.get_submodule("domaindrop").children() if isinstance(each, Stage)]
        chosen = int(torch.randint(len(stages), ())) if float(torch.rand(())) < self.p else None

        def show(twice: Sequence[Batch]) -> Sequence[Batch]:
            for stage in stages:
                stage.domains = domains_of(twice)
            return twice

        with listening(stages, chosen), intercepted(self, show):
            out: Outputs = self.base(repeat(batches, 2))
            told = torch.stack([loss for stage in stages for loss in stage.losses]).mean()
        copies = {name: by_copy(out, getattr(out, name)) for name in ("features", "logits", "labels")}
        if out.sample_weights is not None:
            copies["sample_weights"] = by_copy(out, out.sample_weights)
        return out.replace(**copies, extras={**out.extras, "DomainDrop": told})

    def loss(self, out: Outputs) -> Tensor:
        told, apart = out.extras["DomainDrop"], self.inconsistency(out)
        self.note(domain_loss=told, inconsistency=apart)
        return self.base.loss(out) + told + self.weight * apart

    def inconsistency(self, out: Outputs) -> Tensor:
        log_p = (at_least_float32(out.logits) / self.temperature).log_softmax(1)
        halves = [each.chunk(2) for each in out.by_domain(log_p)]
        one, two = (torch.cat(half) for half in zip(*halves, strict=True))
        return ((one.exp() - two.exp()) * (one - two)).mean() / 2  # both directions together


class Stage(nn.Module):
    """A forward hook that is a module: the discriminator of one stage. It is at work inside of `listening` alone."""

    def __init__(self, channels: int, domains: int, drop: float, reverse: float):
        super().__init__()
        self.guess = nn.Linear(channels, domains)
        self.drop, self.reverse = drop, reverse
        self.domains: Tensor | None = None  # of the samples that pass
        self.chosen = False  # to drop channels
        self.losses: list[Tensor] = []

    def forward(self, module: nn.Module, given: tuple[Tensor, ...], x: Tensor) -> Tensor | None:  # noqa: ARG002
        if self.domains is None or len(self.domains) != len(x):
            return None
        pooled = x.mean((2, 3))
        reversed_ = pooled.detach() - self.reverse * (pooled - pooled.detach())
        self.losses.append(F.cross_entropy(at_least_float32(self.guess(reversed_)), self.domains))
        if not self.chosen:
            return None
        kept = self.keep(at_least_float32(x.detach()), self.guess.weight.detach()[self.domains])
        return x * kept.to(x.dtype)

    def keep(self, x: Tensor, weight: Tensor) -> Tensor:
        """0 for the channels that are dropped, and what makes up for them for the others. (B, C, 1, 1)"""
        score = unit_range(unit_range(x * weight[:, :, None, None]).mean((2, 3)))
        u = send(torch.rand(score.shape), score.device).to(score.dtype)
        key = u ** (1 / score)  # a score of 0 is never dropped
        dropped = int(self.drop * key.shape[1])
        kept = (key <= key.sort(1, descending=True).values[:, dropped : dropped + 1]).to(x.dtype)
        return (kept * (kept.numel() / kept.sum()))[:, :, None, None]


@contextmanager
def listening(stages: Sequence[Stage], chosen: int | None) -> Iterator[None]:
    """Inside, stages keep how well they guess the domain, and the chosen one drops channels."""
    try:
        for i, stage in enumerate(stages):
            stage.chosen, stage.losses = i == chosen, []
        yield
    finally:
        for stage in stages:
            stage.domains, stage.chosen, stage.losses = None, False, []


def unit_range(scores: Tensor) -> Tensor:
    """From 0 to 1 over channels; 0 where they are all equal. (B, C, …)"""
    low, high = scores.amin(1, keepdim=True), scores.amax(1, keepdim=True)
    return torch.where(high > low, (scores - low) / (high - low), 0.0)


def by_copy(out: Outputs, rows: Tensor) -> Tensor:
    """All first copies of a domain, then all second ones: its even and its odd samples are different images (IRM)."""
    return torch.cat([each.unflatten(0, (-1, 2)).transpose(0, 1).flatten(0, 1) for each in out.by_domain(rows)])

"""ARM: learn to adapt to a domain from a batch of its images, without labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from dspreg.algorithms.base import Algorithm
from dspreg.algorithms.compatibility import Compatibility
from dspreg.algorithms.task import Task
from dspreg.batches import Batch, Outputs
from dspreg.errors import ConfigError
from dspreg.networks import Network


class ARM(Algorithm):
    """Adaptive risk minimisation: every image comes with a summary of its domain as one more channel.

        z_i = net([x_i, k_d]),  k_d = mean_{i∈d} h(x_i)

    x (N, C, H, W) images, h a small convolutional network of images to maps (1, H, W), trained with the rest: three
    convolutions of 5 × 5, `width` channels between them. A prediction takes k from the images it is given, as one
    domain: it depends on how they are batched.

    Zhang et al., NeurIPS 2021, the context version (ARM-CML), as in DomainBed, where h is made after the optimiser and
    never trains; ours trains. Convolutions of h before a batch norm have no bias here: it would change nothing. The new
    channel's weights in the first convolution start as those of the first channel. DomainBed's prediction cuts a batch
    into blocks of the training batch's size where it can; ours takes it whole. Changes `build`, `forward` and the
    prediction; at 224 pixels h costs more than a ResNet-50.
    """

    compatibility = Compatibility(replaces=frozenset({"forward"}), reads_images=True)

    def __init__(self, base: Algorithm | None = None, *, width: int = 64):
        super().__init__(base)
        if width < 1:
            raise ConfigError(f"ARM: width={width}; wanted a number of channels, at least 1")
        self.width = width

    def build(self, task: Task) -> Network:
        net = self.base.build(task)
        first = next((m for m in net.featurizer.modules() if isinstance(m, nn.Conv2d)), None)
        if first is None:
            raise ConfigError(
                f"ARM gives images one more channel, and {type(net.featurizer).__name__} has no convolution to take "
                "it; wanted a network of images (B, C, H, W)"
            )
        net.context = context_network(first.in_channels, self.width)
        add_channel(first)
        return net

    def forward(self, batches: Sequence[Batch]) -> Outputs:
        x = torch.cat([b.x for b in batches])
        maps = self.context(x).split([len(b) for b in batches])
        contexts = torch.cat([each.mean(0).expand_as(each) for each in maps])
        features = self.net.featurizer(torch.cat([x, contexts], 1))
        return Outputs.of(batches, features, self.net.classifier(features), self.task.kind)

    def predict(self, x: Tensor) -> Tensor:
        return self.predict_with(x, self.context(x).mean(0))

    def measured(self, batch: Batch) -> Callable[[Tensor], Tensor]:
        with torch.no_grad():
            k = self.context(batch.x).mean(0)
        return lambda x: self.predict_with(x, k)

    def predict_with(self, x: Tensor, k: Tensor) -> Tensor:
        """The prediction for images of a domain with the context k (1, H, W)."""
        return self.base.predict(torch.cat([x, k.expand_as(x[:, :1])], 1))

    def context(self, x: Tensor) -> Tensor:
        """h of every image. (B, 1, H, W)"""
        return cast(Tensor, cast(nn.Module, self.net.context)(x))


def context_network(channels: int, width: int) -> nn.Module:
    def block(inputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, width, 5, padding=2, bias=False), nn.BatchNorm2d(width), nn.ReLU()]

    return nn.Sequential(*block(channels), *block(width), nn.Conv2d(width, 1, 5, padding=2))


def add_channel(conv: nn.Conv2d) -> None:
    """One more input channel, at the end, that starts with the first one's weights."""
    weight = conv.weight
    conv.weight = nn.Parameter(torch.cat([weight.data, weight.data[:, :1]], 1), weight.requires_grad)
    conv.in_channels += 1

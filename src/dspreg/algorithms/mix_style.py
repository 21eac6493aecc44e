"""MixStyle: features of one image in the style of another."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dspreg.algorithms.base import Algorithm
from dspreg.algorithms.compatibility import Compatibility
from dspreg.algorithms.task import Task
from dspreg.devices import send
from dspreg.errors import ConfigError
from dspreg.networks import Network
from dspreg.networks.stages import channels_at, early_stages


class MixStyle(Algorithm):
    """While training, mix the means and deviations of feature maps between images.

        (x_i − μ_i)/σ_i · (m σ_i + (1 − m) σ_j) + m μ_i + (1 − m) μ_j,  m ~ Beta(α, α),  j a random permutation of i

    x (N, C, H, W) feature maps of all domains together; μ and σ of each image and channel over H × W are constants, σ
    with denominator HW − 1. At each place, in a share `p` of the steps. Prediction and measuring see plain features.

    Args:
        p: The share.
        alpha: α.
        places: Names of modules of the featurizer whose outputs are mixed. None for those that end the first two
            stages: `model.layer1` and `model.layer2` of timm's ResNets.

    Zhou et al., ICLR 2021, with random mixing as their code has by default. They take the first two stages on
    OfficeHome and the first three on PACS, as SWAD does everywhere. Changes `build`; no extra pass.
    """

    compatibility = Compatibility(reads_images=True)

    def __init__(
        self, base: Algorithm | None = None, *, p: float = 0.5, alpha: float = 0.1, places: list[str] | None = None
    ):
        super().__init__(base)
        if not 0 <= p <= 1:
            raise ConfigError(f"MixStyle: p={p}; wanted a probability, from 0 to 1")
        if not alpha > 0:
            raise ConfigError(f"MixStyle: alpha={alpha}; wanted a number > 0")
        self.p, self.alpha, self.places = p, alpha, places

    def build(self, task: Task) -> Network:
        net = self.base.build(task)
        modules, kind = dict(net.featurizer.named_modules()), type(net.featurizer).__name__
        places = early_stages(net.featurizer) if self.places is None else self.places
        if not places:
            raise ConfigError(
                f"MixStyle wants feature maps (B, C, H, W) of early stages, and {kind} has none that are known; "
                "name the modules that make them with places=[…], or take a convolutional network"
            )
        every = net.mixing if "mixing" in net._modules else nn.ModuleList()  # also those of another one below
        assert isinstance(every, nn.ModuleList)
        net.mixing = every  # in the network, so that its training mode switches them
        for place in places:
            if place not in modules:
                some = ", ".join(list(modules)[1:9])
                raise ConfigError(f"MixStyle: {kind} has no module {place!r}; it has {some}, …")
            mixing = Mixing(self.p, self.alpha, place, channels_at(net.featurizer, place))
            modules[place].register_forward_hook(mixing)
            every.append(mixing)
        return net


class Mixing(nn.Module):
    """A forward hook that is a module: it has a training mode, and a copy of the network has a copy of it."""

    def __init__(self, p: float, alpha: float, place: str, channels: int | None):
        super().__init__()
        self.p, self.alpha, self.place, self.channels = p, alpha, place, channels

    def forward(self, module: nn.Module, given: tuple[Tensor, ...], x: Tensor) -> Tensor | None:  # noqa: ARG002
        if not self.training:
            return None
        self.check(x)
        if torch.rand(()) >= self.p:
            return None
        mean, deviation = style(x.detach())
        m = torch.distributions.Beta(self.alpha, self.alpha).sample((len(x), 1, 1, 1))
        m, other = send(m.to(x.dtype), x.device), send(torch.randperm(len(x)), x.device)
        scale = m * deviation + (1 - m) * deviation[other]
        return (x - mean) / deviation * scale + m * mean + (1 - m) * mean[other]

    def check(self, x: Tensor) -> None:
        if x.ndim != 4 or x.shape[2] * x.shape[3] < 2 or self.channels not in (None, x.shape[1]):
            raise ConfigError(
                f"MixStyle wants feature maps (B, C, H, W) of two pixels or more, and {self.place} gives "
                f"{tuple(x.shape)}; name other places=[…], or take a convolutional network"
            )


def style(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation of every image and channel over its pixels. Both (B, C, 1, 1)"""
    variance, mean = torch.var_mean(x, (2, 3), keepdim=True)
    return mean, (variance + 1e-6).sqrt()

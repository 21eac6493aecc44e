"""Networks for small images that both sides can train, and one that computes next to nothing."""

from __future__ import annotations

from torch import Tensor, nn

from dspreg.networks import Featurizer, SmallCNN


class Pooled(Featurizer):
    """The mean of every channel: what a run with it takes is reading images, and what stands around a step."""

    width = 3

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Conv2d(3, 3, 1)  # something to train

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.scale(x.mean(dim=(2, 3), keepdim=True)).flatten(1)
        return features


class Borrowed(Featurizer):
    """DomainBed's own network for digits, from the checkout."""

    width = 128

    def __init__(self, channels: int) -> None:
        super().__init__()
        from domainbed.networks import MNIST_CNN

        self.net = MNIST_CNN((channels, 28, 28))

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.net(x)
        return features


def make_featurizer(name: str, channels: int = 3) -> Featurizer:
    """By the names of the benchmark: `small-cnn`, `mnist-cnn` or `pooled`."""
    if name == "small-cnn":
        return SmallCNN(channels)
    return Borrowed(channels) if name == "mnist-cnn" else Pooled()

"""Featurizers for small inputs. For photographs, use any timm model."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from dspreg.networks.network import Featurizer


class SmallCNN(Featurizer):
    """Three convolutions with group norm, for images of about 28 pixels.

    Group norm, because batch norm mixes the samples of a batch in training, and with them the domains. Pooled to 3 × 3
    positions instead of one: the position of a stroke distinguishes a 6 from a 9.
    """

    stages = ("layers.2", "layers.5")
    takes_features = True

    def __init__(self, channels: int = 3, width: int = 64, dropout: float = 0.0):
        super().__init__()
        self.width = 9 * width
        self.layers = nn.Sequential(
            nn.Conv2d(channels, width // 4, 3, padding=1),
            nn.GroupNorm(4, width // 4),
            nn.ReLU(),
            nn.Conv2d(width // 4, width // 2, 3, stride=2, padding=1),
            nn.GroupNorm(8, width // 2),
            nn.ReLU(),
            nn.Conv2d(width // 2, width, 3, stride=2, padding=1),
            nn.GroupNorm(8, width),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(3),
            nn.Flatten(),
            nn.Dropout(dropout),
        )

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.layers(x) if x.ndim != 2 else self.layers[-1](x))

    def undropped(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.layers[:-1](x))


class TinyMLP(Featurizer):
    """One hidden layer, for tests and toy problems: vectors (B, inputs) to features (B, width)."""

    def __init__(self, inputs: int, width: int = 8, dropout: float = 0.0):
        super().__init__()
        self.width = width
        self.layers = nn.Sequential(nn.Linear(inputs, width), nn.Tanh(), nn.Dropout(dropout))

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.layers(x))


class TinyCNN(Featurizer):
    """Two convolutions, for tests and toy problems: small images (B, channels, H, W) to features (B, width)."""

    stages = ("layers.1",)

    def __init__(self, channels: int = 3, width: int = 8, dropout: float = 0.0):
        super().__init__()
        self.width = width
        self.layers = nn.Sequential(
            nn.Conv2d(channels, 4, 3, padding=1),
            nn.Tanh(),
            nn.Conv2d(4, width, 3, stride=2, padding=1),
            nn.Tanh(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Dropout(dropout),
        )

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.layers(x))

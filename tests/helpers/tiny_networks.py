"""Networks as users write them, by import path: for series of two channels, for volumes, for tokens."""

import torch
from torch import nn

from dspreg.networks import Network


class Encoder(nn.Module):
    """Series (B, 2, L) to features (B, 8)."""

    width = 8

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv1d(2, 8, 5), nn.Tanh(), nn.AdaptiveAvgPool1d(1), nn.Flatten())

    def forward(self, x):
        return self.layers(x)


class Steeper(Encoder):
    """Another network under the same tensors."""

    def __init__(self):
        super().__init__()
        self.layers[1] = nn.Hardtanh(-2.0, 2.0)


class Volumes(nn.Module):
    """Volumes (B, 1, D, H, W) to features (B, 4)."""

    width = 4

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv3d(1, 4, 3)

    def forward(self, x):
        return self.conv(x).tanh().mean((2, 3, 4))


class Tokens(nn.Module):
    """Tokens (B, L) to features (B, 6)."""

    width = 6

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 6)

    def forward(self, x):
        return self.embedding(x).mean(1)


def with_head():
    return Network(Encoder(), nn.Sequential(nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 3)))


def with_two_outputs():
    return Network(Encoder(), nn.Linear(8, 2))


def without_width():
    return nn.Linear(3, 3)


def not_a_network():
    return torch.zeros(3)


def _module_that_fails():
    raise OSError("no such file")


fails = _module_that_fails

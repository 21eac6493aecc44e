"""A network in two parts, because many methods use the features between them."""

from __future__ import annotations

from typing import ClassVar, cast

from torch import Tensor, nn


class Featurizer(nn.Module):
    """Maps images (B, …) to features (B, width)."""

    width: int
    # whether rows (B, width) of what `undropped` returned may be given in the place of images
    takes_features: ClassVar[bool] = False
    stages: ClassVar[tuple[str, ...]] = ()  # last modules of the early stages, for methods that use feature maps

    def undropped(self, x: Tensor) -> Tensor:
        """The features before dropout: a fixed function of the image, if the weights are."""
        raise NotImplementedError


class Network(nn.Module):
    """`classifier(featurizer(x))`: images (B, …) to logits (B, C)."""

    def __init__(self, featurizer: Featurizer, classifier: nn.Module):
        super().__init__()
        self.featurizer = featurizer
        self.classifier = classifier

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.classifier(self.featurizer(x)))

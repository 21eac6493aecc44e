"""MIRO: stay near what the pretrained network knew."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from dspreg.algorithms.base import Algorithm
from dspreg.algorithms.pretrained_oracle import WithOracle
from dspreg.batches import Outputs
from dspreg.distributions import Choice


class MIRO(WithOracle):
    """Mutual-information regularisation with an oracle: features that predict those of the pretrained network.

        L + weight · Σ_l ½ mean[ (h_l − h⁰_l)²/v_l + log v_l ],  v_l = softplus(b_l) + 1e-5

    h_l are the features behind the stem and each stage l, (N, C, H, W), (N, L, C) or (N, C), h⁰_l those of the network
    as it was at the start, for the same images; the b_l, one per channel, are learned with `lr_mult` times the learning
    rate and start where v = 0.1. The mean is over all entries. `places` names other modules of the featurizer.

    Cha et al., ECCV 2022. Their weights for a ResNet-50 are 0.01 on PACS and VLCS and 0.1 on OfficeHome, TerraIncognita
    and DomainNet. Their code knows ResNets, RegNets and CLIP; the stages of other networks are found by
    `networks.places`. Changes `build`, `forward` and `loss`; one forward pass of the oracle more.
    """

    space = {"weight": Choice(0.001, 0.01, 0.1, 1.0)}

    def __init__(
        self,
        base: Algorithm | None = None,
        *,
        weight: float = 0.1,
        lr_mult: float = 10.0,
        places: str | Sequence[str] | None = None,
    ):
        super().__init__(base)
        self.weight, self.lr_mult, self.places = weight, lr_mult, places
        self.check()

    def loss(self, out: Outputs) -> Tensor:
        distance = self.distance(out)
        self.note(distance=distance)
        return self.base.loss(out) + self.weight * distance

"""EWC: stay near the pretrained weights, the nearer the more a parameter matters to the output."""

from __future__ import annotations

from dspreg.algorithms.anchor import Anchor
from dspreg.algorithms.base import Algorithm
from dspreg.algorithms.compatibility import ONLY_CLASSES, Compatibility
from dspreg.algorithms.measure import BATCHES
from dspreg.distributions import LogUniform
from dspreg.vectors import ParamVector


class EWC(Anchor):
    """Elastic weight consolidation: hold each parameter at its start by its Fisher information.

        L + weight/2 · Σ_k F_k (θ_k − θ⁰_k)²,  F_k = mean_d E_{x ~ d} E_{y ~ p(·|x)} (∂_k log p(y|x))²

    F is measured once, before step 0, at the start θ⁰ and on `measure_batches` batches of every source domain; labels
    are drawn from the network, as in `dspreg.measure(of="fisher")`. The new classifier is left out by `exclude`, but F
    is of the output behind it: it says how much a parameter moves random mixtures of the features.

    Kirkpatrick et al., PNAS 2017. There θ⁰ and F are of an earlier task on whose data F is measured; a pretrained
    network comes without its data, so F is of the source domains. `weight` is λ: 400 is theirs on Atari games, and the
    search space has the range that van de Ven & Tolias' code compares on permuted MNIST; nobody has published one for
    domain generalisation. `Anchor(by='s')` has F of the loss instead, measured anew along training and with mean 1.

    Changes `gradient`, and `update` once to measure; no extra pass.
    """

    compatibility = Compatibility(trains_featurizer=True, kinds=ONLY_CLASSES)
    space = {"weight": LogUniform(0, 7)}
    instead = "L2SP"

    def __init__(
        self,
        base: Algorithm | None = None,
        *,
        weight: float = 400.0,
        measure_batches: int = BATCHES,
        exclude: str | list[str] | None = "classifier.*",
    ):
        super().__init__(base, weight=weight, by="s", of="fisher", measure_batches=measure_batches, exclude=exclude)

    def due(self, t: int, steps_per_epoch: int | None = None) -> bool:  # noqa: ARG002
        return t == 0

    def scale(self, w: ParamVector) -> float:  # noqa: ARG002
        return 2.0  # F as it is; Anchor's penalty has no ½

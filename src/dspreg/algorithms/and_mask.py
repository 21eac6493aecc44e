"""ANDMask: move only the parameters that all domains want to move the same way."""

from __future__ import annotations

from torch import Tensor

from dspreg.algorithms.base import Algorithm
from dspreg.algorithms.gradient_mask import GradientMask, sign_agreement
from dspreg.distributions import Uniform
from dspreg.errors import ConfigError


class ANDMask(GradientMask):
    """Keep the gradient where the domains agree on its sign.

        m_k g_k / m̄,  m_k = 1 where |mean_d sign g_dk| ≥ tau, else 0

    tensor by tensor; m̄ is the share of ones, so that a tensor moves about as far as without a mask. With tau = 1 all
    domains have to agree.

    Parascandolo et al., ICLR 2021, in DomainBed's form; g is the gradient of L as it is below, where DomainBed has the
    mean of the domains' gradients: the same for batches of one size. The domains' gradients are of one dropout mask.
    Masked entries are exact zeros, so that momentum and weight decay go on moving them, as in DomainBed. Changes
    `gradient`; as many passes as ERM over layers that change neither forward, loss nor gradient, else twice as many.
    """

    space = {"tau": Uniform(0.5, 1.0, key="tau")}

    def __init__(self, base: Algorithm | None = None, *, tau: float = 1.0):
        super().__init__(base)
        if not 0 <= tau <= 1:
            raise ConfigError(f"ANDMask: tau={tau}; wanted a share from 0 to 1")
        self.tau = tau

    def mask(self, gradients: Tensor) -> Tensor:
        return (sign_agreement(gradients) >= self.tau).to(gradients.dtype)

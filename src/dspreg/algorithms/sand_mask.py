"""SANDMask: move parameters the more the better the domains agree on them."""

from __future__ import annotations

import torch
from torch import Tensor

from dspreg.algorithms.base import Algorithm
from dspreg.algorithms.gradient_mask import GradientMask, sign_agreement
from dspreg.distributions import LogUniform, Uniform
from dspreg.errors import ConfigError


class SANDMask(GradientMask):
    """Smoothed AND-mask: shrink the gradient where the domains disagree on its sign or its size.

        m_k g_k / m̄,  m_k = max(0, tanh(k · (|mean_d sign g_dk| − tau)/Var_d g_dk))

    tensor by tensor; m̄ is the mean of m. The variance over domains has denominator D − 1.

    Shahtalebi et al., 2021, in DomainBed's form, but for `tau`: with DomainBed's default of 1 the mask is 0 everywhere
    and nothing trains, so the default is 0.5, the middle of its search space. As for the rest, see ANDMask. Where all
    domains have one and the same gradient m is 1, or 0 below tau. Changes `gradient`; passes as of ANDMask.
    """

    space = {"tau": Uniform(0.0, 1.0, key="tau"), "k": LogUniform(-3, 5, key="k")}

    def __init__(self, base: Algorithm | None = None, *, tau: float = 0.5, k: float = 10.0):
        super().__init__(base)
        if not 0 <= tau < 1:
            raise ConfigError(f"SANDMask: tau={tau}; wanted a share from 0 to below 1, where nothing would train")
        if not 0 < k < float("inf"):
            raise ConfigError(f"SANDMask: k={k}; wanted a finite number > 0")
        self.tau, self.k = tau, k

    def mask(self, gradients: Tensor) -> Tensor:
        above = sign_agreement(gradients) - self.tau
        away = gradients - gradients.mean(0)
        variance = away.square_().sum(0) / (len(gradients) - 1)  # torch's var over a first axis this short is slow
        steepness = self.k / variance  # infinite where the domains' gradients are equal
        # 0 · ∞ is exactly at tau: 0, and not a number for which DomainBed writes 1e-17
        return torch.where(above > 0, (steepness * above).tanh(), 0.0).to(gradients.dtype)

"""RSC: mute the features that the prediction rests on most."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from dspreg.algorithms.base import Algorithm
from dspreg.algorithms.compatibility import ONLY_CLASSES, Compatibility
from dspreg.batches import Batch, Outputs, soft_labels
from dspreg.devices import widest_float
from dspreg.distributions import Uniform
from dspreg.errors import ConfigError


class RSC(Algorithm):
    """Representation self-challenging: train on features without those that speak loudest for the right class.

        g_i = ∂z_{i,y_i}/∂f_i,  feature k of sample i is muted where g_ik ≥ its (1 − f_drop)-quantile over k,
        but only in the samples that lose most by it: those whose p_y falls by its (1 − b_drop)-quantile or more

    f (N, F) features, z (N, C) logits of a classifier on them. Masks are constants.

    Huang et al., ECCV 2020, in DomainBed's form; with soft labels, z_y and p_y are their means under the label. Changes
    `forward`; no extra pass through the backbone, four through the classifier.
    """

    compatibility = Compatibility(kinds=ONLY_CLASSES)
    space = {
        "f_drop": Uniform(0.0, 0.5, key="rsc_f_drop_factor"),
        "b_drop": Uniform(0.0, 0.5, key="rsc_b_drop_factor"),
    }

    def __init__(self, base: Algorithm | None = None, *, f_drop: float = 1 / 3, b_drop: float = 1 / 3):
        super().__init__(base)
        for name, share in (("f_drop", f_drop), ("b_drop", b_drop)):
            if not 0 <= share < 1:
                raise ConfigError(f"RSC: {name}={share}; wanted a share from 0 to below 1")
        self.f_drop, self.b_drop = f_drop, b_drop

    def forward(self, batches: Sequence[Batch]) -> Outputs:
        out: Outputs = self.base(batches)
        kept = self.mask(out)
        self.note(muted=(kept == 0).to(widest_float(kept.device)).mean())
        features, classify = out.features * kept, self.net.classifier
        # as a change, so that what the base did to its logits stays
        return out.replace(features=features, logits=out.logits + classify(features) - classify(out.features))

    def mask(self, out: Outputs) -> Tensor:
        """1 for the features that stay. (N, F)"""
        classify: Callable[[Tensor], Tensor] = self.net.classifier
        f = out.features.detach().requires_grad_()
        y = soft_labels(out.labels, out.logits.shape[1], f.dtype)
        with torch.enable_grad():
            z = classify(f)
            (g,) = torch.autograd.grad((z * y).sum(), f)
        with torch.no_grad():
            quiet = g < quantile(g, 1 - self.f_drop)
            lost = ((z.softmax(1) - classify(f * quiet).softmax(1)) * y).sum(1)
            spared = lost < quantile(lost, 1 - self.b_drop)
            return (quiet | spared[:, None]).to(f.dtype)


def quantile(values: Tensor, share: float) -> Tensor:
    """Of each row, between its two nearest values, as numpy has it. (…, 1)

    `torch.quantile` rounds the share to the tensor's type. In single precision the quantile then lies a little above a
    value that it should meet: the 107th of 160 samples, five batches of 32, at a share of 2/3.
    """
    ordered = values.sort(-1).values
    place = share * (values.shape[-1] - 1)
    low = int(place)
    high = min(low + 1, values.shape[-1] - 1)
    return torch.lerp(ordered[..., low : low + 1], ordered[..., high : high + 1], place - low)

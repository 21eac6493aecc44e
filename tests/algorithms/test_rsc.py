"""RSC against a loop over samples and features, and the features it is meant to mute."""

import numpy as np
import pytest
import torch

from dspreg.algorithms import ERM, RSC
from dspreg.batches import Batch
from dspreg.testing import toy_batches, toy_task
from dspreg.training import train_step
from reference import plain


def masked_loss(weights, batches, f_drop, b_drop):
    """Sample by sample, with numpy's percentiles."""
    x, y = torch.cat([b.x for b in batches]), torch.cat([b.y for b in batches])
    f = plain.features(weights, x)
    classifier, bias = weights[2], weights[3]
    probabilities = lambda feature: torch.softmax(feature @ classifier.T + bias, 0)  # noqa: E731
    masks, falls = [], []
    for i in range(len(x)):
        g = classifier[y[i]].detach().numpy()  # ∂z_y/∂f of a linear classifier
        mask = torch.tensor(g < np.percentile(g, 100 * (1 - f_drop)))
        masks.append(mask)
        falls.append(float((probabilities(f[i])[y[i]] - probabilities(f[i] * mask)[y[i]]).detach()))
    threshold = np.percentile(falls, 100 * (1 - b_drop))
    total = 0.0
    for i, (mask, fall) in enumerate(zip(masks, falls, strict=True)):
        kept = torch.ones_like(mask) if fall < threshold else mask
        total = total - probabilities(f[i] * kept)[y[i]].log()
    return total / len(x)


@plain.problems
@plain.optimisers
def test_steps_are_those_of_the_loop(domains, optimiser):
    def step(weights, batches, by_hand, t):
        by_hand.step(weights, plain.gradient(masked_loss(weights, batches, 0.4, 0.3), weights))

    plain.assert_same_steps(RSC(f_drop=0.4, b_drop=0.3), step, domains, optimiser)


@pytest.mark.parametrize("domains", [2, 5])  # 16 and 40 samples: two thirds of the way from first to last is a sample
def test_what_lies_at_the_quantile_is_muted_in_single_precision_too(domains):
    """As numpy has it; a quantile with a rounded share lies a little above, and spares the sample."""
    stack = RSC(f_drop=1 / 7, b_drop=1 / 3).setup(toy_task(domains, dropout=0.0), lambda p: torch.optim.SGD(p, lr=0.1))
    for t in range(10):
        batches = [Batch(b.x.float(), b.y, b.domain) for b in toy_batches(t, domains, (8,) * domains)]
        muted = stack.mask(stack.base(batches)) == 0
        assert muted.any(1).sum() == {2: 6, 5: 14}[domains]  # the samples from the 11th of 16 or the 27th of 40 on
        assert set(muted.sum(1).tolist()) == {0, 2}  # of eight features the seventh and the eighth


def test_hard_and_one_hot_labels_are_the_same():
    losses = [
        train_step(plain.ready(RSC(), 3), toy_batches(0, 3, plain.SIZES, soft=soft))["loss"].item()
        for soft in (False, True)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)


def test_the_prediction_survives_without_the_loudest_features_and_that_of_erm_less():
    risks = {}
    for algorithm in (ERM(), RSC(f_drop=0.5, b_drop=0.9)):
        stack = plain.ready(algorithm, 3)
        for t in range(150):
            train_step(stack, toy_batches(t, 3, (32, 32, 32)))
        fresh = toy_batches(10_000, 3, (100, 100, 100))
        risks[type(algorithm)] = masked_loss(plain.weights_of(stack), fresh, 0.5, 0.999).item()
    assert risks[RSC] < risks[ERM] * 0.8


@pytest.mark.parametrize("options", [{"f_drop": 1.0}, {"b_drop": -0.1}])
def test_shares_that_are_none(options):
    with pytest.raises(ValueError, match="wanted a share from 0 to below 1"):
        RSC(**options)

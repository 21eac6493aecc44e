"""What sensitivity can be measured of, and by which estimators. Without torch, so that `--help` can read it."""

from __future__ import annotations

OF = {
    "loss": "the loss of each sample, as in the paper's experiments: the empirical Fisher",
    "output": "the network's outputs, as in the paper's definition of s; needs no labels",
    "fisher": "the loss of labels drawn from the network's softmax, the true Fisher; needs no labels",
}
ESTIMATORS = {
    "persample": "squared per-sample gradients, at about the cost of one backward pass",
    "loop": "the same, one sample at a time: slow, the reference",
    "signed": "squared gradient of randomly signed sums: unbiased for s, one backward pass per draw",
    "minibatch": "squared gradient of the batch mean: another, smaller quantity",
}

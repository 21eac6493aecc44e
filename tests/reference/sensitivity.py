"""Sensitivity by the definition: one sample at a time, one backward pass each, plain sums."""

import torch
import torch.nn.functional as F


def call(model, item, i):
    """Output and label of sample i of one loader item."""
    if isinstance(item, dict):
        out = model(item["input_ids"][i : i + 1], item["attention_mask"][i : i + 1]).logits
        return out, item["labels"][i : i + 1]
    x, y = item
    return model(x[i : i + 1]), y[i : i + 1]


def size(item):
    return len(item["labels"] if isinstance(item, dict) else item[1])


def squared_gradients(model, scalars):
    """Σ over the scalars of the squared gradient, by `backward` into `.grad`."""
    total = {n: torch.zeros_like(p) for n, p in model.named_parameters() if p.requires_grad}
    for scalar in scalars:
        model.zero_grad()
        scalar.backward(retain_graph=True)
        for n, p in model.named_parameters():
            if p.requires_grad and p.grad is not None:
                total[n] += p.grad**2
    model.zero_grad()
    return total


def mean_squares(model, items, of="loss"):
    """s of one domain: the mean over its samples of the squared gradient of the loss, or of every output."""
    model.eval()
    total, count = None, 0
    for item in items:
        for i in range(size(item)):
            out, y = call(model, item, i)
            scalars = [F.cross_entropy(out, y)] if of == "loss" else list(out[0])
            squares = squared_gradients(model, scalars)
            total = squares if total is None else {n: total[n] + squares[n] for n in total}
            count += 1
    return {n: t / count for n, t in total.items()}


def squared_means(model, items):
    """`minibatch`: per batch the square of the mean gradient, averaged over samples."""
    model.eval()
    total, count = None, 0
    for item in items:
        n = size(item)
        loss = sum(F.cross_entropy(*call(model, item, i)) for i in range(n)) / n
        squares = squared_gradients(model, [loss])
        weighted = {k: v * n for k, v in squares.items()}
        total = weighted if total is None else {k: total[k] + weighted[k] for k in total}
        count += n
    return {k: t / count for k, t in total.items()}


def largest_difference(ours, theirs):
    """The largest |Δ| over the largest entry, over all tensors. A tensor that is zero on both sides agrees."""
    assert set(ours) == set(theirs)
    return max(float((ours[n] - theirs[n]).abs().max() / theirs[n].abs().max().clamp(min=1e-300)) for n in theirs)

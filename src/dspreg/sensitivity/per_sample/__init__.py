"""Squared per-sample gradients at about the cost of one backward pass."""

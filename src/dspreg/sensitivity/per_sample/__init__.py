"""Squared per-sample gradients at about the price of one backward pass."""

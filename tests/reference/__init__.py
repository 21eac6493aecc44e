"""Naive versions: loops and closed forms that share no code with what they test."""

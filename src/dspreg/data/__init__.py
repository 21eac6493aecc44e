"""Data sets of several domains, and how they are split."""

from dspreg.data.base import DomainDataset
from dspreg.data.digits import Digits

__all__ = ["Digits", "DomainDataset"]

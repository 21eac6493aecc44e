"""Networks as a featurizer and a classifier."""

from dspreg.networks.backbones import SmallCNN, TinyMLP
from dspreg.networks.network import Featurizer, Network

__all__ = ["Featurizer", "Network", "SmallCNN", "TinyMLP"]

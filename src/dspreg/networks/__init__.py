"""Networks: a featurizer and a classifier."""

from dspreg.networks.backbones import SmallCNN, TinyCNN, TinyMLP
from dspreg.networks.network import Featurizer, Network
from dspreg.networks.pretrained import Backbone, make_backbone
from dspreg.networks.weights import Weights

__all__ = ["Backbone", "Featurizer", "Network", "SmallCNN", "TinyCNN", "TinyMLP", "Weights", "make_backbone"]

"""A package laid out as DomainBed is, with few classes, each with a kind of state that has to survive."""

from pathlib import Path

ALGORITHMS = '''
import random

import numpy as np
import torch
import torch.nn.functional as F

from domainbed import networks
from domainbed.lib.misc import Average


class Algorithm(torch.nn.Module):
    def __init__(self, input_shape, num_classes, num_domains, hparams):
        super().__init__()
        self.hparams = hparams

    def update(self, minibatches, unlabeled=None):
        raise NotImplementedError

    def predict(self, x):
        raise NotImplementedError


class ERM(Algorithm):
    def __init__(self, input_shape, num_classes, num_domains, hparams):
        super().__init__(input_shape, num_classes, num_domains, hparams)
        self.featurizer = networks.Featurizer(input_shape, hparams)
        self.classifier = networks.Classifier(self.featurizer.n_outputs, num_classes)
        self.network = torch.nn.Sequential(self.featurizer, self.classifier)
        options = {"lr": hparams["lr"], "weight_decay": hparams["weight_decay"]}
        self.optimizer = torch.optim.Adam(self.network.parameters(), **options)

    def update(self, minibatches, unlabeled=None):
        x, y = (torch.cat(each) for each in zip(*minibatches))
        loss = F.cross_entropy(self.predict(x), y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return {"loss": loss.item()}

    def predict(self, x):
        return self.network(x)


class Stateful(ERM):
    """Noise of three generators, a second optimiser, a counter, a running average and a module in a plain list."""

    def __init__(self, input_shape, num_classes, num_domains, hparams):
        super().__init__(input_shape, num_classes, num_domains, hparams)
        self.count, self.average, self.seen = 0, Average(0.9), {}
        self.outside = [torch.nn.Linear(num_classes, num_classes)]
        self.second = torch.optim.SGD(self.classifier.parameters(), lr=0.01, momentum=0.9)

    def update(self, minibatches, unlabeled=None):
        x, y = (torch.cat(each) for each in zip(*minibatches))
        self.count += 1
        noise = torch.rand(()) + np.random.rand() + random.random()
        logits = self.outside[0](self.predict(x))
        loss = F.cross_entropy(logits, y) * (1 + 0.1 * noise + 0.01 * self.count)
        loss = loss * (1 + self.average.update(float(loss.detach())))
        self.optimizer.zero_grad()
        self.second.zero_grad()
        loss.backward()
        self.optimizer.step()
        if self.count % 2:
            self.second.step()
        with torch.no_grad():
            self.outside[0].weight -= 0.01 * self.outside[0].weight.grad
            self.outside[0].weight.grad = None
            self.outside[0].bias.grad = None
        self.seen[self.count % 3] = self.classifier.bias.detach().clone()
        loss = float(loss.detach()) + sum(float(each.sum()) for each in self.seen.values())
        return {"loss": loss, "count": self.count}


class NeedsCuda(ERM):
    def update(self, minibatches, unlabeled=None):
        return super().update([(x.cuda(), y.cuda()) for x, y in minibatches])


class NoPredict(Algorithm):
    def update(self, minibatches, unlabeled=None):
        return {}


class Broken(ERM):
    def __init__(self, *arguments):
        raise ValueError("no such hyper-parameter: mu")
'''
NETWORKS = """
import torch


class Featurizer(torch.nn.Module):
    def __init__(self, input_shape, hparams):
        raise RuntimeError("weights would be downloaded here")


def Classifier(in_features, out_features, is_nonlinear=False):
    return torch.nn.Linear(in_features, out_features)
"""
REGISTRY = """
import numpy as np


def _hparams(algorithm, dataset, seed):
    random = np.random.RandomState(seed)
    return {
        "lr": (1e-3 if dataset == "RotatedMNIST" else 5e-5, 10 ** random.uniform(-5, -3.5)),
        "weight_decay": (0.0, 0.0),
        "batch_size": (64 if dataset == "RotatedMNIST" else 32, 8),
        "mu": (0.5, np.float64(random.uniform(0, 1))),
    }


def default_hparams(algorithm, dataset):
    return {name: value for name, (value, _) in _hparams(algorithm, dataset, 0).items()}


def random_hparams(algorithm, dataset, seed):
    return {name: value for name, (_, value) in _hparams(algorithm, dataset, seed).items()}
"""
MISC = """
class Average:
    def __init__(self, decay):
        self.decay, self.value = decay, 0.0

    def update(self, value):
        self.value = self.decay * self.value + (1 - self.decay) * value
        return self.value
"""


def make_domainbed(root: Path, on_import: str = "") -> Path:
    """The folder of a checkout. `on_import` is a line of Python that its algorithms run when they are imported."""
    package = root / "domainbed"
    (package / "lib").mkdir(parents=True)
    files = {"algorithms": on_import + ALGORITHMS, "networks": NETWORKS, "hparams_registry": REGISTRY, "lib/misc": MISC}
    for name, text in {**files, "__init__": "", "lib/__init__": ""}.items():
        (package / f"{name}.py").write_text(text, encoding="utf-8")
    return root

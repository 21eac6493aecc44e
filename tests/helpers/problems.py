"""One table of small networks with two domains of samples each: everything `measure` promises to work on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import timm
import torch
import torchvision
from torch import Tensor, nn

from dspreg.randomness import generator

CLASSES = 3


class LSTMClassifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(20, 8), nn.Linear(6, CLASSES)
        self.lstm = nn.LSTM(8, 6, num_layers=2, dropout=0.3, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(self.embed(x))[0][:, -1])


class TransformerClassifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(20, 8), nn.Linear(8, CLASSES)
        self.layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(self.embed(x)).mean(1))


class Tied(nn.Module):
    """One weight under two names, and one layer called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.second.weight = self.first.weight
        self.repeated, self.head = nn.Linear(6, 6, bias=False), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.second(torch.tanh(self.first(x))))
        return self.head(torch.tanh(self.repeated(torch.tanh(self.repeated(h)))))


class Alias(nn.Module):
    """One layer registered under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.second, self.head = self.first, nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.second(torch.tanh(self.first(x)))))


class Hidden(nn.Module):
    """A parameter that is used from a list and not from its module."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(6, 6), nn.Linear(6, CLASSES)
        self.used = [self.layer.weight]

    def double(self) -> Hidden:
        super().double()
        self.used = [self.layer.weight]
        return self

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(x @ self.used[0]))


class PartlyFrozen(nn.Module):
    """A frozen layer and one that is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen, self.head, self.unused = nn.Linear(6, 6), nn.Linear(6, CLASSES), nn.Linear(6, 2)
        self.frozen.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.frozen(x)))


class TwoInputs(nn.Module):
    """Called by keywords, and returning an object with logits, as text models do."""

    @dataclass
    class Output:
        logits: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(20, 6), nn.Linear(6, CLASSES)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Output:
        h = torch.tanh(self.embed(input_ids)) * attention_mask[..., None]
        return self.Output(self.head(h.sum(1) / attention_mask.sum(1, keepdim=True)))


def pretrained_like(net: nn.Module) -> nn.Module:
    """Batch norm with statistics and scales that are not those of a fresh network."""
    random = generator("statistics")
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1, generator=random)
            module.running_var.uniform_(0.5, 1.5, generator=random)
            nn.init.uniform_(module.weight, 0.5, 1.5, generator=random)
    return net


MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, CLASSES)),
    "cnn": lambda: pretrained_like(
        nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2),
            nn.BatchNorm2d(8),
            nn.ReLU(inplace=True),
            nn.Dropout(0.3),
            nn.Conv2d(8, 8, 3, stride=2, groups=2),
            nn.BatchNorm2d(8),
            nn.ReLU(inplace=True),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(8, CLASSES),
        )
    ),
    "resnet18": lambda: pretrained_like(torchvision.models.resnet18(num_classes=CLASSES)),
    "resnet50": lambda: pretrained_like(torchvision.models.resnet50(num_classes=CLASSES)),
    "lite0": lambda: pretrained_like(timm.create_model("tf_efficientnet_lite0", num_classes=CLASSES)),
    "vit": lambda: timm.create_model("vit_tiny_patch16_224", num_classes=CLASSES, img_size=32, depth=3),
    "lstm": LSTMClassifier,
    "transformer": TransformerClassifier,
    "tied": Tied,
    "alias": Alias,
    "hidden": Hidden,
    "partly frozen": PartlyFrozen,
    "keywords": TwoInputs,
}
IMAGES = ("cnn", "resnet18", "resnet50", "lite0", "vit")
TEXTS = ("lstm", "transformer", "keywords")


def model(name: str) -> nn.Module:
    torch.manual_seed(7)
    return MODELS[name]().double()


def batch(name: str, domain: int, size: int, i: int = 0) -> Any:
    random = generator("problem", name, domain, i)
    y = torch.randint(CLASSES, (size,), generator=random)
    if name in TEXTS:
        tokens = torch.randint(domain * 5, 15 + domain * 5, (size, 7), generator=random)
        if name == "keywords":
            mask = (torch.rand(size, 7, generator=random) < 0.8).double()
            mask[:, 0] = 1
            return {"input_ids": tokens, "attention_mask": mask, "labels": y}
        return tokens, y
    shape = (3, 32, 32) if name in IMAGES else (6,)
    x = torch.randn(size, *shape, generator=random, dtype=torch.float64)
    return x * (1 + domain) + domain, y


def domains(name: str, batches: int = 2, size: int | None = None, count: int = 2) -> dict[str, list[Any]]:
    size = size or (2 if name in IMAGES else 3)
    names = ("photo", "sketch", "cartoon", "art")[:count]
    return {d: [batch(name, i, size, b) for b in range(batches)] for i, d in enumerate(names)}

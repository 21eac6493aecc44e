"""Text heads: a linear classifier made of the texts of a CLIP network, in a safetensors file; `dspreg head make`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save
from torch import Tensor, nn

from dspreg.errors import ConfigError, IntegrityError
from dspreg.io.atomic_files import read_regular_file, sha256, write_output
from dspreg.io.text import join_few, shorten
from dspreg.networks.network import Network

FORMAT = "dspreg.head/1"
LARGEST = 2**30  # bytes
LARGEST_SCALE = 1_000.0  # CLIP's ends at 100


@dataclass(frozen=True)
class TextHead:
    """What texts say of classes, as a classifier of image embeddings of length 1.

        logits = logit_scale · features @ weightᵀ

    Attributes:
        classes: Names of the rows.
        weight: Embeddings of the texts, of length 1. (C, width)
        logit_scale: CLIP's learnt inverse temperature.
        about: Model, templates and the weights' SHA-256.
        sha256: Of the file; "" before there is one.
    """

    classes: tuple[str, ...]
    weight: Tensor
    logit_scale: float
    about: Mapping[str, Any]
    sha256: str = ""

    def save(self, path: str | Path) -> str:
        """Write the file; returns its SHA-256."""
        description = {**self.about, "classes": list(self.classes)}
        about = json.dumps(description, ensure_ascii=False, sort_keys=True)
        tensors = {"weight": self.weight, "logit_scale": torch.tensor(self.logit_scale)}
        # one entry, because safetensors writes several in an order that changes from process to process
        data = save(tensors, {FORMAT: about})
        write_output(Path(path), data)
        return sha256(data)

    def rows(self, classes: Sequence[str]) -> Tensor:
        """The rows of these classes, in this order.

        Raises:
            ConfigError: It has no row of one of them.
        """
        if missing := [name for name in classes if name not in self.classes]:
            raise ConfigError(
                f"the head has no row of {join_few(missing, 4)}; it is of {join_few(self.classes, 6)}. Make one of the "
                "classes of the data set: dspreg head make --classes …, by the names that it has for them"
            )
        return self.weight[[self.classes.index(name) for name in classes]]

    def start(self, net: Network, classes: Sequence[str]) -> None:
        """Let a network's classifier start as this."""
        linear, rows = net.classifier, self.rows(classes)
        assert isinstance(linear, nn.Linear)
        if linear.in_features != rows.shape[1]:
            raise ConfigError(
                f"the head is for embeddings of {rows.shape[1]} numbers, made by {self.about.get('model')}, and this "
                f"network has {linear.in_features} features. Give the network that it was made with, and leave "
                "--features out"
            )
        with torch.no_grad():
            linear.weight.copy_(rows * self.logit_scale)
            linear.bias.zero_()


def read_text_head(path: str | Path) -> TextHead:
    """The head in a file.

    Raises:
        ConfigError: There is no such file.
        IntegrityError: It is damaged, or no head.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise ConfigError(
            f"there is no file {path}. A head is random, or a file made by dspreg head make --model ViT-B-16 "
            "--pretrained openai --classes … --template 'a photo of a {}'"
        )
    data = read_regular_file(path, limit=LARGEST, follow=True)
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {}).get(FORMAT, "null"))
        tensors = load(data)
    except (SafetensorError, ValueError, RecursionError, OSError) as error:
        raise IntegrityError(f"{path} is no head that dspreg head make wrote: {shorten(error, 200)}") from error
    _check(path, about, tensors)
    return TextHead(tuple(about["classes"]), tensors["weight"], float(tensors["logit_scale"]), about, sha256(data))


def _check(path: Path, about: Any, tensors: Mapping[str, Tensor]) -> None:
    """Require what a file of `TextHead.save` has: it may come from anybody."""

    def require(fits: bool, wanted: str) -> None:
        if not fits:
            raise IntegrityError(f"{path} is no head that dspreg head make wrote: wanted {wanted}")

    require(isinstance(about, dict), f"metadata {FORMAT}")
    names = about.get("classes")
    fits = isinstance(names, list) and all(isinstance(name, str) for name in names)
    require(fits and 0 < len(set(names)) == len(names), "a list of different classes")
    require(tensors.keys() == {"weight", "logit_scale"}, "the tensors weight and logit_scale alone")
    weight, scale = tensors["weight"], tensors["logit_scale"]
    require(weight.dtype == scale.dtype == torch.float32, "tensors of float32")
    require(weight.ndim == 2 and len(weight) == len(names), f"one row of weights for each of {len(names)} classes")
    lengths = weight.double().norm(dim=1)
    require(bool(((lengths - 1).abs() < 1e-3).all()), "rows of length 1")
    value = float(scale) if scale.ndim == 0 else math.nan
    require(0 < value <= LARGEST_SCALE, f"a logit_scale above 0 and at most {LARGEST_SCALE:g}")

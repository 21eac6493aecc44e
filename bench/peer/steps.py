"""One ERM step of DomainBed, of ours and of a plain loop, on the same network and the same images."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dspreg import Batch, Execution, train_step
from dspreg.training.experiment import Experiment, prepare_experiment

LR = 5e-5


def prepare(network: str, data: Path, pixels: int, batch: int) -> Experiment:
    """Our experiment with everything that a training decides by itself, such as how images lie in memory."""
    settings = {
        "dataset": f"folder:{data}", "targets": ("sketch",), "algorithm": "ERM", "model": network, "weights": "none",
        "frozen_bn": True, "image_size": pixels, "batch_size": batch, "lr": LR,
    }  # fmt: skip
    return prepare_experiment(settings, Execution(workers=0, threads=1, device="cpu"))


def plain_step(experiment: Experiment, batches: list[tuple[Tensor, Tensor]], *, last: bool) -> Callable[[], object]:
    """What one would write without any program: the limit. `last`: channels last."""
    torch.manual_seed(0)
    layout: Any = {"memory_format": torch.channels_last} if last else {}
    featurizer = experiment.backbone.make()
    net = nn.Sequential(featurizer, nn.Linear(featurizer.width, experiment.data.num_classes)).to(**layout)
    optimizer = torch.optim.Adam(net.parameters(), lr=LR)
    x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
    x = x.contiguous(**layout)

    def step() -> None:
        loss = F.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def domainbed_step(experiment: Experiment, batches: list[tuple[Tensor, Tensor]]) -> Callable[[], object]:
    """`ERM.update` of the checkout, on a network of ours: it has neither Lite0 nor ViT-S itself."""
    from domainbed import algorithms, hparams_registry

    hparams = hparams_registry.default_hparams("ERM", "PACS") | {"lr": LR}
    with own_featurizer(experiment):
        erm = algorithms.ERM(tuple(batches[0][0].shape[1:]), experiment.data.num_classes, len(batches), hparams)
    erm.train()
    return lambda: erm.update(batches)


@contextmanager
def own_featurizer(experiment: Experiment) -> Iterator[None]:
    from domainbed import networks

    def make(*_: Any) -> nn.Module:
        made: Any = experiment.backbone.make()
        made.n_outputs = made.width
        return made  # type: ignore[no-any-return]

    before, networks.Featurizer = networks.Featurizer, make
    try:
        yield
    finally:
        networks.Featurizer = before


def our_step(experiment: Experiment, pixels: list[tuple[Tensor, Tensor]]) -> Callable[[], object]:
    """`train_step`, on images as the loop hands them over."""
    algorithm, normalise = experiment.algorithm(), experiment.transform("domainbed").normalise
    batches = [Batch(normalise(x), y, d) for d, (x, y) in enumerate(pixels)]
    return lambda: train_step(algorithm, batches)


def sides(network: str, data: Path, pixels: int, batch: int) -> dict[str, Callable[[], object]]:
    """All of them; the first is what others are compared with."""
    experiment = prepare(network, data, pixels, batch)
    generator = torch.Generator().manual_seed(0)
    images = [
        (
            torch.randint(256, (batch, 3, pixels, pixels), generator=generator, dtype=torch.uint8),
            torch.randint(experiment.data.num_classes, (batch,), generator=generator),
        )
        for _ in experiment.sources
    ]
    plain = experiment.transform("none").normalise
    floats = [(plain(x).contiguous(), y) for x, y in images]
    return {
        "plain loop": plain_step(experiment, floats, last=False),
        "plain loop, channels last": plain_step(experiment, floats, last=True),
        "DomainBed": domainbed_step(experiment, floats),
        "dspreg": our_step(experiment, images),
    }

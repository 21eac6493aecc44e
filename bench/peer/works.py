"""The trainings that both sides do, and the commands that do them."""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from .data import DOMAIN_NET, PACS, cut_mnist, link_pacs, make_domain_net, make_mnist, make_photos, make_weights

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src"
NETWORKS = {"small-cnn", "mnist-cnn", "pooled"}  # made by `small_networks.py`; others are ResNets of torchvision


@dataclass(frozen=True)
class Protocol:
    """A run of full length, for the number of evaluated images per image trained on."""

    images: int
    sources: int
    batch: int
    evaluations: int
    steps: int = 5_001

    @property
    def evaluated_per_trained(self) -> float:
        return self.evaluations * self.images / (self.steps * self.sources * self.batch)


PROTOCOLS = {
    "PACS": Protocol(sum(PACS.values()), 3, 32, 18),  # every 300 steps, and after the last
    "RotatedMNIST": Protocol(70_000, 5, 64, 51),  # every 100
    "DomainNet": Protocol(586_575, 5, 32, 6),  # every 1,000
}


@dataclass(frozen=True)
class Work:
    """One training.

    Attributes:
        dataset: As DomainBed calls it.
        network: `resnet18`, `resnet50`, or one of `NETWORKS`.
        images: About so many are made.
        batch: Images per domain and step.
        evaluations: At least 2: after the first step and after the last.
        steps: 0 for as many as give the protocol's number of evaluated images per image trained on.
    """

    dataset: str
    network: str
    images: int
    batch: int
    evaluations: int = 2
    steps: int = 0

    @property
    def protocol(self) -> Protocol:
        return PROTOCOLS[self.dataset]

    def sized(self, images: int) -> Work:
        """With the number of images that there are, and of steps if that was open."""
        share = self.evaluations * images / self.protocol.evaluated_per_trained
        wanted = self.steps or share / (self.protocol.sources * self.batch)
        between = max(1, round((wanted - 1) / (self.evaluations - 1)))
        return replace(self, images=images, steps=between * (self.evaluations - 1) + 1)

    @property
    def every(self) -> int:
        return (self.steps - 1) // (self.evaluations - 1)

    @property
    def trained_images(self) -> int:
        return self.steps * self.batch * self.protocol.sources

    @property
    def full_length(self) -> float:
        """How many times as many images a run of the protocol trains on."""
        p = self.protocol
        return p.steps * p.sources * p.batch / self.trained_images

    def __str__(self) -> str:
        share = self.evaluations * self.images / self.trained_images
        wanted = self.protocol.evaluated_per_trained
        return (
            f"{self.dataset}, {self.network}, {self.steps} steps of {self.protocol.sources}×{self.batch} images, "
            f"{self.evaluations} evaluations of {self.images} images; evaluated per image trained on: {share:.2f}, "
            f"in the protocol {wanted:.2f}"
        )


RUNS = {
    "pacs": Work("PACS", "resnet18", images=62, batch=8),
    "pacs50": Work("PACS", "resnet50", images=62, batch=6),
    "digits": Work("RotatedMNIST", "mnist-cnn", images=1_200, batch=64, evaluations=3),
    "digits-small": Work("RotatedMNIST", "small-cnn", images=6_000, batch=64, evaluations=3),
    "domainnet": Work("DomainNet", "resnet18", images=405, batch=8),
}
LOADING = Work("PACS", "pooled", images=240, batch=32, steps=25)  # with 2 evaluations, and with more
MORE_EVALUATIONS = 7
MEMORY = Work("PACS", "resnet18", images=260, batch=32, steps=3)


@dataclass
class Place:
    """A temporary folder with the data of a work, and the commands on it.

    Attributes:
        checkout: Of DomainBed.
        folder: Everything that is made lies here.
        photographs: The folder that holds PACS and MNIST/raw; made images of their shapes for what is not there.
        one_thread: Else all cores.
    """

    checkout: Path
    folder: Path
    photographs: Path | None
    one_thread: bool = True
    made: dict[str, int] = field(default_factory=dict)

    def prepare(self, work: Work) -> Work:
        """Make its data and weights, once."""
        data = self.folder / f"{work.dataset}-{work.images}"
        if data.name not in self.made:
            rng = np.random.default_rng(0)
            digits = self.photographs / "MNIST" / "raw" if self.photographs else None
            if work.dataset == "PACS" and self.photographs and (self.photographs / "PACS").is_dir():
                count = link_pacs(self.photographs, data, work.images)
            elif work.dataset == "PACS":
                count = make_photos(data, work.images, rng)
            elif work.dataset == "DomainNet":
                count = make_domain_net(data, work.images, rng)
            elif digits and digits.is_dir():
                count = cut_mnist(digits, data, work.images)
            else:
                count = make_mnist(data, work.images, rng)
            self.made[data.name] = count
        self.data = data
        if work.network not in NETWORKS:
            self.weights = make_weights(work.network, self.folder)
        return work.sized(self.made[data.name])

    @property
    def environment(self) -> dict[str, str]:
        """Of both sides. A home of its own: no cache and no record of earlier runs."""
        home = self.folder / "home"
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir()
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("DSPREG_", "OMP_", "MKL_"))}
        threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"} if self.one_thread else {}
        path = os.pathsep.join(map(str, (SOURCE, HERE)))
        return {**kept, **threads, "HOME": str(home), "PYTHONPATH": path, "PYTHONWARNINGS": "ignore"}

    def domainbed(self, work: Work, *, start_up: bool = False) -> list[str]:
        """DomainBed's ERM, with its defaults but for the network and the size of the batch."""
        hparams: dict[str, object] = {"batch_size": work.batch}
        launched = ["--steps", str(work.steps), "--evaluations", str(work.evaluations)]
        if work.network not in NETWORKS:
            hparams |= {"resnet18": work.network == "resnet18", "resnet50_augmix": False, "freeze_bn": True}
            launched += ["--weights", str(self.weights)]
        elif work.network != "mnist-cnn":  # its own
            launched += ["--network", work.network]
        return [
            sys.executable, str(HERE / "launch_domainbed.py"), str(self.checkout), *launched,
            *(["--start-up"] if start_up else []), "--",
            "--data_dir", str(self.data), "--dataset", work.dataset, "--algorithm", "ERM",
            "--test_envs", str(TARGETS[work.dataset][0]), "--checkpoint_freq", str(work.every),
            "--hparams", json.dumps(hparams), "--output_dir", str(self._empty("domainbed")),
        ]  # fmt: skip

    def dspreg(
        self, work: Work, algorithm: str = "ERM", *, evaluate: str = "all", start_up: bool = False, more: str = ""
    ) -> list[str]:
        """Our training, with its defaults but for the network, the size of the batch, and `evaluate`."""
        launched, network = [], ["--model", work.network, "--frozen-bn", "yes"]
        if work.network in NETWORKS:
            launched = ["--network", work.network, "--checkout", str(self.checkout)]
            network = ["--model", "small-cnn", "--weights", "none"]
        else:
            network += ["--weights", str(self.weights)]
        data = {
            "PACS": ["PACS", "--root", str(self.data)],
            "DomainNet": [f"folder:{self.data / 'domain_net'}", "--name", "DomainNet", "--image-size", "224"],
            "RotatedMNIST": ["rotated.RotatedMNIST", "--root", str(self.data)],
        }[work.dataset]
        return [
            sys.executable, str(HERE / "launch_dspreg.py"), *launched, *(["--start-up"] if start_up else []), "--",
            "train", "--dataset", *data, "--target", TARGETS[work.dataset][1], "--algorithm", algorithm, *network,
            "--steps", str(work.steps), "--evaluate-every", str(work.every), "--batch-size", str(work.batch),
            "--evaluate", evaluate, *(["--threads", "1"] if self.one_thread else []), *more.split(),
            "--out", str(self._empty("dspreg")),
        ]  # fmt: skip

    def _empty(self, name: str) -> Path:
        place = self.folder / "runs" / name
        shutil.rmtree(place, ignore_errors=True)
        place.parent.mkdir(exist_ok=True)
        return place


TARGETS = {"PACS": (3, "sketch"), "DomainNet": (0, DOMAIN_NET[0]), "RotatedMNIST": (0, "0")}

"""Seconds of everything a training does, measured in about ten seconds on made images."""

from __future__ import annotations

import io
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import NamedTuple

import torch
from PIL import Image

from dspreg.algorithms import ERM, Algorithm, DSPReg, Task
from dspreg.batches import Batch
from dspreg.data.transforms import Transform
from dspreg.errors import Notice
from dspreg.networks import Backbone, make_backbone
from dspreg.sensitivity.evaluation_mode import evaluation_mode
from dspreg.training.adam import Adam
from dspreg.training.step import train_step

DOMAINS, CLASSES = ("a", "b", "c"), 7  # sources and classes of PACS
LARGEST = 32  # images per domain, as DomainBed's
DECODED = 227  # pixels of PACS's files


class Cost(NamedTuple):
    """Seconds of one call on n images: fixed + n · per_image. Adam, vectors and statistics cost the same for any n."""

    fixed: float
    per_image: float

    def of(self, images: float) -> float:
        return self.fixed + images * self.per_image


@dataclass(frozen=True)
class Throughput:
    """How fast a machine is.

    Attributes:
        train: A step, by method: ERM and DSPReg.
        evaluate: A prediction.
        measure: Measuring c on one batch of each domain.
        read_augmented, read_plain: Seconds to decode one file and make a training or an evaluation image of it, on one
            core.
        batch: Images per domain of the larger batch that was measured.
        fastest, slowest: The fastest and the slowest round of one step, as shares of the median: how steady the machine
            is.
    """

    train: dict[str, Cost]
    evaluate: Cost
    measure: Cost
    read_augmented: float
    read_plain: float
    batch: int
    fastest: float = 1.0
    slowest: float = 1.0


def measure_throughput(
    device: str, model: str = "resnet50.tv_in1k", image_size: int = 224, seconds: float = 10.0
) -> Throughput:
    """Measure on made images and random weights, which cost what real ones do: two sizes of batches, and a line.

    All is measured on one image of each domain, and a step of ERM on as many as there is time for. What else there is
    no time for on those is taken to grow with the batch as that step does.

    Args:
        device: Where, as torch calls it.
        model: The backbone.
        image_size: Pixels.
        seconds: About how long it may take. What is slower is measured once.
    """
    until = time.perf_counter() + seconds
    backbone, share = make_backbone(model, weights="none", image_size=image_size), seconds / 16
    picture = make_jpeg()
    augmented, plain = (
        median_seconds(partial(read, picture, image_size, augment), share / 4, "cpu") for augment in (True, False)
    )
    erm = make_stack(ERM(), backbone, device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)  # a network with random weights is no training
        small = works_of(erm, backbone, device, make_batches(1, device, image_size))
        rounds = times_of(small["ERM"], share, device, least=3)
        few = {"ERM": median(rounds)}
        few |= {name: median_seconds(work, share, device) for name, work in small.items() if name != "ERM"}
        batch = affordable_batch(few["ERM"], until - time.perf_counter())
        large = works_of(erm, backbone, device, make_batches(batch, device, image_size))
        many = {"ERM": median_seconds(large["ERM"], share, device)}
        growth = many["ERM"] / few["ERM"]
        for name in ("evaluate", "DSPReg", "measure"):
            affordable = 2 * growth * few[name] < until - time.perf_counter()
            many[name] = median_seconds(large[name], share, device) if affordable else growth * few[name]
    sizes = [len(DOMAINS), len(DOMAINS) * batch]
    costs = {name: fit_line(sizes, [few[name], many[name]]) for name in few}
    return Throughput(
        train={name: costs[name] for name in ("ERM", "DSPReg")},
        evaluate=costs["evaluate"],
        measure=costs["measure"],
        read_augmented=augmented,
        read_plain=plain,
        batch=batch,
        fastest=min(rounds) / few["ERM"],
        slowest=max(rounds) / few["ERM"],
    )


def affordable_batch(step: float, left: float) -> int:
    """Images per domain of the larger batch, if a step on one image of each takes so long.

    As many as in training, if warming up and one round then take no more than half of the time that is left; or fewer,
    and at least two.
    """
    return max(2, min(LARGEST, int(left / 4 / step)))


def works_of(
    erm: Algorithm, backbone: Backbone, device: str, batches: Sequence[Batch]
) -> dict[str, Callable[[], object]]:
    """What is timed, on these batches."""
    penalised = DSPReg()
    make_stack(penalised, backbone, device, batches)
    return {
        "ERM": lambda: train_step(erm, batches),
        "DSPReg": lambda: train_step(penalised, batches),
        "measure": penalised.measure_c,
        "evaluate": lambda: predict(erm, batches),
    }


def fit_line(images: Sequence[int], seconds: Sequence[float]) -> Cost:
    """Through two points; where noise would make the fixed part negative, through 0."""
    per_image = (seconds[1] - seconds[0]) / (images[1] - images[0])
    fixed = seconds[0] - images[0] * per_image
    return Cost(fixed, per_image) if fixed > 0 and per_image > 0 else Cost(0.0, seconds[1] / images[1])


def make_stack(layer: Algorithm, backbone: Backbone, device: str, measured: Sequence[Batch] = ()) -> Algorithm:
    """A stack with random weights, which measures c on these batches, and only when asked."""
    samples = {name: [each] for name, each in zip(DOMAINS, measured, strict=False)}
    task = Task(CLASSES, DOMAINS, 10**9, backbone.make, ("doctor",), lambda _t, _batches: samples)
    return layer.setup(task, lambda params: Adam(params, lr=1e-6), device)


def make_batches(size: int, device: str, image_size: int) -> list[Batch]:
    generator = torch.Generator().manual_seed(0)
    made = []
    for domain in range(len(DOMAINS)):
        x = torch.randn(size, 3, image_size, image_size, generator=generator)
        y = torch.randint(CLASSES, (size,), generator=generator)
        made.append(Batch(x.to(device), y.to(device), domain))
    return made


def predict(algorithm: Algorithm, batches: Sequence[Batch]) -> None:
    with evaluation_mode(algorithm), torch.inference_mode():
        algorithm.predict(torch.cat([each.x for each in batches]))


def make_jpeg() -> bytes:
    """A picture with as much in it as a photograph: smooth colours and some noise."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(1, 3, 16, 16, generator=generator)
    smooth = torch.nn.functional.interpolate(coarse, (DECODED, DECODED), mode="bicubic")[0]
    pixels = (smooth + 0.05 * torch.randn(3, DECODED, DECODED, generator=generator)).clamp(0, 1)
    file = io.BytesIO()
    Image.fromarray((255 * pixels).byte().permute(1, 2, 0).numpy()).save(file, "JPEG", quality=90)
    return file.getvalue()


def read(picture: bytes, image_size: int, augment: bool) -> None:
    half = (0.5, 0.5, 0.5)
    with Image.open(io.BytesIO(picture)) as image:
        Transform(image_size, half, half, "domainbed" if augment else "none").pixels(image.convert("RGB"))


def seconds_of(work: Callable[[], object], budget: float, device: str) -> float:
    """The median of as many rounds as fit, at least one after one that warms up."""
    work()
    return median(times_of(work, budget, device))


def median_seconds(work: Callable[[], object], budget: float, device: str) -> float:
    """The same, where the round that warms up counts if it alone takes longer than all may: it is slower by little."""
    first = elapsed(work, device)
    return first if first > budget else median(times_of(work, budget, device))


def times_of(work: Callable[[], object], budget: float, device: str, least: int = 1) -> list[float]:
    """Seconds of as many rounds as fit, and of at least so many."""
    found: list[float] = []
    started = time.perf_counter()
    while len(found) < least or time.perf_counter() - started < budget:
        found.append(elapsed(work, device))
    return found


def elapsed(work: Callable[[], object], device: str) -> float:
    """Seconds on the wall, until the device is done."""
    synchronise(device)
    started = time.perf_counter()
    work()
    synchronise(device)
    return time.perf_counter() - started


def synchronise(device: str) -> None:
    if torch.device(device).type != "cpu":
        torch.accelerator.synchronize(torch.device(device))

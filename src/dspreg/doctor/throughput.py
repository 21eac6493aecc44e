"""Seconds of everything a training does, measured in about ten seconds on made images."""

from __future__ import annotations

import io
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from PIL import Image

from dspreg.algorithms import ERM, Algorithm, DSPReg, Task
from dspreg.batches import Batch
from dspreg.data.transforms import Transform
from dspreg.errors import Notice
from dspreg.networks import Backbone, make_backbone
from dspreg.sensitivity.evaluation_mode import evaluation_mode
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
    """

    train: dict[str, Cost]
    evaluate: Cost
    measure: Cost
    read_augmented: float
    read_plain: float
    batch: int


def measure_throughput(
    device: str, model: str = "resnet50.tv_in1k", image_size: int = 224, seconds: float = 10.0
) -> Throughput:
    """Measure on made images and random weights, which cost what real ones do: two sizes of batches, and a line.

    Args:
        device: Where, as torch calls it.
        model: The backbone.
        image_size: Pixels.
        seconds: About how long it may take, when a step of twelve images takes less than a second.
    """
    backbone, share = make_backbone(model, weights="none", image_size=image_size), seconds / 12
    erm = make_stack(ERM(), backbone, device)
    sizes = (1, max(4, find_batch(erm, device, image_size, share)))
    seen: dict[str, list[float]] = defaultdict(list)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)  # a network with random weights is no training
        for size in sizes:
            for name, work in works_of(erm, backbone, device, make_batches(size, device, image_size)).items():
                seen[name].append(seconds_of(work, share, device))
    costs = {name: fit_line([len(DOMAINS) * size for size in sizes], found) for name, found in seen.items()}
    picture = make_jpeg()
    return Throughput(
        train={name: costs[name] for name in ("ERM", "DSPReg")},
        evaluate=costs["evaluate"],
        measure=costs["measure"],
        read_augmented=seconds_of(lambda: read(picture, image_size, augment=True), share, "cpu"),
        read_plain=seconds_of(lambda: read(picture, image_size, augment=False), share, "cpu"),
        batch=sizes[1],
    )


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
    return layer.setup(task, lambda params: torch.optim.Adam(params, lr=1e-6), device)


def make_batches(size: int, device: str, image_size: int) -> list[Batch]:
    generator = torch.Generator().manual_seed(0)
    made = []
    for domain in range(len(DOMAINS)):
        x = torch.randn(size, 3, image_size, image_size, generator=generator)
        y = torch.randint(CLASSES, (size,), generator=generator)
        made.append(Batch(x.to(device), y.to(device), domain))
    return made


def find_batch(algorithm: Algorithm, device: str, image_size: int, seconds: float) -> int:
    """Images per domain whose step takes no more than this: as many as in training, where the machine allows it."""
    size = 1
    while size < LARGEST:
        batches = make_batches(size, device, image_size)
        train_step(algorithm, batches)  # the first of a size allocates
        if 2 * elapsed(lambda batches=batches: train_step(algorithm, batches), device) > seconds:  # type: ignore[misc]
            break
        size *= 2
    return size


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
        Transform(image_size, half, half, augment).pixels(image.convert("RGB"))


def seconds_of(work: Callable[[], object], budget: float, device: str) -> float:
    """The median of as many rounds as fit, at least one after one that warms up."""
    work()
    found: list[float] = []
    started = time.perf_counter()
    while not found or time.perf_counter() - started < budget:
        found.append(elapsed(work, device))
    return sorted(found)[len(found) // 2]


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

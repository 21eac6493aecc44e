"""RotatedMNIST and ColoredMNIST as DomainBed makes them, from MNIST's own files."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, overload

import numpy as np
from numpy.typing import NDArray

from dspreg.data.base import DomainDataset
from dspreg.download.manifest import File
from dspreg.errors import DataError, IntegrityError
from dspreg.io.atomic_files import read_regular_file, sha256

if TYPE_CHECKING:
    from PIL.Image import Image

FOLDER = "MNIST/raw"  # below --root, as torchvision and DomainBed have it
SIDE = 28
FILES = {
    "train-images-idx3-ubyte": File("ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db", 47_040_016),
    "train-labels-idx1-ubyte": File("65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5", 60_008),
    "t10k-images-idx3-ubyte": File("0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7", 7_840_016),
    "t10k-labels-idx1-ubyte": File("ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2", 10_008),
}
SEED = 0  # of DomainBed's `--seed`, whose default it is: it decides which digit is in which domain


class Pictures(Sequence[tuple["Image", int]]):
    """Digits in memory, each drawn when it is asked for."""

    def __init__(self, pixels: NDArray[np.uint8], labels: NDArray[np.int64], angle: float = 0.0):
        self.pixels, self.labels, self.angle = pixels, labels, angle

    def __len__(self) -> int:
        return len(self.labels)

    @overload
    def __getitem__(self, i: int) -> tuple[Image, int]: ...

    @overload
    def __getitem__(self, i: slice) -> Pictures: ...

    def __getitem__(self, i: int | slice) -> tuple[Image, int] | Pictures:
        from PIL import Image

        if isinstance(i, slice):
            return Pictures(self.pixels[i], self.labels[i], self.angle)
        image = Image.fromarray(self.pixels[i])
        if self.angle:
            image = image.rotate(self.angle, Image.Resampling.BILINEAR)
        return image.convert("RGB"), int(self.labels[i])


class MNISTDomains(DomainDataset):
    """What both have in common: all 70,000 digits, shuffled, dealt to the domains in turn."""

    steps = 5_001
    evaluate_every = 100
    image_size = SIDE
    small = True
    subfolder: ClassVar[str] = FOLDER

    def __init__(self, root: str | Path = "data") -> None:
        super().__init__(root)
        self.folder = Path(root) / FOLDER
        missing = [name for name in FILES if not (self.folder / name).is_file()]
        if missing:
            raise DataError(
                f"{self.name} is made from MNIST, and {self.folder} lacks {', '.join(missing)}. Get them with "
                f"`dspreg data get {self.name}`, or, if you have them, with `dspreg data get {self.name} --from DIR`."
            )

    def domain(self, name: str) -> Pictures:
        self.check_domain(name)
        return self._domains[name]

    @cached_property
    def _domains(self) -> dict[str, Pictures]:
        raise NotImplementedError

    def _deal(self) -> tuple[list[tuple[NDArray[np.uint8], NDArray[np.int64]]], object]:
        """Pixels and labels of each domain, and the generator as the shuffle left it."""
        import torch

        images = np.concatenate([self._read(f"{part}-images-idx3-ubyte", 16) for part in ("train", "t10k")])
        labels = np.concatenate([self._read(f"{part}-labels-idx1-ubyte", 8) for part in ("train", "t10k")])
        images = images.reshape(-1, SIDE, SIDE)
        generator = torch.Generator().manual_seed(SEED)
        order = torch.randperm(len(images), generator=generator).numpy()
        many = len(self.domains)
        dealt = [(images[order[i::many]], labels[order[i::many]].astype(np.int64)) for i in range(many)]
        return dealt, generator

    def _read(self, name: str, header: int) -> NDArray[np.uint8]:
        content = read_regular_file(self.folder / name, limit=FILES[name].size, follow=True)
        if sha256(content) != FILES[name].sha256:
            raise IntegrityError(
                f"{self.folder / name} is not MNIST's; get it again with `dspreg data get {self.name}`"
            )
        return np.frombuffer(content, np.uint8, offset=header)


class RotatedMNIST(MNISTDomains):
    """Handwritten digits, turned by six angles; 70,000 images.

    Input (x):
        28 × 28 image, white on black; the three channels are equal, where DomainBed has one.

    Label (y):
        The digit, 0 … 9.

    Domain:
        Degrees counter-clockwise: 0, 15, 30, 45 (11,667 digits each), 60, 75 (11,666 each).

    DomainBed deals the digits anew for every `--seed`; here it is always as for its default, 0.

    Licence: CC BY-SA 3.0 (MNIST).

    Reference: Ghifary, Kleijn, Zhang and Balduzzi, "Domain Generalization for Object Recognition with Multi-task
    Autoencoders", ICCV 2015.
    """

    name = "RotatedMNIST"
    domains = ("0", "15", "30", "45", "60", "75")
    classes = ("0", "1", "2", "3", "4", "5", "6", "7", "8", "9")

    @cached_property
    def _domains(self) -> dict[str, Pictures]:
        dealt, _ = self._deal()
        return {
            name: Pictures(pixels, labels, float(name))
            for name, (pixels, labels) in zip(self.domains, dealt, strict=True)
        }


class ColoredMNIST(MNISTDomains):
    """Red and green digits whose colour goes with the label, differently in each domain; 70,000 images.

    Input (x):
        28 × 28 RGB image, red or green on black. DomainBed has these two channels; the third is empty here.

    Label (y):
        Whether the digit is below 5 (1) or not (0), wrong in a quarter of all cases.

    Domain:
        How colour and label agree: +90% (23,334), +80% and -90% (23,333 each); in DomainBed's order.

    DomainBed deals and colours the digits anew for every `--seed`; here it is always as for its default, 0.

    Licence: CC BY-SA 3.0 (MNIST).

    Reference: Arjovsky, Bottou, Gulrajani and Lopez-Paz, "Invariant Risk Minimization", 2019.
    """

    name = "ColoredMNIST"
    domains = ("+90%", "+80%", "-90%")
    classes = ("5 to 9", "0 to 4")
    disagreement: ClassVar[tuple[float, ...]] = (0.1, 0.2, 0.9)

    @cached_property
    def _domains(self) -> dict[str, Pictures]:
        import torch

        dealt, generator = self._deal()
        found = {}
        for name, often, (pixels, digits) in zip(self.domains, self.disagreement, dealt, strict=True):
            draws = [torch.rand(len(digits), generator=generator) for _ in range(2)]  # type: ignore[call-overload]
            labels = (digits < 5) ^ (draws[0] < 0.25).numpy()
            colours = labels ^ (draws[1] < often).numpy()
            painted = np.zeros((*pixels.shape, 3), np.uint8)
            painted[np.arange(len(pixels)), :, :, colours.astype(int)] = pixels
            found[name] = Pictures(painted, labels.astype(np.int64))
        return found


MNIST_SETS: dict[str, type[MNISTDomains]] = {cls.name: cls for cls in (RotatedMNIST, ColoredMNIST)}

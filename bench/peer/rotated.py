"""RotatedMNIST as DomainBed makes it, for `dspreg train --dataset rotated.RotatedMNIST --root DIR`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from dspreg import DomainDataset


class RotatedMNIST(DomainDataset):
    """A sixth of the digits at each of six angles."""

    name = "RotatedMNIST"
    domains = ("0", "15", "30", "45", "60", "75")
    classes = tuple(map(str, range(10)))
    image_size = 28
    small = True

    def __init__(self, root: str | Path | None = None) -> None:
        super().__init__(root)
        raw = Path(root or ".") / "MNIST" / "raw"
        parts = [(raw / f"{part}-images-idx3-ubyte", raw / f"{part}-labels-idx1-ubyte") for part in ("train", "t10k")]
        pixels = np.concatenate([np.frombuffer(x.read_bytes(), np.uint8, offset=16) for x, _ in parts])
        labels = np.concatenate([np.frombuffer(y.read_bytes(), np.uint8, offset=8) for _, y in parts])
        self.order = np.random.default_rng(0).permutation(len(labels))
        self.pixels, self.labels = pixels.reshape(-1, 28, 28)[self.order], labels[self.order]

    def domain(self, name: str) -> list[tuple[Image.Image, int]]:
        self.check_domain(name)
        start, step = self.domains.index(name), len(self.domains)
        turned = [
            Image.fromarray(x).rotate(int(name), Image.Resampling.BILINEAR).convert("RGB")
            for x in self.pixels[start::step]
        ]
        return list(zip(turned, map(int, self.labels[start::step]), strict=True))

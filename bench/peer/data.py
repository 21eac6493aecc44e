"""Data sets and weights that both sides read: parts of PACS, trees of made images, made digits."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import numpy as np
from PIL import Image

PACS = {"art_painting": 2048, "cartoon": 2344, "photo": 1670, "sketch": 3929}
CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")  # of PACS
DOMAIN_NET = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
DOMAIN_NET_CLASSES = 345


def link_pacs(root: Path, out: Path, images: int) -> int:
    """About so many images of PACS as `out/PACS`, of each domain and class by their share; returns how many."""
    made = 0
    for domain in PACS:
        for name in CLASSES:
            files = sorted((root / "PACS" / domain / name).iterdir())
            wanted = max(1, round(images * len(files) / sum(PACS.values())))
            place = out / "PACS" / domain / name
            place.mkdir(parents=True)
            for file in files[:: max(1, len(files) // wanted)][:wanted]:
                shutil.copy(file, place / file.name)
                made += 1
    return made


def make_photos(out: Path, images: int, rng: np.random.Generator) -> int:
    """`out/PACS` with images of 227 pixels that nobody took, of each domain by its share; returns how many."""
    made = 0
    for domain, count in PACS.items():
        for name in CLASSES:
            wanted = max(1, round(images * count / sum(PACS.values()) / len(CLASSES)))
            for n in range(wanted):
                _save(_picture(227, 227, rng), out / "PACS" / domain / name / f"{n}.jpg")
            made += wanted
    return made


def make_domain_net(out: Path, images: int, rng: np.random.Generator) -> int:
    """`out/domain_net`: six domains, 345 classes, JPEGs of about DomainNet's sizes; returns how many.

    DomainBed counts the classes of the last domain, so that one has an image of each. The others share what is left of
    `images`, the first ones of their classes only.
    """
    each = max(12, (images - DOMAIN_NET_CLASSES) // (len(DOMAIN_NET) - 1))
    made = 0
    for domain in DOMAIN_NET:
        last = domain == DOMAIN_NET[-1]
        for n in range(DOMAIN_NET_CLASSES if last else each):
            width, height = (int(side) for side in rng.integers(300, 640, 2))
            name = f"class-{n if last else n % DOMAIN_NET_CLASSES:03d}"
            _save(_picture(width, height, rng), out / "domain_net" / domain / name / f"{n}.jpg")
            made += 1
    return made


def _picture(width: int, height: int, rng: np.random.Generator) -> Image.Image:
    """Enlarged noise, which compresses about as photographs do."""
    coarse = Image.fromarray(rng.integers(0, 256, (height // 8, width // 8, 3), np.uint8))
    return coarse.resize((width, height), Image.Resampling.BICUBIC)


def _save(image: Image.Image, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, quality=90)


def cut_mnist(raw: Path, out: Path, images: int) -> int:
    """`out/MNIST/raw` with the first so many digits, a seventh of them from the test set; returns how many."""
    folder = out / "MNIST" / "raw"
    folder.mkdir(parents=True)
    for prefix, count in (("train", images - images // 7), ("t10k", images // 7)):
        pixels = (raw / f"{prefix}-images-idx3-ubyte").read_bytes()[16 : 16 + 784 * count]
        labels = (raw / f"{prefix}-labels-idx1-ubyte").read_bytes()[8 : 8 + count]
        (folder / f"{prefix}-images-idx3-ubyte").write_bytes(struct.pack(">4i", 2051, count, 28, 28) + pixels)
        (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(struct.pack(">2i", 2049, count) + labels)
    return images


def make_mnist(out: Path, images: int, rng: np.random.Generator) -> int:
    """`out/MNIST/raw` in the format of MNIST, with blots instead of digits, a seventh of them as its test set."""
    folder = out / "MNIST" / "raw"
    folder.mkdir(parents=True)
    for prefix, count in (("train", images - images // 7), ("t10k", images // 7)):
        coarse = rng.integers(0, 256, (count, 7, 7), np.uint8)
        pixels = np.stack([np.asarray(Image.fromarray(each).resize((28, 28))) for each in coarse])
        labels = rng.integers(0, 10, count, np.uint8)
        (folder / f"{prefix}-images-idx3-ubyte").write_bytes(struct.pack(">4i", 2051, count, 28, 28) + pixels.tobytes())
        (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(struct.pack(">2i", 2049, count) + labels.tobytes())
    return images


def make_weights(network: str, out: Path) -> Path:
    """Random weights of a ResNet of torchvision, its batch norm fitted to noise: frozen, it has to normalise."""
    import torch
    import torchvision
    from safetensors.torch import save_file

    path = out / f"{network}.safetensors"
    if not path.exists():
        torch.manual_seed(0)
        net = getattr(torchvision.models, network)()
        for module in net.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.momentum = None  # the mean over all batches, of which there is one
        with torch.no_grad():
            net.train()(torch.randn(16, 3, 224, 224))
        save_file({name: value.contiguous() for name, value in net.state_dict().items()}, path)
    return path

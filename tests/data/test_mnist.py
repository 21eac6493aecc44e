"""RotatedMNIST and ColoredMNIST: DomainBed's digits, by a plain re-derivation, and on the real files by its numbers."""

import gzip
import hashlib
import os
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from torchvision.transforms import InterpolationMode
from torchvision.transforms.functional import pil_to_tensor, rotate, to_pil_image

from dspreg.data import mnist, open_dataset, verify
from dspreg.data.mnist import ColoredMNIST, RotatedMNIST
from dspreg.data.sources import get_dataset, mnist_files
from dspreg.download.manifest import File
from dspreg.errors import DataError, IntegrityError

REAL = os.environ.get("DSPREG_MNIST")
NEEDS_MNIST = pytest.mark.skipif(not REAL, reason="needs MNIST's four files; DSPREG_MNIST is their folder")


@pytest.fixture
def digits(tmp_path, monkeypatch):
    """Four files in MNIST's format with 70 digits, and the arrays in them."""
    rng = np.random.default_rng(3)
    folder = tmp_path / "own"
    folder.mkdir()
    arrays, known = [], {}
    for part, count in (("train", 60), ("t10k", 10)):
        images = rng.integers(0, 256, (count, 28, 28), np.uint8)
        labels = rng.integers(0, 10, count, np.uint8)
        arrays.append((images, labels))
        for name, content in (
            (f"{part}-images-idx3-ubyte", struct.pack(">4L", 2051, count, 28, 28) + images.tobytes()),
            (f"{part}-labels-idx1-ubyte", struct.pack(">2L", 2049, count) + labels.tobytes()),
        ):
            (folder / name).write_bytes(content)
            known[name] = File(hashlib.sha256(content).hexdigest(), len(content))
    monkeypatch.setattr(mnist, "FILES", known)
    monkeypatch.setattr(mnist_files, "FILES", known)
    return folder, *(np.concatenate(both) for both in zip(*arrays, strict=True))


def test_rotated_as_domainbed_rotates(digits, tmp_path):
    folder, images, labels = digits
    get_dataset("RotatedMNIST", tmp_path / "data", [str(folder)])
    data = open_dataset("RotatedMNIST", tmp_path / "data")
    torch.manual_seed(0)  # the global generator, as in DomainBed
    order = torch.randperm(70)
    for place, name in enumerate(data.domains):
        domain = data.domain(name)
        wanted = [int(i) for i in order[place::6]]
        assert [domain[i][1] for i in range(len(domain))] == [labels[i] for i in wanted]
        for i, at in enumerate(wanted):
            turned = rotate(to_pil_image(images[at]), int(name), InterpolationMode.BILINEAR, fill=(0,))
            assert torch.equal(pil_to_tensor(domain[i][0]), pil_to_tensor(turned).expand(3, -1, -1))


def test_coloured_as_domainbed_colours(digits, tmp_path):
    folder, images, labels = digits
    get_dataset("ColoredMNIST", tmp_path / "data", [str(folder)])
    data = open_dataset("ColoredMNIST", tmp_path / "data")
    torch.manual_seed(0)
    order = torch.randperm(70)
    for place, (name, often) in enumerate({"+90%": 0.1, "+80%": 0.2, "-90%": 0.9}.items()):
        domain = data.domain(name)
        wanted = [int(i) for i in order[place::3]]
        flips = torch.rand(len(wanted)) < 0.25
        swaps = torch.rand(len(wanted)) < often
        for i, at in enumerate(wanted):
            label = int(labels[at] < 5) ^ int(flips[i])
            colour = label ^ int(swaps[i])
            image, found = domain[i]
            assert found == label
            pixels = np.asarray(image)
            assert np.array_equal(pixels[..., colour], images[at])
            assert not pixels[..., 1 - colour].any()
            assert not pixels[..., 2].any()


def test_packed_files_and_a_second_set_of_the_same(digits, tmp_path):
    folder, *_ = digits
    packed = tmp_path / "packed"
    packed.mkdir()
    for path in folder.iterdir():
        (packed / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert get_dataset("RotatedMNIST", tmp_path / "data", [str(packed)]).images == 70_000
    assert get_dataset("ColoredMNIST", tmp_path / "data").source == ""  # the same files
    found = verify(open_dataset("RotatedMNIST", tmp_path / "data"))
    assert (found.bad, found.images) == ((), 70)


def test_other_files_are_refused(digits, tmp_path):
    folder, *_ = digits
    (folder / "t10k-labels-idx1-ubyte").write_bytes(b"x" * 18)
    with pytest.raises(DataError, match="is not MNIST's t10k-labels-idx1-ubyte"):
        get_dataset("RotatedMNIST", tmp_path / "data", [str(folder)])
    (folder / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError, match="there is no t10k-labels-idx1-ubyte"):
        get_dataset("RotatedMNIST", tmp_path / "data", [str(folder)])
    assert not (tmp_path / "data" / "MNIST").exists()


def test_damage_on_the_disk_is_seen(digits, tmp_path):
    folder, *_ = digits
    get_dataset("RotatedMNIST", tmp_path / "data", [str(folder)])
    path = tmp_path / "data" / "MNIST" / "raw" / "t10k-labels-idx1-ubyte"
    path.write_bytes(path.read_bytes()[:-1] + b"\0")
    with pytest.raises(IntegrityError, match="is not MNIST's"):
        open_dataset("RotatedMNIST", tmp_path / "data").domain("15")


def test_without_files_it_says_how_to_get_them(tmp_path):
    with pytest.raises(DataError, match=r"`dspreg data get RotatedMNIST --from DIR`"):
        open_dataset("RotatedMNIST", tmp_path)


# SHA-256 of all pixels (DomainBed's channels) and labels, from DomainBed's own classes with --seed 0.
BY_DOMAINBED = {
    (ColoredMNIST, "+90%"): ("945cabd66d2d2c4a", "2f91ee1eb05841db"),
    (ColoredMNIST, "+80%"): ("0e6334c58c3228a9", "c58acced06a67836"),
    (ColoredMNIST, "-90%"): ("a6f3edff6ff97d41", "732cc3dbcddb81a4"),
    (RotatedMNIST, "0"): ("594dc542b0eb9e9f", "73549f3052924e3e"),
    (RotatedMNIST, "15"): ("984c1dc08e18b1b6", "76d8142067ecb7c3"),
    (RotatedMNIST, "75"): ("59772c9510398516", "deb7bc250c93657f"),
}


@NEEDS_MNIST
@pytest.mark.parametrize(("made", "name"), BY_DOMAINBED)
def test_the_real_digits_are_domainbeds(made, name, tmp_path):
    raw = tmp_path / "MNIST"
    raw.mkdir()
    (raw / "raw").symlink_to(Path(REAL).absolute())
    domain = made(tmp_path).domain(name)
    channels = [0, 1] if made is ColoredMNIST else [0]
    pixels = np.stack([np.asarray(domain[i][0]) for i in range(len(domain))])[..., channels].transpose(0, 3, 1, 2)
    found = [hashlib.sha256(np.ascontiguousarray(a).tobytes()).hexdigest()[:16] for a in (pixels, domain.labels)]
    assert tuple(found) == BY_DOMAINBED[made, name]

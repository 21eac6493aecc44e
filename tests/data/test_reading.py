"""How images are read, through data sets, caches, loaders and augmentations."""

import itertools
import os
import random
import shutil
import sys
import types
import warnings

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

from dspreg import Notice
from dspreg.config.reading import DOMAINBED_READING, OWN_READING, Reading
from dspreg.data import PACS, Cache, DomainDataset, Folder, Images, Index, fingerprint, verify
from dspreg.data.bands import planes_of
from dspreg.data.loader import DomainSplit, SequentialBatches, TrainingSteps
from dspreg.data.readers import iterate_batches
from dspreg.data.transforms import Transform
from dspreg.errors import ConfigError, DataError
from dspreg.randomness import seed_for
from helpers.images import picture, put, small_tree
from helpers.kinds import TURNS, exif, file_of, noise, on_ground, tiff

HALF = (0.5,) * 3


def opened(path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        return Folder(path)


@pytest.fixture
def turned(tmp_path):
    """Two domains of an image on its side, a transparent one and a plain one, of each class."""
    for place in itertools.product("ab", ("cat", "dog")):
        folder = tmp_path / "photos" / "/".join(place)
        put(folder / "side.png", file_of(noise(6, 9, 3), "PNG", exif=exif(6)))
        put(folder / "glass.png", file_of(noise(6, 9, 4, seed=1), "PNG"))
        put(folder / "plain.png", file_of(noise(6, 9, 3, seed=2), "PNG"))
    return tmp_path / "photos"


# Whose pixels are whose.


def test_own_images_are_turned_and_on_white_and_can_be_read_as_domainbed_does(turned):
    data = opened(turned)
    assert data.reading == OWN_READING
    glass, plain, side = (np.asarray(image) for image, _ in data.domain("a")[:3])
    assert np.array_equal(side, TURNS[6](noise(6, 9, 3)))
    assert np.abs(glass - on_ground(noise(6, 9, 4, seed=1), 255)).max() <= 1
    assert np.array_equal(plain, noise(6, 9, 3, seed=2))
    data.read_as(DOMAINBED_READING)
    glass, _, side = (np.asarray(image) for image, _ in data.domain("a")[:3])
    assert np.array_equal(side, noise(6, 9, 3))
    assert np.array_equal(glass, noise(6, 9, 4, seed=1)[..., :3])


def test_an_index_is_read_as_a_folder_is(turned, tmp_path):
    (tmp_path / "i.csv").write_text("path,label,domain\n" + "".join(
        f"photos/{d}/{c}/{n}.png,{c},{d}\n" for d in "ab" for c in ("cat", "dog") for n in ("glass", "plain", "side")
    ))  # fmt: skip
    index, folder = Index(tmp_path / "i.csv"), opened(turned)
    for (ours, _), (theirs, _) in zip(index.domain("b"), folder.domain("b"), strict=True):
        assert ours.tobytes() == theirs.tobytes()


def test_benchmarks_keep_domainbeds_reading():
    assert PACS.reading == DOMAINBED_READING
    assert not PACS.own


@pytest.mark.skipif("DSPREG_ROOT" not in os.environ, reason="no PACS: set DSPREG_ROOT to the folder that contains it")
def test_pixels_of_pacs_are_pillows_to_the_byte():
    """What DomainBed's ImageFolder hands to its transforms."""
    data = PACS(os.environ["DSPREG_ROOT"])
    for domain in data.domains:
        images = data.domain(domain)
        for i in range(0, len(images), 97):
            with open(images.files[i], "rb") as file:
                assert images.image(i).tobytes() == Image.open(file).convert("RGB").tobytes(), images.files[i]


def test_files_of_later_kinds_are_left_out_by_domainbeds_reading(tmp_path):
    """A folder of which a run was begun when they were ignored: its images are the same ones."""
    small_tree(tmp_path)
    before = [fingerprint(opened(tmp_path).domain(name)) for name in ("art", "photo")]
    put(tmp_path / "art" / "cat" / "later.tif", file_of(noise(4, 4, 3), "TIFF"))
    put(tmp_path / "art" / "yak" / "later.gif", file_of(noise(4, 4), "GIF"))
    data = opened(tmp_path)
    assert data.classes == ("cat", "dog", "emu", "yak")
    assert len(data.domain("art")) == 8
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        data.read_as(DOMAINBED_READING)
    assert data.classes == ("cat", "dog", "emu")
    assert [fingerprint(data.domain(name)) for name in ("art", "photo")] == before


# Verify.


def test_verify_counts_what_is_touched_and_says_what_is_done(turned):
    data = opened(turned)
    put(turned / "a" / "cat" / "deep.png", file_of(noise(5, 5, dtype=np.uint16, top=999), "PNG"))
    report = verify(opened(turned))
    assert report.touched == {"turned": 4, "transparent": 4, "windowed": 1}
    text = report.text()
    for line in (
        "note: 4 images stored sideways (EXIF): turned upright",
        "note: 4 images transparent: shown on white",
        "note: 1 image of more than 8 bits: brought to 8 bits by the window auto",
    ):
        assert f"\n{line}\n" in text
    data.read_as(DOMAINBED_READING)
    text = verify(data).text()
    assert "note: 4 images stored sideways (EXIF): left as it is stored, as DomainBed does" in text
    assert "note: 4 images transparent: shown without its transparency, as DomainBed does" in text


# Caches.


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_a_cache_keeps_readings_apart_and_gives_their_pixels(tmp_path, channels):
    content = file_of(noise(24, 31, 4), "PNG", exif=exif(6))
    file = put(tmp_path / "x.png", content)
    cache = Cache(tmp_path / "cache", 10**7)
    ways = [
        Reading(exif, alpha, "auto", channels, shrink)
        for exif, alpha, shrink in itertools.product((False, True), ("white", "drop"), (0, 8))
    ]
    ways += [DOMAINBED_READING] if channels == 3 else []
    expected = {}
    for reading in ways:
        expected[reading] = planes_of(Images([file], ["x"], [0], ("c",), None, reading).image(0))
    for _ in range(2):  # written, and read
        for reading in ways:
            images = Images([file], ["x"], [0], ("c",), cache, reading)
            assert np.array_equal(planes_of(images.image(0)), expected[reading])
            for how in ("squash", "crop", "pad"):
                out = np.empty((channels, 10, 10), np.uint8)
                images.put_resized(0, out, how)
                plain = np.empty_like(out)
                Images([file], ["x"], [0], ("c",), None, reading).put_resized(0, plain, how)
                assert np.array_equal(out, plain)
    assert len(list((tmp_path / "cache").glob("??/*.rgb"))) == 4 * len(ways)


# Augmentations.


class Tensors(DomainDataset):
    """Tensors of any number of channels, as a data set of one's own may return them."""

    name, domains, classes = "mine", ("a", "b"), ("x", "y")
    channels = 5

    def domain(self, name):
        self.check_domain(name)
        return [(torch.from_numpy(noise(5, 20, 26, seed=n)), n % 2) for n in range(12)]


def blur(image):
    """A function of a user's, with random numbers of all three kinds."""
    turned = image.rotate(random.uniform(-20, 20) + np.random.uniform(-5, 5))
    return turned if torch.rand(1) < 0.5 else turned.convert("L")


def shift(tensor):
    return torch.roll(tensor, int(torch.randint(9, (1,))), 2)


@pytest.fixture
def mine(monkeypatch):
    module = types.ModuleType("my_changes")
    module.blur, module.shift, module.Klass, module.number = blur, shift, Transform, 3
    module.wrong = lambda image: "no image"
    monkeypatch.setitem(sys.modules, "my_changes", module)


@pytest.mark.parametrize("augment", ["domainbed", "light", "trivial", "augmix", "my_changes.blur"])
@pytest.mark.parametrize("resize", ["squash", "pad"])
def test_any_number_of_workers_gives_the_same_bits(tmp_path, mine, augment, resize):
    images = opened(small_tree(tmp_path, each=4)).domain("art")
    transform = Transform(16, HALF, HALF, augment, resize=resize, reading=OWN_READING)
    steps = TrainingSteps([DomainSplit("art", images, range(len(images)), transform)], 6, ("k",))
    alone = [batch[0][0] for batch in iterate_batches(steps, range(3), 0)]
    assert not torch.equal(alone[0], alone[1])
    for workers in (1, 2, 4):
        random.seed(workers)
        for ours, (batch,) in zip(alone, iterate_batches(steps, range(3), workers), strict=True):
            assert torch.equal(ours, batch[0])


def test_light_is_torchvisions_crop_and_flip():
    theirs = v2.Compose([v2.RandomResizedCrop(16, scale=(0.7, 1.0)), v2.RandomHorizontalFlip()])
    ours = Transform(16, HALF, HALF, "light")
    for seed in range(20):
        image = picture(seed, (30 + seed, 25))
        torch.manual_seed(seed)
        expected = np.asarray(theirs(image))
        torch.manual_seed(seed)
        assert np.array_equal(ours.pixels(image).numpy().transpose(1, 2, 0), expected)


@pytest.mark.parametrize(("augment", "last"), [("trivial", v2.TrivialAugmentWide), ("augmix", v2.AugMix)])
def test_named_ones_are_torchvisions_after_crop_and_flip(augment, last):
    theirs = v2.Compose([v2.RandomResizedCrop(16, scale=(0.7, 1.0)), v2.RandomHorizontalFlip(), last()])
    ours = Transform(16, HALF, HALF, augment)
    for seed in range(8):
        image = picture(seed, (30 + seed, 25))
        torch.manual_seed(seed)
        expected = np.asarray(theirs(image))
        torch.manual_seed(seed)
        assert np.array_equal(ours.pixels(image).numpy().transpose(1, 2, 0), expected)


def test_a_crop_and_a_pad_frame_training_images_as_they_frame_others():
    image = Image.new("RGB", (60, 20))
    image.paste((250, 0, 0), (0, 0, 20, 20))
    torch.manual_seed(0)
    for _ in range(20):
        assert not Transform(8, HALF, HALF, "light", resize="crop").pixels(image).any()  # the red third is cut off
        assert Transform(8, HALF, HALF, "light", resize="pad").pixels(image)[:, 0].max() == 0  # black above


def test_a_function_is_keyed_by_the_image_alone_and_leaves_generators(mine):
    transform = Transform(16, HALF, HALF, "my_changes.blur")
    shown = []
    for other in (1, 2):
        random.seed(other)
        np.random.seed(other)
        before = random.getstate(), np.random.get_state()[1].tolist()
        torch.manual_seed(seed_for("x"))
        shown.append(transform.pixels(picture(3, (40, 30))))
        assert (random.getstate(), np.random.get_state()[1].tolist()) == before
    assert torch.equal(*shown)


@pytest.mark.parametrize(("name", "said"), [
    ("my_changes.Klass", "is a class; give a function"), ("my_changes.number", "is int; wanted a function"),
    ("my_changes.none", "can't be imported"), ("no_such_module.f", "no module 'no_such_module'"),
])  # fmt: skip
def test_what_is_no_function_is_refused(mine, name, said):
    with pytest.raises(ConfigError, match=said):
        Transform(16, HALF, HALF, name).pixels(picture())


def test_a_function_that_returns_no_image_is_named(mine):
    with pytest.raises(DataError, match=r"augment=my_changes\.wrong: an image is .*; wanted a PIL image"):
        Transform(16, HALF, HALF, "my_changes.wrong").pixels(picture())


# Tensors and many channels.


@pytest.mark.parametrize("augment", ["none", "light", "my_changes.shift"])
def test_tensors_of_five_channels_make_batches(mine, augment):
    data, five = Tensors(), Reading(channels=5)
    transform = Transform(16, (0.5,) * 5, (0.5,) * 5, augment, reading=five)
    part = DomainSplit("a", data.domain("a"), range(12), transform)
    alone = [x for x, _ in map(SequentialBatches([part], 5, ("k",)).__getitem__, [(0, 0), (0, 1), (0, 2)])]
    assert [x.shape for x in alone] == [(5, 5, 16, 16), (5, 5, 16, 16), (2, 5, 16, 16)]
    for x, (other, _) in zip(alone, iterate_batches(SequentialBatches([part], 5, ("k",)), [(0, 0), (0, 1), (0, 2)], 2),
                             strict=True):  # fmt: skip
        assert torch.equal(x, other)
    if augment == "none":
        for n, plane in enumerate(noise(5, 20, 26, seed=0)):
            expected = Image.fromarray(plane).resize((16, 16), Image.Resampling.BILINEAR)
            assert np.array_equal(alone[0][0, n].numpy(), np.asarray(expected))
    assert transform.normalise(alone[0]).dtype == torch.float32


def test_light_on_bands_is_light_on_each(mine):
    planes = noise(3, 20, 26)
    for seed in range(6):
        torch.manual_seed(seed)
        colours = Transform(16, HALF, HALF, "light").pixels(torch.from_numpy(planes))
        torch.manual_seed(seed)
        four = Transform(16, (0.5,) * 4, (0.5,) * 4, "light", reading=Reading(channels=4))
        assert torch.equal(four.pixels(torch.from_numpy(np.concatenate([planes, planes[:1]])))[:3], colours)


def test_the_fingerprint_of_tensors_is_of_their_pixels():
    domain = Tensors().domain("a")
    other = [(x.clone(), y) for x, y in domain]
    other[3][0][0, 0, 0] ^= 1
    assert fingerprint(domain) == fingerprint([(x.clone(), y) for x, y in domain]) != fingerprint(other)


def test_a_data_set_of_ones_own_with_other_channels_is_told_what_to_do():
    with pytest.raises(DataError, match=r"has 5 channels where 3 are wanted. Give --channels 5, .* channels = 5"):
        Transform(8, HALF, HALF).pixels(Tensors().domain("a")[0][0])
    with pytest.raises(DataError, match=r"is a str; wanted|a str of .*; wanted a PIL image, or a tensor"):
        Transform(8, HALF, HALF).pixels("cat.jpg")


def test_a_tiff_folder_of_many_channels_is_read_by_any_number_of_workers(tmp_path):
    for n, place in enumerate(itertools.product("ab", ("x", "y"), range(2))):
        put(
            tmp_path / place[0] / place[1] / f"{place[2]}.tif", tiff(noise(6, 20, 20, seed=n, dtype=np.uint16, top=900))
        )
    data = opened(tmp_path)
    data.read_as(Reading(True, "white", "0:900", 6))
    transform = Transform(8, (0.5,) * 6, (0.5,) * 6, "light", reading=data.reading)
    steps = TrainingSteps([DomainSplit("a", data.domain("a"), range(4), transform)], 3, ("k",))
    (alone,) = [batch[0][0] for batch in iterate_batches(steps, [0], 0)]
    (other,) = [batch[0][0] for batch in iterate_batches(steps, [0], 2)]
    assert alone.shape == (3, 6, 8, 8)
    assert torch.equal(alone, other)
    shutil.rmtree(tmp_path / "b")

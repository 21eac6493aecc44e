"""Images are decoded once before the first training, and again when they change."""

import pytest
from PIL import Image

from dspreg.data.cache import Cache
from dspreg.data.fingerprint import fingerprint
from dspreg.data.registry import open_dataset
from dspreg.data.verify import check_once
from dspreg.errors import DataError


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("DSPREG_CACHE", str(tmp_path / "cache"))
    for domain in ("art", "photo"):
        for label in ("cat", "dog"):
            place = tmp_path / "data" / domain / label
            place.mkdir(parents=True)
            for n in range(3):
                Image.new("RGB", (5, 4), (n * 9, len(domain), ord(label[0]))).save(place / f"{n}.png")
    return tmp_path / "data"


def looked_at(folder):
    """How many images a check decodes."""
    seen = []
    dataset = open_dataset(f"folder:{folder}", None, None)
    prints = [fingerprint(dataset.domain(name)) for name in dataset.domains]
    check_once(dataset, prints, lambda done, total: seen.append((done, total)))
    return seen[-1] if seen else None


def test_all_images_are_looked_at_once(folder, tmp_path):
    assert looked_at(folder) == (12, 12)
    assert looked_at(folder) is None
    moved = folder.rename(tmp_path / "elsewhere")
    assert looked_at(moved) is None
    Image.new("RGB", (5, 4), "red").save(moved / "art" / "cat" / "0.png")
    assert looked_at(moved) == (12, 12)


def test_bad_images_are_named_and_not_remembered_as_sound(folder):
    (folder / "art" / "cat" / "1.png").write_bytes(b"no image")
    for _ in range(2):
        with pytest.raises(DataError, match=r"1 image of data can't be used:\n  art/cat/1\.png: "):
            looked_at(folder)
    for path in folder.rglob("*.png"):
        path.write_bytes(path.name.encode())
    with pytest.raises(DataError, match=r"12 images(.|\n)*and 7 more\n.*`dspreg data verify` names all of them"):
        looked_at(folder)


def test_where_nothing_can_be_remembered_it_is_looked_at_again(folder, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("DSPREG_CACHE", str(tmp_path / "file"))
    assert looked_at(folder) == (12, 12)
    assert looked_at(folder) == (12, 12)


def test_what_is_decoded_for_the_check_is_kept(folder, tmp_path, monkeypatch):
    dataset, cache = open_dataset(f"folder:{folder}", None, None), Cache(tmp_path / "images", 10**9)
    prints = [fingerprint(dataset.domain(name)) for name in dataset.domains]
    check_once(dataset, prints, None, cache)
    images = dataset.domain("art")
    expected = [Image.open(file).convert("RGB").tobytes() for file in images.files]
    images.cache = cache
    monkeypatch.setattr("dspreg.data.images.decode_bytes", None)  # nothing is decoded again
    assert [image.tobytes() for image, _ in images] == expected


# Images of one's own under two labels: one of them is wrong.


def test_the_same_pixels_under_two_labels_are_refused_unless_the_training_was_begun_before(folder):
    image = Image.open(folder / "art" / "cat" / "0.png")
    image.save(folder / "photo" / "dog" / "again.bmp")  # other bytes, the same pixels
    dataset = open_dataset(f"folder:{folder}", None, None)
    prints = [fingerprint(dataset.domain(name)) for name in dataset.domains]
    with pytest.raises(DataError, match=r"1 image under several labels, to the pixel, e.g. art/cat/0.png = photo/dog/"):
        check_once(dataset, prints)
    check_once(dataset, prints, begun=True)


def test_a_benchmark_is_taken_as_it_was_published(folder):
    Image.open(folder / "art" / "cat" / "0.png").save(folder / "photo" / "dog" / "again.bmp")
    dataset = open_dataset(f"folder:{folder}", None, None)
    dataset.own = False
    check_once(dataset, [fingerprint(dataset.domain(name)) for name in dataset.domains])

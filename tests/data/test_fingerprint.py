"""The same data, wherever they lie; other data after any change of them."""

import os
import shutil

import pytest
from PIL import Image

from dspreg.data import Digits, Folder, fingerprint
from helpers.images import picture, put, small_tree


@pytest.fixture
def root(tmp_path):
    return small_tree(tmp_path / "set", each=3)


def of(root, domain="art"):
    return fingerprint(Folder(root).domain(domain))


def test_place_and_time_don_t_count(root, tmp_path):
    before = of(root)
    for path in root.rglob("*.jpg"):
        os.utime(path, (0, 0))
    assert of(root) == before
    shutil.move(root, tmp_path / "elsewhere" / "renamed")
    assert of(tmp_path / "elsewhere" / "renamed") == before
    assert len(before) == 64


def test_another_domain_doesn_t_count(root):
    before = of(root)
    put(root / "photo" / "cat" / "9.jpg")
    assert of(root) == before


def test_every_change_of_the_data_counts(root):
    folder = root / "art" / "cat"
    seen = {of(root)}

    def changed():
        seen.add(of(root))
        return len(seen)

    content = bytearray((folder / "0.jpg").read_bytes())
    content[len(content) // 2] ^= 1
    (folder / "0.jpg").write_bytes(content)
    assert changed() == 2
    (folder / "1.jpg").rename(folder / "1b.jpg")
    assert changed() == 3
    put(folder / "4.jpg", seed=50)
    assert changed() == 4
    (folder / "0.jpg").unlink()
    assert changed() == 5
    (folder / "4.jpg").rename(root / "art" / "dog" / "3.jpg")
    assert changed() == 6
    for domain in ("art", "photo"):
        (root / domain / "emu").rename(root / domain / "gnu")
    assert changed() == 7


def test_other_sequences_by_pixels_sizes_and_labels():
    pairs = [(picture(0), 0), (picture(1), 1)]
    same = [(Image.open(_file(picture(0))), 0), (picture(1), 1)]
    assert fingerprint(pairs) == fingerprint(same)
    wide = Image.frombytes("RGB", (9, 12), picture(0).tobytes())  # the same bytes in another shape
    others = [pairs[::-1], pairs[:1], [pairs[0], (pairs[1][0], 0)], [(wide, 0), pairs[1]], []]
    assert len({fingerprint(p) for p in [pairs, *others]}) == 6


def test_digits_have_one_too():
    assert fingerprint(Digits().domain("sign")) == fingerprint(Digits().domain("sign"))


def _file(image):
    import io

    file = io.BytesIO()
    image.save(file, "PNG")
    return file

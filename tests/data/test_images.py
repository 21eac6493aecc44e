"""From files to pixels: all of them, or a reason; never a repair, never a hang."""

import errno
import hashlib
import os
import pickle
import socket
import threading
import warnings

import numpy as np
import pytest
from PIL import Image, ImageFile
from torch.utils.data import DataLoader

from dspreg import DataError, ResourceError
from dspreg.data import BadImage, Cache, Images, decode_image
from dspreg.data.decode import contents
from dspreg.data.readers import iterate_batches
from helpers.images import bad_files, encoded, good_files, picture, put


def domain(folder, count=5, cache=None):
    files = [put(folder / f"{i}.png", seed=i) for i in range(count)]
    return Images(files, [f"d/c/{f.name}" for f in files], [i % 2 for i in range(count)], ("a", "b"), cache)


def test_every_bad_file_is_refused_with_its_reason(tmp_path):
    expected = bad_files(tmp_path / "bad")
    assert len(expected) > 35
    for name, word in expected.items():
        with pytest.raises(DataError, match=r"is not a usable image: .+\. Replace") as refused:
            decode_image(tmp_path / "bad" / name)
        assert word in refused.value.reason, name
        assert name in str(refused.value)


def test_other_things_than_files(tmp_path):
    (tmp_path / "x.jpg").mkdir()
    with pytest.raises(BadImage, match="a folder, not a file"):
        decode_image(tmp_path / "x.jpg")
    with pytest.raises(BadImage, match="no such file"):
        decode_image(tmp_path / "y.jpg")
    with pytest.raises(BadImage, match="device or socket"):
        decode_image("/dev/zero")
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(str(tmp_path / "s.jpg"))
        with pytest.raises(BadImage, match="device or socket"):
            decode_image(tmp_path / "s.jpg")
    with open(tmp_path / "huge.jpg", "wb") as sparse:
        sparse.truncate(10**12)
    with pytest.raises(BadImage, match=r"1,000,000,000,000 bytes"):
        contents(tmp_path / "huge.jpg")


def test_unusual_images_are_what_pillow_makes_of_them(tmp_path):
    for name in good_files(tmp_path):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about transparency
            expected = Image.open(tmp_path / name).convert("RGB")
        got = decode_image(tmp_path / name)
        assert (got.mode, got.size) == ("RGB", expected.size), name
        assert np.array_equal(np.asarray(got), np.asarray(expected)), name


def test_a_global_switch_of_another_library_repairs_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    whole = encoded(picture(1, (64, 64)))
    put(tmp_path / "half.jpg", whole[: len(whole) - 60])
    Image.open(tmp_path / "half.jpg").load()  # goes through, with grey where nothing was
    with pytest.raises(BadImage, match="truncated"):
        decode_image(tmp_path / "half.jpg")


def test_many_threads_leave_the_warning_filters_alone(tmp_path):
    good_files(tmp_path)
    before = list(warnings.filters)
    threads = [threading.Thread(target=lambda: [decode_image(f) for f in tmp_path.iterdir()]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(warnings.filters) == before


def test_a_domain_is_a_sequence_of_pairs(tmp_path):
    images = domain(tmp_path)
    assert len(images) == 5
    for i, (image, label) in enumerate(images):
        assert np.array_equal(np.asarray(image), np.asarray(picture(i)))
        assert label == i % 2
    assert images[-1][1] == 0
    assert images[1:4].names == ["d/c/1.png", "d/c/2.png", "d/c/3.png"]
    assert images.select([4, 0]).labels == [0, 0]
    with pytest.raises(IndexError):
        images[5]


def test_hashes_are_those_of_the_bytes_and_taken_once(tmp_path):
    images = domain(tmp_path)
    expected = [hashlib.sha256(f.read_bytes()).hexdigest() for f in images.files]
    assert images.hashes == expected
    for file in images.files:
        file.write_bytes(b"changed")
    assert images.hashes == images[:].hashes == expected


def test_it_goes_to_other_processes(tmp_path):
    images = domain(tmp_path)
    images.hashes  # noqa: B018
    copy = pickle.loads(pickle.dumps(images))
    for attribute in ("files", "names", "labels", "classes", "hashes"):
        assert getattr(copy, attribute) == getattr(images, attribute)
    loaded = DataLoader(images, batch_size=2, num_workers=1, collate_fn=list)
    assert [label for batch in loaded for _, label in batch] == images.labels


def test_uneven_lists_are_refused(tmp_path):
    with pytest.raises(DataError, match="got 1, 2 and 1"):
        Images([tmp_path], ["a", "b"], [0], ("a",))


# Files that change while they are used.


def rewrite(path):
    path.write_bytes(encoded(picture(99), "PNG"))


def rewrite_with_old_times(path):
    at = path.stat()
    content = bytearray(path.read_bytes())
    content[-20] ^= 1  # within the last chunks: the same size
    path.write_bytes(content)
    os.utime(path, ns=(at.st_atime_ns, at.st_mtime_ns))


def replace(path):
    at = path.stat()
    put(path.with_suffix(".new"), encoded(picture(98), "PNG"))
    os.utime(path.with_suffix(".new"), ns=(at.st_atime_ns, at.st_mtime_ns))
    path.with_suffix(".new").replace(path)


@pytest.mark.parametrize("change", [rewrite, rewrite_with_old_times, replace])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_file_that_changes_after_its_hash_was_taken_is_named(tmp_path, change, workers):
    images = domain(tmp_path)
    images.take_hashes()
    part = images.select([3, 1])
    change(images.files[3])
    for changed, i in ((images, 3), (part, 0)):
        with pytest.raises(DataError, match=r"3\.png was changed after this run had begun"):
            list(iterate_batches(changed, [i], workers))
    assert part[1][1] == images.labels[1]  # the others are as they were


def test_a_file_that_is_touched_copied_or_not_hashed_is_no_other(tmp_path):
    images = domain(tmp_path)
    rewrite(images.files[0])  # nobody has said what it should be
    assert images[0][0].getpixel((0, 0)) == picture(99).getpixel((0, 0))
    images.take_hashes()
    before = [image.tobytes() for image, _ in images]
    os.utime(images.files[1], (1, 1))
    images.files[2].chmod(0o600)
    content = images.files[3].read_bytes()
    images.files[3].unlink()
    images.files[3].write_bytes(content)
    assert [image.tobytes() for image, _ in images] == before


def test_a_cache_gives_the_image_that_was_hashed_and_never_keeps_another(tmp_path):
    images = domain(tmp_path)
    images.cache = Cache(tmp_path / "cache", 10**6)
    known = images[1][0].tobytes()
    images.take_hashes()
    rewrite(images.files[1])
    rewrite(images.files[2])
    assert images[1][0].tobytes() == known
    with pytest.raises(DataError, match=r"2\.png was changed"):
        images[2]
    assert images.cache.read(hashlib.sha256(images.files[2].read_bytes()).hexdigest()) is None


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_machine_without_room_is_not_the_fault_of_an_image(tmp_path, monkeypatch, number):
    def refuse(path, *_, **__):
        raise OSError(number, os.strerror(number), str(path))

    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(ResourceError, match=r"a\.png can't be read: (too many open files|not enough memory)"):
        decode_image(tmp_path / "a.png")

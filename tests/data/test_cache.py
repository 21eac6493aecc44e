"""Cached pixels are those of no cache, whatever happens to the cache."""

import hashlib
import os
import subprocess
import sys
import warnings

import numpy as np
import pytest
from PIL import Image

from dspreg import ConfigError, DataError, Notice
from dspreg.data import Cache, Folder, Images, decode_image, open_cache
from dspreg.data import cache as cache_module
from dspreg.data.cache import decoder
from helpers.images import good_files, picture, put, small_tree

ENTRY = 20 + 3 * 12 * 9  # header and pixels of `picture()`


def domain(folder, cache, count=5):
    files = [put(folder / f"{i}.png", seed=i) for i in range(count)]
    return Images(files, [f.name for f in files], [0] * count, ("a",), cache)


def entries(cache):
    return sorted(cache.directory.glob("??/*.rgb"))


def used(cache):
    return sum(path.stat().st_size for path in entries(cache))


def pixels(images):
    return [np.asarray(image) for image, _ in images]


def same(images, count=5):
    return all(np.array_equal(x, np.asarray(picture(i % 5))) for i, x in zip(range(count), pixels(images), strict=True))


def sha(number):
    return hashlib.sha256(str(number).encode()).hexdigest()


def test_bits_are_those_of_decoding(tmp_path):
    names = good_files(tmp_path / "images")
    files = [tmp_path / "images" / name for name in names]
    images = Images(files, names, [0] * len(files), ("a",), Cache(tmp_path / "cache", 10**9))
    for _ in range(2):
        for file, (image, _) in zip(files, images, strict=True):
            expected = decode_image(file)
            assert (image.mode, image.size, image.tobytes()) == ("RGB", expected.size, expected.tobytes())


def test_the_second_time_nothing_is_decoded(tmp_path, monkeypatch):
    images = domain(tmp_path, Cache(tmp_path / "cache", 10**9))
    assert same(images)
    assert len(entries(images.cache)) == 5
    assert entries(images.cache)[0].parent.name == entries(images.cache)[0].name[:2]
    monkeypatch.setattr("dspreg.data.images.decode_bytes", None)
    assert same(images)
    again = domain(tmp_path, Cache(tmp_path / "cache", 10**9))
    assert same(again)


def test_equal_files_share_an_entry(tmp_path):
    images = domain(tmp_path, Cache(tmp_path / "cache", 10**9))
    images.files[1].write_bytes(images.files[0].read_bytes())
    pixels(images)
    assert len(entries(images.cache)) == 4


DAMAGES = [
    lambda b: b"",
    lambda b: b[:10],
    lambda b: b[:-1],
    lambda b: b + b"x",
    lambda b: b[:100] + bytes([b[100] ^ 1]) + b[101:],
    lambda b: b"else" + b[4:],
    lambda b: b[:4] + bytes([b[4] ^ 1]) + b[5:],  # of another decoder
    lambda b: bytes(len(b)),
]


@pytest.mark.parametrize(
    "damage",
    [*DAMAGES, lambda b: b[:8] + b[12:16] + b[8:12] + b[16:]],  # width and height exchanged: as many pixels
)
def test_a_damaged_entry_is_decoded_and_written_again(tmp_path, damage):
    images = domain(tmp_path, Cache(tmp_path / "cache", 10**9))
    pixels(images)
    intact = [path.read_bytes() for path in entries(images.cache)]
    for path, content in zip(entries(images.cache), intact, strict=True):
        path.write_bytes(damage(content))
    assert same(images)
    assert [path.read_bytes() for path in entries(images.cache)] == intact


def test_another_pillow_decodes_anew(tmp_path, monkeypatch):
    images = domain(tmp_path, Cache(tmp_path / "cache", 10**9))
    pixels(images)
    shas = [path.stem for path in entries(images.cache)]
    assert all(images.cache.read(sha) is not None for sha in shas)
    decoder.cache_clear()
    monkeypatch.setattr("PIL.__version__", "0.0")
    try:
        assert all(images.cache.read(sha) is None for sha in shas)
    finally:
        decoder.cache_clear()


def test_a_changed_file_never_poisons_the_cache(tmp_path):
    images = domain(tmp_path, Cache(tmp_path / "cache", 10**9), count=1)
    old = images.hashes[0]
    put(images.files[0], seed=77)
    with pytest.raises(DataError, match="was changed"):
        images[0]
    assert images.cache.read(old) is None


def test_it_never_grows_beyond_its_limit_and_says_so_once(tmp_path):
    cache = Cache(tmp_path / "cache", 3 * ENTRY + 5)
    images = domain(tmp_path, cache)
    with pytest.warns(Notice, match=r"is full .* further images are decoded each time") as told:
        assert same([*images, *images], 10)
    assert len(told) == 1
    assert len(entries(cache)) == 3
    assert used(cache) <= cache.limit


def test_opening_drops_the_oldest_beyond_the_limit(tmp_path):
    cache = Cache(tmp_path, 10**9)
    for i in range(6):
        cache.write(sha(i), picture(i))
        os.utime(cache._place(sha(i)), ns=(i, i))
    leftover = cache._place(sha(0)).with_suffix(".123.tmp")
    leftover.write_bytes(b"half")
    smaller = Cache(tmp_path, 4 * ENTRY)
    assert [smaller.read(sha(i)) is not None for i in range(6)] == [False, False, True, True, True, True]
    assert not leftover.exists()


def test_several_at_once_stay_within_the_limit_together(tmp_path):
    one, two = Cache(tmp_path, 4 * ENTRY), Cache(tmp_path, 4 * ENTRY)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        for i in range(6):
            (one, two)[i % 2].write(sha(i), picture(i))
    assert used(one) == 4 * ENTRY


WRITER = """
import sys
sys.path[:0] = sys.argv[3:]
from helpers.images import picture
from dspreg.data import Cache
import hashlib
cache = Cache(sys.argv[1], int(sys.argv[2]))
for repeat in range(3):
    for i in range(60):
        sha = hashlib.sha256(str(i).encode()).hexdigest()
        found = cache.read(sha)
        assert found is None or found.tobytes() == picture(i).tobytes()
        cache.write(sha, picture(i))
"""


def test_two_processes_write_the_same_images(tmp_path):
    limit = 40 * ENTRY
    command = [sys.executable, "-W", "ignore", "-c", WRITER, str(tmp_path), str(limit), *filter(None, sys.path)]
    running = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(2)]
    assert [(p.wait(60), p.communicate()[1]) for p in running] == [(0, b"")] * 2
    cache = Cache(tmp_path, limit)
    assert used(cache) == limit
    for i in range(60):
        found = cache.read(sha(i))
        assert found is None or found.tobytes() == picture(i).tobytes()
    assert sum(cache.read(sha(i)) is not None for i in range(60)) == 40
    assert not list(tmp_path.glob("??/*.tmp"))


def test_a_full_disk_is_told_and_training_goes_on(tmp_path, monkeypatch):
    images = domain(tmp_path, Cache(tmp_path / "cache", 10**9))

    def no_room(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", no_room)
    with pytest.warns(Notice, match="can't be written .No space left on device"):
        assert same(images)
    assert not list((tmp_path / "cache").glob("??/*"))


def test_kinds(tmp_path, monkeypatch):
    assert open_cache("none") is None
    monkeypatch.setenv("DSPREG_CACHE", str(tmp_path / "here"))
    assert open_cache("disk").directory == tmp_path / "here"
    assert open_cache("disk").limit == 20 * 10**9
    monkeypatch.delenv("DSPREG_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert open_cache("disk").directory == tmp_path / ".cache" / "dspreg" / "images"
    with pytest.raises(ConfigError, match=r"unknown cache 'disc'. Known: none, disk, ram"):
        open_cache("disc")


def test_in_memory_only_where_nobody_else_may_write(tmp_path, monkeypatch):
    monkeypatch.setattr(cache_module, "SHARED_MEMORY", tmp_path)
    cache = open_cache("ram")
    own = tmp_path / f"dspreg-{os.getuid()}"
    assert cache.directory == own
    assert own.stat().st_mode & 0o777 == 0o700
    assert 0 < cache.limit <= os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize
    own.chmod(0o770)
    with pytest.raises(DataError, match=r"not a folder that only you may use .*mode 770"):
        open_cache("ram")
    own.rename(tmp_path / "moved")
    own.symlink_to(tmp_path / "moved")
    with pytest.raises(DataError, match="not a folder that only you may use"):
        open_cache("ram")
    monkeypatch.setattr(cache_module, "SHARED_MEMORY", tmp_path / "none")
    with pytest.raises(DataError, match=r"which this machine lacks\. Use 'disk'"):
        open_cache("ram")


def test_a_place_that_can_t_be_written_is_refused_before_training(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"can't be written .*Set DSPREG_CACHE"):
        Cache(tmp_path / "file" / "cache", 10**9)


def test_a_data_set_hands_its_cache_on(tmp_path):
    dataset = Folder(small_tree(tmp_path / "set"))
    plain = pixels(dataset.domain("art"))
    dataset.cache = Cache(tmp_path / "cache", 10**9)
    for _ in range(2):
        assert all(np.array_equal(a, b) for a, b in zip(plain, pixels(dataset.domain("art")), strict=True))
    assert len(entries(dataset.cache)) == 6


# Images that were only resized.


def planes(image, side):
    return np.asarray(image.resize((side, side), Image.Resampling.BILINEAR)).transpose(2, 0, 1)


@pytest.mark.parametrize("kind", ["none", "cached"])
def test_resized_pixels_are_pillows_with_and_without_a_cache(tmp_path, kind):
    images = domain(tmp_path, Cache(tmp_path / "cache", 10**9) if kind == "cached" else None)
    for _ in range(2):
        for i in range(5):
            out = np.full((3, 8, 8), 7, np.uint8)
            images.put_resized(i, out)
            assert np.array_equal(out, planes(picture(i), 8))


def test_the_second_time_nothing_is_decoded_or_resized(tmp_path, monkeypatch):
    images = domain(tmp_path, Cache(tmp_path / "cache", 10**9), count=1)
    out, again = np.empty((3, 8, 8), np.uint8), np.empty((3, 8, 8), np.uint8)
    images.put_resized(0, out)
    assert [path.name for path in entries(images.cache)] == [f"{images.hash(0)}.8.rgb"]  # not the original
    monkeypatch.setattr("dspreg.data.images.decode_bytes", None)
    monkeypatch.setattr("dspreg.data.images.resize", None)
    images.put_resized(0, again)
    assert np.array_equal(out, again)


def test_another_size_is_another_entry_and_originals_are_used(tmp_path, monkeypatch):
    images = domain(tmp_path, Cache(tmp_path / "cache", 10**9), count=1)
    images.image(0)
    monkeypatch.setattr("dspreg.data.images.decode_bytes", None)
    for side in (8, 5):
        out = np.empty((3, side, side), np.uint8)
        images.put_resized(0, out)
        assert np.array_equal(out, planes(picture(0), side))
    assert len(entries(images.cache)) == 3
    assert images.image(0).tobytes() == picture(0).tobytes()


@pytest.mark.parametrize(
    "damage",
    [*DAMAGES, lambda b: b"dspr" + b[4:], lambda b: b[:8] + b"\x10" + b[9:]],  # as if an original; of another width
)
def test_a_damaged_resized_image_is_made_again(tmp_path, damage):
    images = domain(tmp_path, Cache(tmp_path / "cache", 10**9), count=1)
    out = np.empty((3, 8, 8), np.uint8)
    images.put_resized(0, out)
    (entry,) = entries(images.cache)
    intact = entry.read_bytes()
    entry.write_bytes(damage(intact))
    out[:] = 0
    images.put_resized(0, out)
    assert np.array_equal(out, planes(picture(0), 8))
    assert entry.read_bytes() == intact


def test_room_is_made_of_the_oldest_entries_of_other_files(tmp_path):
    cache = Cache(tmp_path, 6 * ENTRY)
    for i in range(6):
        cache.write(sha(i), picture(i))
        os.utime(cache._place(sha(i)), ns=(i, i))
    cache.make_room(2 * ENTRY, [sha(0), sha(9)])  # of the two, one is there
    assert [cache.contains(sha(i)) for i in range(6)] == [True, False, True, True, True, True]
    cache.write(sha(9), picture(9))
    assert cache.contains(sha(9))
    cache.make_room(2 * ENTRY, [sha(0), sha(9)])
    assert len(entries(cache)) == 6

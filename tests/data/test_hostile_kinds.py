"""Damaged and hostile files of the kinds that came later: each is refused in words, soon, and nothing else happens."""

import resource
import struct
import time
import zlib

import numpy as np
import pytest

from dspreg.config.reading import OWN_READING, Reading
from dspreg.data.bands import planes_of
from dspreg.data.decode import MAX_PIXELS, BadImage, decode_bytes
from helpers.kinds import dicom, file_of, noise, tiff

FIVE = Reading(True, "white", "auto", 5)


def outcome(content, reading):
    try:
        return planes_of(decode_bytes(content, "a file", reading))
    except BadImage as bad:
        return None if bad.reason else pytest.fail("no reason")


def seeds():
    rng = np.random.default_rng(0)
    yield "tiff", file_of(noise(12, 9, 3), "TIFF"), OWN_READING
    yield "lzw", file_of(noise(12, 9, 3), "TIFF", compression="tiff_lzw"), OWN_READING
    yield "float", file_of(rng.normal(size=(9, 7)).astype(np.float32), "TIFF"), OWN_READING
    yield "gif", file_of(noise(12, 9), "GIF"), OWN_READING
    yield "avif", file_of(noise(16, 16, 3), "AVIF"), OWN_READING
    yield "planes", tiff(noise(5, 9, 11, dtype=np.uint16), deflate=True, predictor=2), FIVE
    yield "tiles", tiff(noise(5, 19, 21), tile=(16, 16), apart=True), FIVE


@pytest.mark.parametrize(("name", "content", "reading"), [pytest.param(*each, id=each[0]) for each in seeds()])
def test_any_damage_is_an_image_or_a_reason(name, content, reading):
    """Bytes changed and cut at random: never another error."""
    whole = outcome(content, reading)
    assert whole is not None
    rng = np.random.default_rng(1)
    refused = 0
    for n in range(150):
        damaged = bytearray(content)
        for _ in range(int(rng.integers(1, 6))):
            damaged[int(rng.integers(len(damaged)))] = int(rng.integers(256))
        if n % 3 == 0:
            damaged = damaged[: int(rng.integers(len(damaged)))]
        found = outcome(bytes(damaged), reading)
        refused += found is None
        assert found is None or (found.ndim == 3 and len(found) == reading.channels and found.size <= 3 * MAX_PIXELS)
    assert refused >= 40


@pytest.mark.parametrize("planes", [(5, 60_000, 60_000), (5, 2**31, 2**31), (5, 0, 5), (5, 1, 2**32 - 1)])
def test_a_tiff_that_claims_too_much_takes_no_memory(planes):
    small = bytearray(tiff(noise(5, 4, 4)))
    for tag, value in ((256, planes[2]), (257, planes[1])):
        at = small.index(struct.pack("<HHI", tag, 4, 1)) + 8
        small[at : at + 4] = struct.pack("<I", min(value, 2**32 - 1))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(BadImage):
        decode_bytes(bytes(small), "a file", FIVE)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kilobytes


def test_a_deflated_strip_that_goes_on_for_ever_is_cut():
    bomb = zlib.compress(bytes(300_000_000), 9)
    content = tiff(noise(5, 4, 4), deflate=True)
    at = content.index(struct.pack("<HHI", 279, 4, 1)) + 8
    place = content.index(struct.pack("<HHI", 273, 4, 1)) + 8
    hostile = bytearray(content + bomb)
    hostile[at : at + 4] = struct.pack("<I", len(bomb))
    hostile[place : place + 4] = struct.pack("<I", len(content))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert not outcome(bytes(hostile), FIVE).any()  # the first bytes of it, which are zeros
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000


def test_pages_that_lead_in_a_circle_end():
    content = bytearray(file_of(noise(6, 6), "TIFF"))
    (first,) = struct.unpack_from("<I", content, 4)
    (count,) = struct.unpack_from("<H", content, first)
    struct.pack_into("<I", content, first + 2 + 12 * count, first)  # the next page is this one
    started = time.monotonic()
    outcome(bytes(content), OWN_READING)
    outcome(bytes(content), FIVE)
    assert time.monotonic() - started < 60


@pytest.fixture
def pydicom():
    return pytest.importorskip("pydicom", reason="needs pydicom: pip install 'dspreg[dicom]'")


def test_damaged_dicom_is_an_image_or_a_reason(pydicom):
    content = dicom(noise(12, 9, dtype=np.uint16), centre=9, width=99)
    rng = np.random.default_rng(2)
    for n in range(200):
        damaged = bytearray(content)
        for _ in range(int(rng.integers(1, 6))):
            damaged[int(rng.integers(128, len(damaged)))] = int(rng.integers(256))
        outcome(bytes(damaged[: int(rng.integers(132, len(damaged)))] if n % 3 == 0 else damaged), OWN_READING)


def test_a_deflated_dicom_is_refused_before_it_is_inflated(pydicom):
    content = dicom(noise(6, 6, dtype=np.uint16))
    plain, deflated = b"1.2.840.10008.1.2.1\0", b"1.2.840.10008.1.2.1.99"
    at = content.index(b"\2\0\x10\0UI")
    start = content[: at + 6] + struct.pack("<H", len(deflated)) + deflated
    hostile = start + zlib.compress(bytes(400_000_000), 9)[2:-4]
    assert content[at + 8 : at + 8 + len(plain)] == plain
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(BadImage, match=r"transfer syntax 1\.2\.840\.10008\.1\.2\.1\.99 is not read"):
        decode_bytes(hostile, "a file", OWN_READING)
    twice = content[:at] + start[at:] + content[at:]
    with pytest.raises(BadImage, match=r"transfer syntax .*, .* is not read"):
        decode_bytes(twice, "a file", OWN_READING)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000


def test_a_dicom_that_claims_too_much(pydicom):
    content = bytearray(dicom(noise(6, 6, dtype=np.uint16)))
    for tag in (b"\x28\0\x10\0US\2\0", b"\x28\0\x11\0US\2\0"):
        at = content.index(tag) + 8
        content[at : at + 2] = b"\xff\xff"
    with pytest.raises(BadImage, match="65,535 × 65,535 pixels of 1 values are more than"):
        decode_bytes(bytes(content), "a file", OWN_READING)

"""Hostile archives: every one is refused, and no byte of it lies anywhere afterwards."""

import bz2
import gzip
import io
import lzma
import os
import stat
import struct
import tarfile
import unicodedata
import zipfile
import zlib

import pytest

from dspreg.download import archives
from dspreg.download.archives import Limits, Refused, unpack
from dspreg.errors import CantWrite, ConfigError
from helpers.server import everything_below

SMALL = Limits(entries=200, file=2**20, total=2**21)


def tar(*members, packer=None, kind=tarfile.PAX_FORMAT):
    """Members are (name, content) or (name, content, {attribute: value of the header})."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=kind) as out:
        for name, content, *more in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            for attribute, value in (more[0] if more else {}).items():
                setattr(info, attribute, value)
            out.addfile(info, io.BytesIO(content))
    return packer(file.getvalue()) if packer else file.getvalue()


def link(kind, name, target):
    return (name, b"", {"type": kind, "linkname": target})


def special(kind):
    return ("device", b"", {"type": kind, "devmajor": 1, "devminor": 3})


def zipped(*members, method=zipfile.ZIP_STORED):
    """Members are (name, content) or (name, content, mode of Unix)."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as out:
        for name, content, *mode in members:
            info = zipfile.ZipInfo("placeholder")
            info.filename = name
            info.compress_type = method
            info.external_attr = (mode[0] if mode else stat.S_IFREG | 0o644) << 16
            out.writestr(info, content)
    return file.getvalue()


def patched(data, old, new):
    assert len(old) == len(new)
    assert old in data
    return data.replace(old, new)


def header_of(name, size, kind=b"0"):
    """512 bytes of a tar by hand, for what tarfile would not write."""
    block = bytearray(512)
    block[0 : len(name)] = name
    block[100:108] = b"0000644\0"
    block[124:136] = size if isinstance(size, bytes) else b"%011o\0" % size
    block[156:157] = kind
    block[257:265] = b"ustar\x0000"
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def raw_tar(*blocks):
    return b"".join(blocks) + bytes(1024)


def padded(content):
    return content + bytes(-len(content) % 512)


def overlapping_zip():
    """Many entries of the directory that point to the same bytes."""
    data = zipped(*((f"{i:03}", b"") for i in range(100)))
    whole = zipped(("000", bytes(200_000)), method=zipfile.ZIP_DEFLATED)
    with zipfile.ZipFile(io.BytesIO(whole)) as file:
        info = file.infolist()[0]
    start = data.index(b"PK\1\2")
    entries = b"".join(
        struct.pack("<4s6H3L5H2L", b"PK\1\2", 20, 20, 0, 8, 0, 0, info.CRC, info.compress_size, info.file_size,
                    3, 0, 0, 0, 0, 0o100644 << 16, 0) + b"%03d" % i
        for i in range(100)
    )  # fmt: skip
    body = whole[: whole.index(b"PK\1\2")]
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 100, 100, len(entries), len(body), 0)
    assert start > 0
    return body + entries + end


NUL_ZIP = patched(zipped(("a-b.jpg", b"x")), b"a-b.jpg", b"a\0b.jpg")
ENCRYPTED = bytearray(zipped(("a.jpg", b"x")))
ENCRYPTED[6] |= 1
ENCRYPTED[ENCRYPTED.index(b"PK\1\2") + 8] |= 1
SHORT = zipped(("a.jpg", bytes(5000)))
BIG = 8 * 2**20
GNU_LONG = header_of(b"././@LongLink", 2**33 - 1, b"L")

HOSTILE = {
    # names that lead elsewhere
    "tar: ../": tar(("../evil", b"x")),
    "tar: a/../../": tar(("a/../../evil", b"x")),
    "tar: a/..": tar(("a/../evil", b"x")),
    "tar: ..": tar(("..", b"", {"type": tarfile.DIRTYPE})),
    "tar: absolute": tar(("/tmp/dspreg-evil", b"x")),
    "tar: two slashes": tar(("//evil", b"x")),
    "tar: drive": tar(("C:evil", b"x")),
    "tar: drive and backslash": tar(("C:\\evil", b"x")),
    "tar: backslashes": tar(("..\\..\\evil", b"x")),
    "tar: share": tar(("\\\\host\\share\\evil", b"x")),
    "zip: ../": zipped(("../evil", b"x")),
    "zip: a/../../": zipped(("a/../../evil", b"x")),
    "zip: absolute": zipped(("/tmp/dspreg-evil", b"x")),
    "zip: drive": zipped(("C:evil", b"x")),
    "zip: backslashes": zipped(("..\\evil", b"x")),
    "zip: folder ../": zipped(("../evil/", b"", stat.S_IFDIR | 0o755)),
    # links and devices
    "tar: link": tar(link(tarfile.SYMTYPE, "a", "/etc/passwd")),
    "tar: link to above": tar(link(tarfile.SYMTYPE, "a", "..")),
    "tar: link, then a file through it": tar(link(tarfile.SYMTYPE, "a", ".."), ("a/evil", b"x")),
    "tar: link to itself": tar(link(tarfile.SYMTYPE, "a", "a")),
    "tar: hard link": tar(link(tarfile.LNKTYPE, "a", "/etc/passwd")),
    "tar: hard link inside": tar(("b", b"x"), link(tarfile.LNKTYPE, "a", "b")),
    "tar: character device": tar(special(tarfile.CHRTYPE)),
    "tar: block device": tar(special(tarfile.BLKTYPE)),
    "tar: FIFO": tar(special(tarfile.FIFOTYPE)),
    "tar: contiguous": tar(("a", b"", {"type": tarfile.CONTTYPE, "linkname": "/etc/passwd"}), ("a", b"twice")),
    "tar: sparse": raw_tar(header_of(b"a", 0, b"S")),
    "tar: unknown kind with a link": raw_tar(header_of(b"a", 0, b"2")),
    "zip: link": zipped(("a", b"/etc/passwd", stat.S_IFLNK | 0o777)),
    "zip: link, then a file through it": zipped(("a", b"..", stat.S_IFLNK | 0o777), ("a/evil", b"x")),
    "zip: FIFO": zipped(("a", b"", stat.S_IFIFO | 0o644)),
    "zip: device": zipped(("a", b"", stat.S_IFCHR | 0o644)),
    "zip: socket": zipped(("a", b"", stat.S_IFSOCK | 0o644)),
    "zip: folder by its mode alone": zipped(("a", b"x", stat.S_IFDIR | 0o755)),
    # names that are none, or clash
    "tar: newline": tar(("a\nb", b"x")),
    "tar: escape sequence": tar(("a\x1b[31mb", b"x")),
    "tar: NUL in a pax header": tar(("a", b"x", {"pax_headers": {"path": "a\0b"}})),
    "tar: empty": raw_tar(header_of(b"", 1), padded(b"x")),
    "tar: dot": raw_tar(header_of(b".", 1), padded(b"x")),
    "tar: no UTF-8": raw_tar(header_of(b"a\xff\xfe", 1), padded(b"x")),
    "tar: too long": tar(("x" * 250, b"x")),
    "tar: too deep": tar(("/".join(["d"] * 60), b"x")),
    "tar: ends in a dot": tar(("a./b", b"x")),
    "tar: ends in a blank": tar(("a /b", b"x")),
    "tar: twice": tar(("a", b"x"), ("a", b"y")),
    "tar: twice but for ./": tar(("a", b"x"), ("./a", b"y")),
    "tar: twice but for case": tar(("a.jpg", b"x"), ("A.JPG", b"y")),
    "tar: folders but for case": tar(("dog/1", b"x"), ("Dog/2", b"y")),
    "tar: twice but for the form of Unicode": tar(
        (unicodedata.normalize("NFC", "é"), b"x"), (unicodedata.normalize("NFD", "é"), b"y")
    ),
    "tar: a file where a folder is": tar(("a/b", b"x"), ("a", b"y")),
    "tar: a folder where a file is": tar(("a", b"x"), ("a/b", b"y")),
    "zip: NUL": NUL_ZIP,
    "zip: newline": zipped(("a\nb", b"x")),
    "zip: twice but for case": zipped(("a.jpg", b"x"), ("A.jpg", b"y")),
    # too much
    "tar: many": tar(*((f"{i}", b"") for i in range(300))),
    "tar: many folders": tar(*((f"{i}", b"", {"type": tarfile.DIRTYPE}) for i in range(300))),
    "tar: large file": tar(("a", bytes(2**20 + 1))),
    "tar: large in all": tar(*((f"{i}", bytes(2**19)) for i in range(6))),
    "tar.gz: bomb": tar(("a", bytes(BIG)), packer=gzip.compress),
    "tar.bz2: bomb": tar(("a", bytes(BIG)), packer=bz2.compress),
    "tar.xz: bomb": tar(("a", bytes(BIG)), packer=lzma.compress),
    "tar.gz: zeros for ever": gzip.compress(header_of(b"a", 2**33 - 1) + bytes(BIG)),
    "tar: header of gigabytes": raw_tar(GNU_LONG, bytes(2**21)),
    "tar: pax header of megabytes": tar(("a", b"x", {"pax_headers": {"comment": "y" * 2**21}})),
    "tar: negative size": raw_tar(header_of(b"a", b"\xff" * 11 + b"\xf0")),
    "tar: size beyond the file": raw_tar(header_of(b"a", 5000)),
    "zip: many": zipped(*((f"{i}", b"") for i in range(300))),
    "zip: bomb": zipped(("a", bytes(BIG)), method=zipfile.ZIP_DEFLATED),
    "zip: bomb of many": zipped(*((f"{i}", bytes(2**19)) for i in range(6)), method=zipfile.ZIP_DEFLATED),
    "zip: overlapping bomb": overlapping_zip(),
    "zip: lies about its size": patched(
        zipped(("a", bytes(BIG)), method=zipfile.ZIP_DEFLATED), struct.pack("<L", BIG), struct.pack("<L", 10)
    ),
    # damaged, or something else
    "zip: encrypted": bytes(ENCRYPTED),
    "zip: LZMA": zipped(("a", b"x" * 100), method=zipfile.ZIP_LZMA),
    "zip: wrong checksum": patched(SHORT, struct.pack("<L", zlib.crc32(bytes(5000))), b"abcd"),
    "zip: truncated": SHORT[:-30],
    "tar: truncated": tar(("a", bytes(5000)))[:3000],
    "tar.gz: truncated": tar(("a", os.urandom(5000)), packer=gzip.compress)[:3000],
    "tar.gz: wrong checksum": patched(gz := gzip.compress(tar(("a", b"x"))), gz[-8:-4], b"abcd"),
    "tar: damaged header": tar(("a", b"x"), ("b", b"y"))[:1024] + b"z" * 512 + tar(("b", b"y")),
    "tar: goes on behind its end": tar(("a", b"x")) + b"evil" * 200,
    "empty": b"",
    "text": b"hello, this is no archive",
    "a web page": b"<html><title>Sign in</title></html>",
}


def test_there_are_sixty_of_them():
    assert len(HOSTILE) >= 60


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_archive_leaves_nothing(case, tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "SMALL", 2**21)
    (tmp_path / "before").mkdir()
    (tmp_path / "before" / "precious").write_text("mine")
    place = tmp_path / "a" / "b"
    place.mkdir(parents=True)
    file = place / "archive"
    file.write_bytes(HOSTILE[case])
    monkeypatch.chdir(place)
    before = everything_below(tmp_path)
    with pytest.raises(Refused) as refused:
        unpack(file, place / "out", SMALL)
    assert everything_below(tmp_path) == before
    assert not os.path.lexists("/tmp/dspreg-evil")
    assert str(refused.value).isprintable()


GOOD = [("d/c/1.jpg", b"one"), ("d/c/2.jpg", b""), ("d/Räume/3 (x).jpg", b"three" * 1000), ("x", b"y")]


@pytest.mark.parametrize(
    "data",
    [
        tar(*GOOD),
        tar(*GOOD, kind=tarfile.GNU_FORMAT),
        tar(*GOOD, packer=gzip.compress),
        tar(*GOOD, packer=bz2.compress),
        tar(*GOOD, packer=lzma.compress),
        tar(("d", b"", {"type": tarfile.DIRTYPE}), ("./", b"", {"type": tarfile.DIRTYPE}), *GOOD),
        tar(*((name, content, {"mode": 0o777, "uid": 7, "mtime": 1}) for name, content in GOOD)),
        zipped(*GOOD),
        zipped(("d/", b"", stat.S_IFDIR | 0o755), *GOOD, method=zipfile.ZIP_DEFLATED),
        zipped(*((name, content, 0) for name, content in GOOD)),
    ],
)
def test_a_good_archive_comes_out_as_it_went_in(data, tmp_path):
    (tmp_path / "archive").write_bytes(data)
    unpack(tmp_path / "archive", tmp_path / "out")
    assert {k: v[1] for k, v in everything_below(tmp_path / "out").items() if v[0] == "file"} == dict(GOOD)
    modes = {path.stat().st_mode & 0o111 for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert modes == {0}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["archive", "out"]


def test_an_existing_folder_is_not_written_into(tmp_path):
    (tmp_path / "archive").write_bytes(tar(*GOOD))
    (tmp_path / "out").mkdir()
    with pytest.raises(ConfigError, match="there already"):
        unpack(tmp_path / "archive", tmp_path / "out")


def test_what_an_interrupted_call_left_is_replaced(tmp_path):
    (tmp_path / "archive").write_bytes(tar(*GOOD))
    (tmp_path / "out.unpacking").mkdir()
    (tmp_path / "out.unpacking" / "stale").write_text("old")
    unpack(tmp_path / "archive", tmp_path / "out")
    assert not (tmp_path / "out" / "stale").exists()
    assert not (tmp_path / "out.unpacking").exists()


def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch):
    (tmp_path / "archive").write_bytes(tar(*GOOD))

    real = os.open

    def full(path, flags, *args, **kwargs):
        if flags & os.O_CREAT:
            raise OSError(28, "No space left on device", str(path))
        return real(path, flags, *args, **kwargs)

    monkeypatch.setattr(archives.os, "open", full)
    with pytest.raises(CantWrite, match="No space left"):
        unpack(tmp_path / "archive", tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["archive"]

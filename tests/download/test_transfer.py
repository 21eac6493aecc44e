"""Downloads from a host that cuts, lies, stalls, refuses and serves web pages."""

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import numpy as np
import pytest

from dspreg.download import transfer, web
from dspreg.download.progress import ProgressLines
from dspreg.download.transfer import Remote, WrongFile, download, download_all, require_space
from dspreg.download.web import Undelivered
from dspreg.errors import CantWrite, ConfigError
from dspreg.io.locks import holding
from dspreg.io.text import format_duration
from helpers.server import serving

DATA = np.random.default_rng(0).integers(0, 256, 300_000, np.uint8).tobytes()
SHA = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def host(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(transfer, "PAUSES", (0.0, 0.0, 0.0))
    with serving() as server:
        yield server


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_comes_whole(host, tmp_path):
    seen = []
    path = download(
        Remote(host.put("/a.zip", DATA), "a.zip", len(DATA), SHA), tmp_path, progress=lambda *said: seen.append(said)
    )
    assert path.read_bytes() == DATA
    assert names(tmp_path) == ["a.zip"]
    assert seen[-1] == ("a.zip", len(DATA), len(DATA))
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)


def test_what_is_there_is_not_fetched_again(host, tmp_path):
    remote = Remote(host.put("/a", DATA), "a", None, SHA)
    download(remote, tmp_path)
    download(remote, tmp_path)
    assert len(host.asked) == 1


def test_a_newer_version_is_fetched_where_no_checksum_is_known(host, tmp_path):
    remote = Remote(host.put("/a", DATA), "a")
    for _ in range(2):
        assert download(remote, tmp_path).read_bytes() == DATA
    assert host.asked == [("/a", None), ("/a", "bytes=0-0")]
    newer = DATA[::-1]
    host.put("/a", newer)
    assert download(remote, tmp_path).read_bytes() == newer
    host.files.clear()
    assert download(remote, tmp_path).read_bytes() == newer  # who can't be asked has nothing newer
    host.put("/a", DATA, etag=None)
    assert download(remote, tmp_path).read_bytes() == newer  # nor who names no versions


def test_what_was_changed_on_the_disk_is_fetched_again(host, tmp_path):
    remote = Remote(host.put("/a", DATA), "a", None, SHA)
    download(remote, tmp_path).write_bytes(b"other")
    assert download(remote, tmp_path).read_bytes() == DATA
    assert (tmp_path / "a.bad").read_bytes() == b"other"


@pytest.mark.parametrize("cut", [1, 7, 511, 512, 4096, 65_535, 65_536, 100_000, 262_143, 262_144, 262_145, 299_999])
def test_a_cut_connection_is_resumed_where_it_was_cut(host, tmp_path, cut):
    download(Remote(host.put("/a", DATA, cuts=[cut]), "a"), tmp_path)
    assert (tmp_path / "a").read_bytes() == DATA
    assert host.asked == [("/a", None), ("/a", f"bytes={cut}-")]


def test_a_connection_cut_many_times_still_gets_there(host, tmp_path):
    download(Remote(host.put("/a", DATA, cuts=[20_000] * 14), "a", None, SHA), tmp_path)
    assert (tmp_path / "a").read_bytes() == DATA
    assert len(host.asked) == 15


def test_an_earlier_call_is_resumed(host, tmp_path, monkeypatch):
    monkeypatch.setattr(transfer, "PAUSES", ())
    url = host.put("/a", DATA, cuts=[1000, 2000])
    for received in (1000, 3000):
        with pytest.raises(Undelivered, match=f"at {received:,} of 300,000 bytes"):
            download(Remote(url, "a"), tmp_path)
        assert names(tmp_path) == ["a.part", "a.part.json"]
    download(Remote(url, "a"), tmp_path)
    assert (tmp_path / "a").read_bytes() == DATA
    assert [part for _, part in host.asked] == [None, "bytes=1000-", "bytes=3000-"]


def test_another_version_starts_anew(host, tmp_path, monkeypatch):
    monkeypatch.setattr(transfer, "PAUSES", ())
    url = host.put("/a", DATA, cuts=[1000])
    with pytest.raises(Undelivered):
        download(Remote(url, "a"), tmp_path)
    host.put("/a", DATA[::-1])
    assert download(Remote(url, "a"), tmp_path).read_bytes() == DATA[::-1]


@pytest.mark.parametrize("options", [{"etag": None}, {"etag": "W/weak"}, {"ranges": False}])
def test_without_a_way_to_resume_it_starts_anew(host, tmp_path, options):
    url = host.put("/a", DATA, cuts=[1000], **options)
    assert download(Remote(url, "a", None, SHA), tmp_path).read_bytes() == DATA


def test_another_part_than_was_asked_for_is_not_glued_on(host, tmp_path):
    url = host.put("/a", DATA, cuts=[1000], moved=-3)
    assert download(Remote(url, "a"), tmp_path).read_bytes() == DATA
    assert host.asked[-1] == ("/a", None)


def test_a_part_longer_than_the_file_starts_anew(host, tmp_path):
    url = host.put("/a", DATA)
    (tmp_path / "a.part").write_bytes(DATA + b"more")
    etag = hashlib.md5(DATA).hexdigest()
    transfer.write_json(tmp_path / "a.part.json", {"url": url, "etag": f'"{etag}"', "length": len(DATA)})
    assert download(Remote(url, "a"), tmp_path).read_bytes() == DATA


def test_without_a_length_it_is_read_to_its_end(host, tmp_path):
    assert download(Remote(host.put("/a", DATA, length=0), "a"), tmp_path).read_bytes() == DATA


def test_more_is_promised_than_comes(host, tmp_path):
    url = host.put("/a", DATA, length=len(DATA) + 5, ranges=False)
    with pytest.raises(Undelivered, match=r"ended the connection at 300,000 of 300,005 bytes"):
        download(Remote(url, "a"), tmp_path)
    assert not (tmp_path / "a").exists()


def test_what_never_gets_further_is_given_up_soon(host, tmp_path):
    """Its end is asked for, refused, and all of it fetched anew: that is no progress."""
    remote = Remote(host.put("/a", DATA, length=len(DATA) + 100), "a")
    with pytest.raises(Undelivered):
        download(remote, tmp_path)
    assert len(host.asked) == 1 + len(transfer.PAUSES)


def test_less_is_promised_than_there_is(host, tmp_path):
    with pytest.raises(WrongFile, match=r"has the SHA-256 .* where .* is known"):
        download(Remote(host.put("/a", DATA, length=1000), "a", None, SHA), tmp_path)
    assert names(tmp_path) == ["a.bad"]
    assert (tmp_path / "a.bad").read_bytes() == DATA[:1000]


def test_a_wrong_checksum_keeps_the_file_as_bad(host, tmp_path):
    url = host.put("/a", DATA[::-1])
    with pytest.raises(WrongFile, match=r"kept as .*a\.bad"):
        download(Remote(url, "a", len(DATA), SHA), tmp_path)
    assert names(tmp_path) == ["a.bad"]
    host.put("/a", DATA)
    assert download(Remote(url, "a", len(DATA), SHA), tmp_path).read_bytes() == DATA


def test_a_wrong_size_is_refused_before_it_comes(host, tmp_path):
    with pytest.raises(WrongFile, match=r"300,000 bytes, where 5 are known"):
        download(Remote(host.put("/a", DATA), "a", 5), tmp_path)
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    "page",
    [
        b"<!DOCTYPE html><html><head><title>Google Drive - Quota exceeded</title></head></html>",
        b"\n\n  <html><title>Google Drive - Quota exceeded</title>",
        b"\xef\xbb\xbf<HTML><TITLE lang='en'>Google Drive - Quota exceeded</TITLE>",
        b"<!-- hello --><title>Google Drive - Quota exceeded</title>",
    ],
)
def test_a_web_page_is_no_archive(host, tmp_path, page):
    with pytest.raises(Undelivered, match=r"sent a web page \('Google Drive - Quota exceeded'\) instead of a\.zip"):
        download(Remote(host.put("/a", page + b" " * 2000, content_type="text/html"), "a.zip"), tmp_path)
    assert not (tmp_path / "a.zip").exists()


def test_an_archive_under_the_type_of_a_page_is_an_archive(host, tmp_path):
    url = host.put("/a", b"PK\3\4" + DATA, content_type="text/html")
    assert download(Remote(url, "a.zip"), tmp_path).read_bytes() == b"PK\3\4" + DATA


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410, 451])
def test_a_refusal_is_taken_at_its_word(host, tmp_path, status):
    with pytest.raises(Undelivered, match=f"answered {status}"):
        download(Remote(host.put("/a", DATA, status=status), "a"), tmp_path)
    assert len(host.asked) == 1
    assert names(tmp_path) == []


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_a_busy_host_is_asked_again(host, tmp_path, status):
    url = host.put("/a", DATA, status=status, times=3)
    assert download(Remote(url, "a"), tmp_path).read_bytes() == DATA
    assert len(host.asked) == 4


def test_not_for_ever(host, tmp_path):
    with pytest.raises(Undelivered, match="answered 503"):
        download(Remote(host.put("/a", DATA, status=503), "a"), tmp_path)
    assert len(host.asked) == 4


def test_a_long_pause_is_not_waited_for(host, tmp_path):
    url = host.put("/a", DATA, status=429, headers={"Retry-After": "3600"})
    with pytest.raises(Undelivered, match="answered 429"):
        download(Remote(url, "a"), tmp_path)
    assert len(host.asked) == 1


def test_a_stalled_connection_is_left_and_resumed(host, tmp_path, monkeypatch):
    monkeypatch.setattr(web, "TIMEOUT", 0.3)
    assert download(Remote(host.put("/a", DATA, stall=1), "a"), tmp_path).read_bytes() == DATA
    assert len(host.asked) == 2


def test_a_slow_one_is_waited_for(host, tmp_path, monkeypatch):
    monkeypatch.setattr(web, "TIMEOUT", 1.0)
    assert download(Remote(host.put("/a", DATA[:20_000], drip=0.01), "a"), tmp_path).read_bytes() == DATA[:20_000]
    assert len(host.asked) == 1


def test_nobody_there(tmp_path):
    with pytest.raises(Undelivered, match=r"127\.0\.0\.1:1 can't be reached"):
        download(Remote("http://127.0.0.1:1/a", "a"), tmp_path)


def test_redirections_are_followed(host, tmp_path):
    host.put("/b", DATA)
    url = host.put("/a", status=302, headers={"Location": "/b"})
    assert download(Remote(url, "a", None, SHA), tmp_path).read_bytes() == DATA


def test_not_in_circles(host, tmp_path):
    with pytest.raises(Undelivered, match="302"):
        download(Remote(host.put("/a", status=302, headers={"Location": "/a"}), "a"), tmp_path)


@pytest.mark.parametrize("place", ["file:///etc/passwd", "ftp://127.0.0.1/a"])
def test_not_to_other_protocols(host, tmp_path, place):
    with pytest.raises(Undelivered):
        download(Remote(host.put("/a", status=302, headers={"Location": place}), "a"), tmp_path)
    assert not (tmp_path / "a").exists()


def test_not_from_https_to_http():
    asked = web.Request("https://a.example/x")
    with pytest.raises(Undelivered, match="not https"):
        web._Redirects().redirect_request(asked, None, 302, "", {}, "http://a.example/x")


def test_a_token_stays_with_its_host(host, tmp_path):
    with serving() as other:
        other.put("/b", DATA)
        url = host.put("/a", status=302, headers={"Location": f"{other.url}/b"})
        download(Remote(url, "a", headers={"Authorization": "Bearer secret"}), tmp_path)
        assert host.headers[0]["Authorization"] == "Bearer secret"
        assert "Authorization" not in other.headers[0]


@pytest.mark.parametrize("url", ["file:///etc/passwd", "/etc/passwd", "ftp://x/y", "http//x", ""])
def test_other_addresses_are_not_opened(tmp_path, url):
    with pytest.raises(ConfigError, match="wanted http:// or https://"):
        download(Remote(url, "a"), tmp_path)


@pytest.mark.parametrize("name", ["../a", "a/b", ".a", "", "a\nb", "x" * 300, "a\0"])
def test_names_are_names(name):
    with pytest.raises(ValueError, match="is no name for a file"):
        Remote("http://x/a", name)


def test_room_is_looked_for_first(host, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9, 2**28 + 1000))
    with pytest.raises(CantWrite, match="too little room"):
        download_all([Remote(host.put("/a", DATA), "a", len(DATA))], tmp_path)
    assert host.asked == []
    with pytest.raises(CantWrite, match="too little room"):  # the host says how long it is
        download_all([Remote(host.put("/a", DATA), "a")], tmp_path)
    assert not (tmp_path / "a").exists()
    require_space(tmp_path / "new" / "folder", 1000)


def test_a_link_is_not_written_through(host, tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.part").symlink_to(precious)
    assert download(Remote(host.put("/a", DATA), "a"), tmp_path / "in").read_bytes() == DATA
    assert precious.read_text() == "mine"


def test_several_at_a_time_but_not_more(host, tmp_path):
    files = [Remote(host.put(f"/{i}", DATA[: 5000 + i], drip=0.01), f"file-{i}") for i in range(9)]
    paths = download_all(files, tmp_path, together=3)
    assert [path.read_bytes() for path in paths] == [DATA[: 5000 + i] for i in range(9)]
    assert 1 < host.most_busy <= 3


def test_one_failure_stops_the_others_which_resume(host, tmp_path):
    slow, gone = host.put("/slow", DATA, drip=0.02), host.put("/gone", status=404, delay=0.5)
    files = [Remote(slow, "slow"), Remote(gone, "gone")]
    with pytest.raises(Undelivered, match="answered 404"):
        download_all(files, tmp_path)
    assert 0 < (tmp_path / "slow.part").stat().st_size < len(DATA)
    host.put("/slow", DATA)
    host.put("/gone", b"here")
    download_all(files, tmp_path)
    assert (tmp_path / "slow").read_bytes() == DATA
    assert any(path == "/slow" and part for path, part in host.asked)


def test_two_that_want_one_file_at_once_fetch_it_once(host, tmp_path):
    """Without a known checksum: who writes into the other's half would not be found out."""
    remote = Remote(host.put("/a", DATA, drip=0.0005), "a")
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda _: download(remote, tmp_path), range(3)))
    assert found == [tmp_path / "a"] * 3
    assert (tmp_path / "a").read_bytes() == DATA
    assert [part for _, part in host.asked] == [None, "bytes=0-0", "bytes=0-0"]  # whether there is a newer one
    assert names(tmp_path) == [".a.json", "a"]


def test_when_the_first_fails_the_second_goes_on_where_it_stopped(host, tmp_path, monkeypatch):
    monkeypatch.setattr(transfer, "PAUSES", ())
    remote = Remote(host.put("/a", DATA, drip=0.0005, cuts=[100_000]), "a")
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(download, remote, tmp_path) for _ in range(2)]
        errors = [each.exception() for each in both]
    assert [isinstance(each, Undelivered) for each in errors].count(True) == 1
    assert (tmp_path / "a").read_bytes() == DATA
    assert host.asked[:2] == [("/a", None), ("/a", "bytes=100000-")]


def test_who_waits_for_another_can_be_stopped(host, tmp_path):
    remote, stop = Remote(host.put("/a", DATA), "a"), Event()
    stop.set()
    with holding(tmp_path / ".a.lock"), pytest.raises(transfer.Stopped):
        download(remote, tmp_path, stop=stop)
    assert host.asked == []


def test_a_killed_process_is_resumed(host, tmp_path):
    url = host.put("/a", DATA, drip=0.02)
    program = f"""
from pathlib import Path
from dspreg.download.transfer import Remote, download
download(Remote({url!r}, "a"), Path({str(tmp_path)!r}))
"""
    process = subprocess.Popen([sys.executable, "-c", program], env=os.environ | {"no_proxy": "*"})
    part = tmp_path / "a.part"
    until = time.monotonic() + 60
    while not (part.exists() and part.stat().st_size > 20_000) and time.monotonic() < until:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert names(tmp_path) == [".a.lock", "a.part", "a.part.json"]
    received = part.stat().st_size
    host.files["/a"].drip = 0.0
    assert download(Remote(url, "a"), tmp_path).read_bytes() == DATA
    assert host.asked[-1] == ("/a", f"bytes={received}-")
    assert names(tmp_path) == [".a.json", "a"]


def test_progress_has_rate_and_remaining_time():
    said, now = [], [100.0]
    lines = ProgressLines(said.append, every=10, clock=lambda: now[0])
    lines("a", 50_000_000, 250_000_000)  # what an earlier call had fetched is not counted into the rate
    now[0] = 105.0
    lines("a", 60_000_000, 250_000_000)
    assert said == []
    now[0] = 110.0
    lines("a", 70_000_000, 250_000_000)
    assert said == [f"70 MB of 250 MB, 2.0 MB/s, {format_duration(90)} left"]
    now[0] = 120.0
    lines("b", 1_000_000, None)
    assert said[1].startswith("71 MB, ")

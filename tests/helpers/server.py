"""A host on this machine that speaks plain HTTP and the hub's interface, and misbehaves as it is told."""

import hashlib
import json
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "c" * 40


@dataclass
class Served:
    """One address.

    Attributes:
        content: What it has.
        etag: Of the content; None: none is sent.
        status: Instead of 200, for as many requests as `times` says.
        cuts: Bytes after which the connection of the first, second, … request is closed.
        length: Sent as Content-Length instead of the true one; 0: none.
        ranges: Whether parts can be asked for.
        moved: Offset that a part is sent from instead of the one asked for.
        drip: Seconds between two pieces of 1,000 bytes.
        delay: Seconds before the answer.
        stall: Of the first so many requests, nothing comes after the header.
    """

    content: bytes = b""
    etag: str | None = "default"
    status: int = 200
    times: int = 10**9
    cuts: list = field(default_factory=list)
    length: int | None = None
    ranges: bool = True
    moved: int = 0
    drip: float = 0.0
    stall: int = 0
    delay: float = 0.0
    headers: dict = field(default_factory=dict)
    content_type: str = "application/octet-stream"


class Server:
    """What it serves by path, and what it was asked."""

    def __init__(self):
        self.files: dict[str, Served] = {}
        self.asked: list[tuple[str, str | None]] = []  # path, Range
        self.headers: list[dict] = []
        self.busy = self.most_busy = 0
        self.lock = threading.Lock()
        self.url = ""

    def put(self, path, content=b"", **options):
        self.files[path] = Served(content, **options)
        return self.url + path

    def put_dataset(self, repo, files, commit=COMMIT, **options):
        """A data set of the hub: files by their path in the repository."""
        siblings = [
            {"rfilename": name, "size": len(data), "blobId": "b" * 40,
             "lfs": {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}}
            for name, data in files.items()
        ]  # fmt: skip
        about = json.dumps({"id": repo, "sha": commit, "siblings": siblings, "private": False, "tags": []}).encode()
        self.put(f"/api/datasets/{repo}", about, content_type="application/json")
        for revision in ("main", commit):
            self.put(f"/api/datasets/{repo}/revision/{revision}", about, content_type="application/json")
        for name, data in files.items():
            self.put(f"/datasets/{repo}/resolve/{commit}/{name}", data, **options)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        server = self.server.ours
        path = unquote(urlsplit(self.path).path)
        with server.lock:
            server.asked.append((path, self.headers.get("Range")))
            server.headers.append(dict(self.headers))
            server.busy += 1
            server.most_busy = max(server.most_busy, server.busy)
            served = server.files.get(path, Served(b"not here", status=404))
            status = 200
            if served.status != 200 and served.times > 0:
                served.times -= 1
                status = served.status
            cut = served.cuts.pop(0) if served.cuts and status == 200 else None
            stall = served.stall > 0
            served.stall -= stall
        try:
            self.answer(served, status, cut, stall)
        except (BrokenPipeError, ConnectionResetError):
            pass
        finally:
            with server.lock:
                server.busy -= 1

    do_HEAD = do_GET

    def answer(self, served, status, cut, stall):
        time.sleep(served.delay)
        body, start = served.content, 0
        etag = hashlib.md5(body).hexdigest() if served.etag == "default" else served.etag
        wanted, condition = self.headers.get("Range"), self.headers.get("If-Range")
        if status == 200 and wanted and served.ranges and condition in (None, f'"{etag}"'):
            start, _, end = wanted.removeprefix("bytes=").partition("-")
            start, body = int(start), body[: int(end) + 1] if end else body
            status = 206 if start < len(body) else 416
        start = max(0, start + (served.moved if status == 206 else 0))
        self.send_response(status)
        if etag:
            self.send_header("ETag", f'"{etag}"' if not etag.startswith("W/") else etag)
        if status == 206:
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(served.content)}")
        self.send_header("Content-Type", served.content_type)
        length = len(body) - start if served.length is None else served.length
        if length:
            self.send_header("Content-Length", str(length))
        else:
            self.close_connection = True
            self.send_header("Connection", "close")
        for name, value in served.headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        if stall:
            time.sleep(2)
            self.close_connection = True
            return
        part = body[start:] if cut is None else body[start : start + cut]
        if served.drip:
            for at in range(0, len(part), 1000):
                time.sleep(served.drip)  # before: who has the last byte is not waited for
                self.wfile.write(part[at : at + 1000])
                self.wfile.flush()
        else:
            self.wfile.write(part)
        if cut is not None or served.length not in (None, length) or (served.length or 0) > len(part):
            self.close_connection = True

    def log_message(self, *args):
        pass


@contextmanager
def serving():
    ours = Server()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.ours = ours
    ours.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield ours
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def everything_below(folder):
    """Every file, folder and link with what it holds: to compare before and after."""
    found = {}
    for path in sorted(folder.rglob("*")):
        kind = "link" if path.is_symlink() else "folder" if path.is_dir() else "file" if path.is_file() else "other"
        found[path.relative_to(folder).as_posix()] = (kind, path.read_bytes() if kind == "file" else None)
    return found

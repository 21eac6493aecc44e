"""The server of the page: for this machine alone, and it can only be read.

It listens on the loopback address, answers two addresses, and knows no other method than GET and HEAD. A page of
another site that a browser of this machine shows can't read what it says: there is no permission for that in any
answer, and a name that a foreign server points at this address is refused by the Host it asks for.
"""

from __future__ import annotations

import json
import threading
import time
from functools import cached_property
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any

from dspreg.errors import ConfigError, DspregError
from dspreg.io.html import policy, render_page
from dspreg.watch.answer import StoreWatcher

LOOPBACK = "127.0.0.1"
FRESH = 1.0  # seconds for which an answer is good enough for the next page that asks
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
LIGHT = (
    "--ink: #1b1b1b; --ground: #fff; --card: #f6f6f4; --good: #0b6e4f; --bad: #b3261e; --k: #0072b2; --track: #0002;"
)
DARK = (
    "--ink: #e8e8e6; --ground: #151515; --card: #202020; --good: #58c9a0; --bad: #ff8a80; --k: #56b4e9; --track: #fff3;"
)


class WatchServer(ThreadingHTTPServer):
    """Serves the page of a store until it is closed.

    Args:
        watcher: Of the store.
        port: 0: any that is free.

    Raises:
        ConfigError: The port is taken, or not ours to take.
    """

    daemon_threads = True

    def __init__(self, watcher: StoreWatcher, port: int = 0):
        self.watcher, self.lock = watcher, threading.Lock()
        self.looked_at, self.answer = float("-inf"), b""
        try:
            super().__init__((LOOPBACK, port), PageHandler)
        except OSError as error:
            raise ConfigError(
                f"--port {port} can't be used: {error.strerror}; leave it out for one that is free"
            ) from None

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.server_port}/"

    @cached_property
    def hosts(self) -> tuple[str, ...]:
        """What a browser may call us."""
        return f"{LOOPBACK}:{self.server_port}", f"localhost:{self.server_port}"

    @cached_property
    def page(self) -> tuple[bytes, str]:
        """The page and its policy."""
        style, script, body = (_read(f"page.{kind}") for kind in ("css", "js", "html"))
        text = render_page(
            f"{self.watcher.store.path} – dspreg watch", body, style=style, light=LIGHT, dark=DARK, script=script,
            connects=True, store=str(self.watcher.store.path),
        )  # fmt: skip
        shown = text.partition("<style>")[2].partition("</style>")[0]
        return text.encode(), f"{policy(shown, script, connects=True)}; frame-ancestors 'none'"

    def status(self) -> bytes:
        """The state of the store as JSON, at most a second old: pages that ask at once are one look at the disk."""
        with self.lock:
            if time.monotonic() - self.looked_at > FRESH:
                try:
                    found: dict[str, Any] = self.watcher.look()
                except DspregError as error:
                    found = {"error": str(error)}
                self.answer, self.looked_at = json.dumps(found).encode(), time.monotonic()
            return self.answer


class PageHandler(BaseHTTPRequestHandler):
    """One request."""

    server: WatchServer
    server_version, sys_version = "dspreg", ""
    timeout = 30.0  # seconds for a request to arrive

    def do_GET(self) -> None:
        if self.headers.get("Host") not in self.server.hosts:
            return self._send(HTTPStatus.FORBIDDEN, b"this page is for the machine that it runs on\n")
        if self.path == "/":
            page, allowed = self.server.page
            return self._send(HTTPStatus.OK, page, "text/html; charset=utf-8", allowed)
        if self.path == "/status.json":
            return self._send(HTTPStatus.OK, self.server.status(), "application/json")
        return self._send(HTTPStatus.NOT_FOUND, b"there is / and /status.json\n")

    do_HEAD = do_GET

    def _send(self, code: HTTPStatus, body: bytes, kind: str = "text/plain; charset=utf-8", policy: str = "") -> None:
        self.send_response(code)
        headers = {**HEADERS, "Content-Type": kind, "Content-Length": str(len(body))}
        for name, value in (headers | ({"Content-Security-Policy": policy} if policy else {})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nothing: the terminal is for the address."""


def _read(name: str) -> str:
    return files("dspreg.watch").joinpath(name).read_text(encoding="utf-8")

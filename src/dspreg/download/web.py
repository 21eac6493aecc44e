"""One request over HTTP, as a careful browser makes it: no downgrade, no secrets to another host, no endless wait."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from contextlib import suppress
from http.client import HTTPException, HTTPMessage, HTTPResponse
from threading import Thread
from typing import IO, cast
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener, getproxies, proxy_bypass

from dspreg import __version__
from dspreg.errors import ConfigError, ResourceError

TIMEOUT = 30.0  # seconds without a byte
CONNECT_TIMEOUT = 3.0  # seconds, for DNS and the connection
PORTS = {"http": 80, "https": 443, "socks5": 1080, "socks5h": 1080}
AGAIN = {408, 425, 429, 500, 502, 503, 504}  # what another try may get past
BROKEN = (OSError, HTTPException)  # a connection that ended early


class Undelivered(ResourceError):
    """A host did not deliver a file.

    Attributes:
        again: Whether another try may succeed.
        unreachable: Whether there was no connection at all.
        wait: Seconds that the host asked for before it.
    """

    def __init__(self, message: str, *, again: bool = False, unreachable: bool = False, wait: float = 0.0):
        super().__init__(message)
        self.again, self.unreachable, self.wait = again, unreachable, wait


class _Redirects(HTTPRedirectHandler):
    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> Request | None:
        there, before = urlsplit(newurl), urlsplit(req.full_url)
        if there.scheme not in ("http", "https") or (before.scheme == "https" and there.scheme != "https"):
            raise Undelivered(f"{before.hostname} redirects to {newurl[:200]!r}, which is not https")
        new = super().redirect_request(req, fp, code, msg, headers, newurl)
        if new is not None and there.netloc != before.netloc:  # a token is for the host it was given for
            new.headers.pop("Authorization", None)
        return new


def request(url: str, headers: Mapping[str, str]) -> HTTPResponse:
    """The response of a host, its body still to be read.

    Raises:
        Undelivered: It could not be reached, or refused.
    """
    if urlsplit(url).scheme not in ("http", "https"):
        raise ConfigError(f"{url[:200]!r} is no address that dspreg fetches; wanted http:// or https://")
    asked = Request(url, headers={"User-Agent": f"dspreg/{__version__}", "Accept-Encoding": "identity", **headers})
    try:
        return cast(HTTPResponse, build_opener(_Redirects).open(asked, timeout=TIMEOUT))
    except HTTPError as error:
        with error:
            wait = error.headers.get("Retry-After", "") if error.headers else ""
        seconds = float(wait) if wait.isdecimal() else 0.0
        says = f"{host_of(url)} answered {error.code} {error.reason}"
        raise Undelivered(says, again=error.code in AGAIN, wait=seconds) from error
    except URLError as error:
        raise Undelivered(
            f"{host_of(url)} can't be reached ({_reason(error.reason)})", again=True, unreachable=True
        ) from error
    except BROKEN as error:
        raise Undelivered(f"{host_of(url)} ended the connection ({_reason(error)})", again=True) from error
    except ValueError as error:  # an address that urllib does not understand
        raise ConfigError(f"{url[:200]!r} is no address: {error}") from error


def host_of(url: str) -> str:
    return urlsplit(url).netloc.rpartition("@")[2] or url


def _reason(error: object) -> str:
    return str(getattr(error, "strerror", None) or error or type(error).__name__)


def page_title(start: bytes, content_type: str) -> str | None:
    """What a web page calls itself, if the first bytes of a file are one; None if they are not."""
    text = start.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    markup = text.startswith((b"<!doctype html", b"<html", b"<head", b"<body", b"<!--"))
    if not markup and not (content_type.startswith("text/html") and text.startswith(b"<")):
        return None
    title = re.search(rb"<title[^>]*>([^<]{1,200})", start, re.I)
    return " ".join(title[1].decode(errors="replace").split()) if title else "without a title"


def is_reachable(url: str, timeout: float = CONNECT_TIMEOUT) -> bool:
    """Whether a connection can be opened; in a thread, because a DNS lookup has no timeout."""
    reached = []

    def connect() -> None:
        with suppress(OSError, ValueError):  # ValueError: an invalid host or port
            socket.create_connection(first_hop(url), timeout=timeout).close()
            reached.append(True)

    thread = Thread(target=connect, daemon=True)
    thread.start()
    thread.join(timeout)
    return bool(reached)


def first_hop(url: str) -> tuple[str, int]:
    """Host and port to connect to: those of the proxy, if there is one, else the host's own."""
    parts = urlsplit(url)
    if not proxy_bypass(parts.hostname or ""):
        proxies = getproxies()
        proxy = proxies.get(parts.scheme) or proxies.get("all")
        if proxy:
            parts = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    if not parts.hostname:
        raise ValueError(f"{url!r} has no host")
    return parts.hostname, parts.port or PORTS.get(parts.scheme, 443)

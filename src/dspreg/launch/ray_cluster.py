"""Connection to a Ray cluster: an existing one, or a temporary one on this machine."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from dspreg.errors import ConfigError, Preempted, ResourceError
from dspreg.io.text import shorten
from dspreg.launch.resources import usable_cores

STORE = 500_000_000  # bytes of object store memory of a cluster started here; Ray spills the rest to disk
LOCAL, AUTO = "local", "auto"
ANSWER = 4.0  # seconds that a cluster has to answer
HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0"  # with settings that set nothing
SETTINGS = b"\x04"  # what a server's first frame is, too


@contextmanager
def connected(address: str | None, cpus: int | None, say: Callable[[str], None] = lambda _: None) -> Iterator[Any]:
    """The `ray` module, connected.

    Args:
        address: `HOST:PORT` of a cluster; `auto`: the cluster of this machine; `local`: a new one, which ends with the
            block; None: RAY_ADDRESS, else the cluster that `ray start` made on this machine, else a new one.
        cpus: Of a new cluster; None: as many as this process may use.
        say: Called with a line that names the cluster.

    Raises:
        ConfigError: Ray is not installed, or this kind of address is not supported.
        ResourceError: The cluster can't be reached or started.
    """
    try:
        import ray
    except ImportError as error:
        raise ConfigError(f"the launcher ray needs Ray ({error}): pip install 'dspreg[ray]'") from error
    if ray.is_initialized():  # the caller's own
        yield ray
        return
    require_cluster(address, ray)
    with _signals_kept():
        try:
            found = _start(ray, address, cpus)
        except (ConnectionError, TimeoutError, RuntimeError, ValueError) as error:
            where = address or os.environ.get("RAY_ADDRESS") or "this machine"
            raise ResourceError(
                f"no Ray cluster could be reached or started ({where}): {error}. With --ray-address local a new one is "
                f"made of this machine"
            ) from error
    say(found)
    # Ray prints "a worker died" and the like to stdout, between our lines, from a thread of the driver that neither
    # log_to_driver nor logging_level silences (ray 2.60, `listen_error_messages`). Only this switch of Ray's debugger
    # does. If a later version removes it, there are more lines on the screen and nothing else changes. We report dead
    # tasks ourselves.
    ray._private.worker._worker_logs_enabled = False
    try:
        yield ray
    finally:
        ray.shutdown()


def require_cluster(address: str | None, ray: Any = None) -> None:
    """Refuse an address of the wrong form, and one where no cluster answers: Ray itself would wait for minutes.

    Args:
        address: As for `connected`.
        ray: The module, which knows where the cluster of this machine is; without it only given ones are looked at.

    Raises:
        ConfigError: It is no address that can be used.
        ResourceError: Nobody answers there.
    """
    if ray is not None and ray.is_initialized():
        return
    given = os.environ.get("RAY_ADDRESS") or None if address in (None, AUTO) else address
    said = f"--ray-address {shorten(address)[1:-1]}" if address not in (None, AUTO) else f"RAY_ADDRESS={given}"
    if given in (LOCAL, AUTO):
        return
    if given is None:
        given, said = _current_cluster(ray), f"--ray-address {address or AUTO}"
        if given is None:
            return  # there is none; Ray says so at once, or starts one
    if given.startswith("ray://"):
        raise ConfigError(
            f"{said}: sweeps don't go through Ray's client. Start the sweep on a machine of the cluster, where "
            f"--ray-address auto finds it"
        )
    host, port = _host_and_port(given, said)
    found: list[str] = []
    # in a thread, as looking up a name obeys no timeout
    looking = threading.Thread(target=lambda: found.append(_look(host, port)), daemon=True)
    looking.start()
    looking.join(2 * ANSWER)
    trouble = found[0] if found else "no answer"
    if trouble:
        raise ResourceError(
            f"{said}: no Ray cluster answers there ({trouble}). Is it running? `ray status` on its head node says so, "
            f"and `ray start --head` prints its address; with --ray-address local a new one is made of this machine"
        )


def _host_and_port(address: str, said: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if colon and host and "/" not in host and port.isdecimal() and len(port) < 6 and 0 < int(port) < 65_536:
        return host, int(port)
    raise ConfigError(f"{said}; wanted HOST:PORT such as 10.0.0.5:6379, auto or local")


def _look(host: str, port: int) -> str:
    """What is wrong there; nothing if a server of gRPC, which Ray's is, says its first words."""
    try:
        with socket.create_connection((host, port), timeout=ANSWER) as there:
            if os.environ.get("RAY_USE_TLS", "0") != "0":
                return ""  # it would want a certificate first
            there.settimeout(ANSWER)
            there.sendall(HTTP2_PREFACE)
            return "" if there.recv(9)[3:4] == SETTINGS else "something else listens at this port"
    except (OSError, UnicodeError) as error:  # UnicodeError: a part of the name is too long
        return str(getattr(error, "strerror", None) or error)


def _current_cluster(ray: Any) -> str | None:
    """The address of the cluster that was last started on this machine; it may be gone since.

    Ray keeps it to itself. Should this be called otherwise one day, a cluster that is gone is found by Ray, in minutes.
    """
    try:
        found = ray._private.services.find_bootstrap_address(None)
    except Exception:
        return None
    return found if isinstance(found, str) else None


def _start(ray: Any, address: str | None, cpus: int | None) -> str:
    """Connect, and report to which cluster."""
    quiet = {"log_to_driver": False, "logging_level": "error"}
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    size = {"num_cpus": cpus or len(usable_cores()), "object_store_memory": STORE, "include_dashboard": False}
    if address == LOCAL or (address is None and not os.environ.get("RAY_ADDRESS")):
        try:
            ray.init(address=address, **size, **quiet)
            return f"a Ray cluster of this machine was started, CPUs: {size['num_cpus']}"
        except ValueError:  # it exists, and its size was fixed when it was started
            if address == LOCAL:
                raise
    context = ray.init(address=address, **quiet)
    return f"connected to the Ray cluster at {context.address_info['gcs_address']}"


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Restore our SIGTERM handler after Ray has installed its own, which exits; while Ray starts, that will do."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    except SystemExit as error:
        raise Preempted("stopped; run the same command again to resume") from error
    finally:
        signal.signal(signal.SIGTERM, before)

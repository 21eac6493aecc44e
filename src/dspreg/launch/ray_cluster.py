"""A Ray cluster to work on: one that is there, or one made of this machine for as long as it is needed."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from dspreg.errors import ConfigError, Preempted, ResourceError
from dspreg.launch.resources import usable_cores

STORE = 500_000_000  # bytes of memory for files on their way, in a cluster started here; Ray puts the rest on disk
LOCAL = "local"


@contextmanager
def connected(address: str | None, cpus: int | None, say: Callable[[str], None] = lambda _: None) -> Iterator[Any]:
    """The `ray` module, connected.

    Args:
        address: `HOST:PORT` of a cluster; `auto`: the one of this machine; `local`: a new one, which ends with this;
            None: RAY_ADDRESS, or the one that `ray start` made on this machine, or else a new one.
        cpus: Of a new one; None: as many as this process may use.
        say: Called with a line that says which it is.

    Raises:
        ConfigError: Ray is not installed, or the address is of a kind that can't be used.
        ResourceError: There is no such cluster.
    """
    try:
        import ray
    except ImportError as error:
        raise ConfigError(f"the launcher ray needs Ray ({error}): pip install 'dspreg[ray]'") from error
    if ray.is_initialized():  # the caller's own
        yield ray
        return
    if address and address.startswith("ray://"):
        raise ConfigError(
            f"--ray-address {address}: sweeps don't go through Ray's client. Start the sweep on a machine of the "
            f"cluster, where --ray-address auto finds it"
        )
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
    # log_to_driver nor logging_level silences (ray 2.60, `listen_error_messages`). This switch of its own debugger is
    # the only one; should it go, there is more on the screen and nothing else changes. We report dead tasks ourselves.
    ray._private.worker._worker_logs_enabled = False
    try:
        yield ray
    finally:
        ray.shutdown()


def _start(ray: Any, address: str | None, cpus: int | None) -> str:
    """Connect, and say to what."""
    quiet = {"log_to_driver": False, "logging_level": "error"}
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    size = {"num_cpus": cpus or len(usable_cores()), "object_store_memory": STORE, "include_dashboard": False}
    if address == LOCAL or (address is None and not os.environ.get("RAY_ADDRESS")):
        try:
            ray.init(address=address, **size, **quiet)
            return f"a Ray cluster of this machine was started, CPUs: {size['num_cpus']}"
        except ValueError:  # there is one, and how large it is was said when it was started
            if address == LOCAL:
                raise
    context = ray.init(address=address, **quiet)
    return f"connected to the Ray cluster at {context.address_info['gcs_address']}"


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Ray takes SIGTERM for itself, and exits on it: good enough while it starts, and handled as before afterwards."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    except SystemExit as error:
        raise Preempted("stopped; run the same command again to go on") from error
    finally:
        signal.signal(signal.SIGTERM, before)

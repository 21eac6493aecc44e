"""Connection to a Ray cluster: an existing one, or a temporary one on this machine."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from dspreg.errors import ConfigError, Preempted, ResourceError
from dspreg.launch.resources import usable_cores

STORE = 500_000_000  # bytes of object store memory of a cluster started here; Ray spills the rest to disk
LOCAL = "local"


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
    # log_to_driver nor logging_level silences (ray 2.60, `listen_error_messages`). Only this switch of Ray's debugger
    # does. If a later version removes it, there are more lines on the screen and nothing else changes. We report dead
    # tasks ourselves.
    ray._private.worker._worker_logs_enabled = False
    try:
        yield ray
    finally:
        ray.shutdown()


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

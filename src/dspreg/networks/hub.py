"""A model's weights from the Hugging Face hub, or within a second an error that says what else to do."""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from dspreg.errors import ResourceError

FILE = "model.safetensors"  # the one format that cannot run code
PATIENCE = 0.8  # seconds for finding and reaching the hub; left to itself, the download tries for most of a minute
ANSWER = 5.0  # seconds for the hub's first answer
PORTS = {"http": 80, "https": 443, "socks5": 1080, "socks5h": 1080}


def download_weights(repo: str, model: str) -> Path:
    """The weights of `repo` as a local file: from the cache where they are there, without asking the network.

    Args:
        repo: `owner/name` on the hub, and `@revision` if it is not the main one.
        model: The network and its tag, for the message.
    """
    import huggingface_hub as hub
    from huggingface_hub import constants
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    repo, _, revision = repo.partition("@")
    cached = hub.try_to_load_from_cache(repo, FILE, revision=revision or None)
    if isinstance(cached, str):
        return Path(cached)

    def failure(why: str) -> ResourceError:
        return ResourceError(
            f"no weights for {model}: {why}. Either give a local file with --weights FILE (elsewhere, fetch {FILE} "
            f"of {repo}), or start from scratch with --weights none, or connect and try again"
        )

    if constants.HF_HUB_OFFLINE:
        raise failure("the hub cannot be reached, HF_HUB_OFFLINE is set, and its cache does not have them")
    if not _reachable(constants.ENDPOINT):
        raise failure(f"the hub cannot be reached at {constants.ENDPOINT}, and its cache does not have them")
    try:
        # asked for first, because the download repeats a question that fails, with a minute for each answer
        url = hub.hf_hub_url(repo, FILE, revision=revision or None)
        hub.get_hf_file_metadata(url, timeout=ANSWER)
        return Path(hub.hf_hub_download(repo, FILE, revision=revision or None, etag_timeout=ANSWER))
    except LocalEntryNotFoundError as error:
        raise failure("the hub stopped answering") from error
    except EntryNotFoundError as error:
        raise failure(f"{repo} has no {FILE}, and other formats are not opened") from error
    except Exception as error:  # the hub's library passes on the errors of three others
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise failure(f"the hub could not deliver {FILE} of {repo} ({lines[0].rstrip('.')})") from error


def _reachable(endpoint: str) -> bool:
    """Whether a connection can be opened, in a thread because looking up a name cannot be given a time limit."""
    reached = []

    def knock() -> None:
        with suppress(OSError, ValueError):  # ValueError: no such name or port can be
            socket.create_connection(_door(endpoint), timeout=PATIENCE).close()
            reached.append(True)

    thread = Thread(target=knock, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    return bool(reached)


def _door(endpoint: str) -> tuple[str, int]:
    """Host and port of the first machine on the way to the hub: the proxy, where there is one."""
    url = urlsplit(endpoint)
    if not proxy_bypass(url.hostname or ""):
        proxies = getproxies()
        proxy = proxies.get(url.scheme) or proxies.get("all")
        if proxy:
            url = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    if not url.hostname:
        raise ValueError(f"{endpoint!r} has no host")
    return url.hostname, url.port or PORTS.get(url.scheme, 443)

"""Weights from the Hugging Face hub, or, within a second, an error with the alternatives."""

from __future__ import annotations

from pathlib import Path

from dspreg.download.web import is_reachable
from dspreg.errors import ResourceError

FILE = "model.safetensors"  # the only format that cannot run code
CONNECT_TIMEOUT = 0.8  # seconds, for DNS and the connection; by default, the download retries for most of a minute
RESPONSE_TIMEOUT = 5.0  # seconds, for the hub's first response


def find_cached(repo: str, file: str = FILE) -> Path | None:
    """The weights of `repo`, as in `download_weights`, if they are in the hub's cache."""
    import huggingface_hub as hub

    repo, _, revision = repo.partition("@")
    cached = hub.try_to_load_from_cache(repo, file, revision=revision or None)
    return Path(cached) if isinstance(cached, str) else None


def download_weights(repo: str, model: str, file: str = FILE) -> Path:
    """The weights of `repo` as a local file: from the cache if they are there, without a network request.

    Args:
        repo: `owner/name` on the hub, or `owner/name@revision`.
        model: The network and its tag, for messages.
        file: Its name there.
    """
    import huggingface_hub as hub
    from huggingface_hub import constants
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    if (cached := find_cached(repo, file)) is not None:
        return cached
    repo, _, revision = repo.partition("@")

    def failure(why: str) -> ResourceError:
        return ResourceError(
            f"no weights for {model}: {why}. Either give a local file with --weights FILE (on another machine, "
            f"download {file} of {repo}), or start from scratch with --weights none, or connect and try again"
        )

    if constants.HF_HUB_OFFLINE:
        raise failure("the hub cannot be reached, since HF_HUB_OFFLINE is set, and they are not in its cache")
    if not is_reachable(constants.ENDPOINT, CONNECT_TIMEOUT):
        raise failure(f"the hub cannot be reached at {constants.ENDPOINT}, and they are not in its cache")
    try:
        # metadata first: the download retries a failing request, with a timeout of a minute each
        url = hub.hf_hub_url(repo, file, revision=revision or None)
        hub.get_hf_file_metadata(url, timeout=RESPONSE_TIMEOUT)
        return Path(hub.hf_hub_download(repo, file, revision=revision or None, etag_timeout=RESPONSE_TIMEOUT))
    except LocalEntryNotFoundError as error:
        raise failure("the hub stopped responding") from error
    except EntryNotFoundError as error:
        raise failure(f"{repo} has no {file}, and other formats are not opened") from error
    except Exception as error:  # huggingface_hub lets the errors of three other libraries through
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise failure(f"the hub could not deliver {file} of {repo} ({lines[0].rstrip('.')})") from error

"""Pretrained weights on this machine, and which ones timm has: `dspreg weights get` and `list`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dspreg.io.atomic_files import sha256_of_file
from dspreg.networks.hub import download_weights, find_cached
from dspreg.networks.lean_imports import import_timm
from dspreg.networks.timm_models import hub_location, load_pretrained, pretrained_config


@dataclass(frozen=True)
class StoredWeights:
    """A file of weights in the hub's cache.

    Attributes:
        name: Of the network, with its tag.
        path: The file.
        size: In bytes.
        sha256: Of its bytes, as every record of a training with it has it.
    """

    name: str
    path: Path
    size: int
    sha256: str


def get_weights(name: str) -> StoredWeights:
    """The weights of a timm tag, downloaded if they are not in the cache, and loaded once to see that they fit.

    Raises:
        ConfigError: No such network or tag.
        IntegrityError: The file is not for this network.
        ResourceError: The hub can't be reached, or has none.
    """
    config = pretrained_config(name)
    repo, tag = hub_location(name, config)
    path = download_weights(repo, tag)
    _, sha256 = load_pretrained(name, config.input_size[-1], path, None)
    return StoredWeights(tag, path, path.stat().st_size, sha256)


def list_stored() -> list[StoredWeights]:
    """What is in the hub's cache, sorted by name."""
    import huggingface_hub as hub
    from huggingface_hub.errors import CacheNotFound

    try:
        repos = hub.scan_cache_dir().repos
    except CacheNotFound:
        return []
    found = []
    for repo in repos:
        if repo.repo_type == "model" and (path := find_cached(repo.repo_id)) is not None:
            blob = path.resolve()
            known = blob.name if re.fullmatch("[0-9a-f]{64}", blob.name) else sha256_of_file(blob)
            found.append(StoredWeights(repo.repo_id.removeprefix("timm/"), path, blob.stat().st_size, known))
    return sorted(found, key=lambda each: each.name)


def list_tags(pattern: str) -> Iterator[tuple[str, str, bool]]:
    """timm's tags that match a pattern such as `resnet50*`: name, repository, and whether the weights are here."""
    timm = import_timm()
    for name in timm.list_pretrained(pattern):
        config = timm.get_pretrained_cfg(name)
        repo = (config.hf_hub_id if config else None) or ""
        yield name, repo, bool(repo) and find_cached(repo) is not None

"""The files of a data set on the Hugging Face hub, or of one that speaks its interface (`HF_ENDPOINT`)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import PurePosixPath

from dspreg.download.transfer import Remote, is_file_name
from dspreg.download.web import Undelivered, is_reachable
from dspreg.errors import ConfigError

REPO = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
REVISION = re.compile(r"[\w./+-]{1,120}")
RESPONSE_TIMEOUT = 10.0  # seconds, for the hub's first response


@dataclass(frozen=True)
class HubFiles:
    """The files of one commit.

    Attributes:
        repo: `owner/set`.
        commit: What the revision means now: a hash, so that the same one always has the same files.
        files: Those that were asked for, sorted by path; names mostly have `--` for `/`.
    """

    repo: str
    commit: str
    files: tuple[Remote, ...]


def list_files(repo: str, revision: str | None, wanted: Callable[[str], bool]) -> HubFiles:
    """Which files a data set has.

    Args:
        repo: `owner/set`.
        revision: Branch, tag or commit; None: its main branch.
        wanted: Of a path within the repository.

    Raises:
        Undelivered: The hub can't be reached, or has no such data set.
    """
    import huggingface_hub as hub
    from huggingface_hub import constants

    check_repo(repo, revision)
    endpoint = constants.ENDPOINT
    if constants.HF_HUB_OFFLINE:
        raise Undelivered("the hub is not asked, since HF_HUB_OFFLINE is set")
    if not is_reachable(endpoint):
        raise Undelivered(f"the hub can't be reached at {endpoint}")
    try:
        api = hub.HfApi(endpoint=endpoint)
        about = api.dataset_info(repo, revision=revision, files_metadata=True, timeout=RESPONSE_TIMEOUT)
    except Exception as error:  # huggingface_hub lets the errors of three other libraries through
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise Undelivered(f"the hub has no data set {repo} for you ({lines[0].rstrip('.')})") from error
    commit = about.sha or ""
    if not re.fullmatch(r"[0-9a-f]{40,64}", commit):
        raise Undelivered(f"the hub gave no commit of {repo}, but {commit[:80]!r}")
    token = hub.get_token()  # for a data set that its owner gives to some people only
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    files: list[Remote] = []
    for each in sorted(about.siblings or [], key=lambda each: each.rfilename):
        if not wanted(each.rfilename):
            continue
        url = hub.hf_hub_url(repo, each.rfilename, repo_type="dataset", revision=commit, endpoint=endpoint)
        sha256 = each.lfs.sha256 if each.lfs else None
        name = _local_name(each.rfilename, {file.name for file in files})
        files.append(Remote(url, name, each.size, sha256, headers))
    return HubFiles(repo, commit, tuple(files))


def _local_name(path: str, taken: Collection[str]) -> str:
    """With `--` for `/`; by its SHA-256 where that is no name of a file here, or another file's."""
    name = path.replace("/", "--")
    if is_file_name(name) and name not in taken:
        return name
    return f"{hashlib.sha256(path.encode()).hexdigest()[:32]}{PurePosixPath(path).suffix}"


def check_repo(repo: str, revision: str | None) -> None:
    """Raise a ConfigError unless both can be names on the hub."""
    if not REPO.fullmatch(repo):
        raise ConfigError(f"{repo[:100]!r} is no data set of the hub; wanted owner/set")
    if revision is not None and (not REVISION.fullmatch(revision) or ".." in revision):
        raise ConfigError(f"{revision[:100]!r} is no revision; wanted a branch, a tag or a commit")

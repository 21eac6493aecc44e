"""The places that have the benchmarks, in the order in which they are tried.

Links of this field die. So there are several places for each, everything that comes is verified, and whoever has the
files already gives them with `--from`. No archive's checksum is published by those who made it, so that counts, and for
PACS and MNIST the contents of the files, decide; where a checksum stands here, it was computed from the file itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from dspreg.download.transfer import Remote

DRIVE = "https://drive.usercontent.google.com/download?export=download&confirm=t&id="  # without the page that asks
LILA = (
    ("storage.googleapis.com", "https://storage.googleapis.com/public-datasets-lila/caltechcameratraps/"),
    ("lilawildlife.blob.core.windows.net", "https://lilawildlife.blob.core.windows.net/lila-wildlife/caltechcameratraps/"),
)  # fmt: skip
DOMAIN_NET = "http://csr.bu.edu/ftp/visda/2019/multi-source/"
DUPLICATES = Remote(
    "https://raw.githubusercontent.com/facebookresearch/DomainBed/b93c22a1cfc3b2428398272c1a116c8de1f4139e/"
    "domainbed/misc/domain_net_duplicates.txt",
    "domain_net_duplicates.txt",
    365_663,
    "a52b4ab70203f4f3df381077694dba3e33ff44c26407e1c5faca76919c702770",
)


@dataclass(frozen=True)
class Source:
    """One place that has a data set, as archives or as tables of the hub.

    Attributes:
        name: For messages.
        files: Archives, and lists that go with them.
        repo: A data set on the Hugging Face hub, instead of files.
        revision: Of the repository.
    """

    name: str
    files: tuple[Remote, ...] = ()
    repo: str = ""
    revision: str | None = None


def _hub(repo: str, *files: Remote) -> Source:
    return Source(f"{repo} on the Hugging Face hub", files, repo)


SOURCES: dict[str, tuple[Source, ...]] = {
    "PACS": (
        _hub("flwrlabs/pacs"),
        Source("Google Drive, DomainBed's copy", (Remote(f"{DRIVE}1JFr8f805nMUelQWWmfnJR3y4_SYoN5Pd", "PACS.zip"),)),
    ),
    "VLCS": (
        Source("Google Drive, DomainBed's copy", (Remote(f"{DRIVE}1skwblH1_okBwxWxmRsp9_qi15hyPpxg8", "VLCS.tar.gz"),)),
        _hub("ai22mtech12002/DG_VLCS"),
    ),
    "OfficeHome": (
        _hub("flwrlabs/office-home"),
        Source(
            "Google Drive, DomainBed's copy", (Remote(f"{DRIVE}1uY0pj7oFsjMxRwaD3Sxy0jgel0fsYXLC", "office_home.zip"),)
        ),
    ),
    "TerraIncognita": tuple(
        Source(
            f"LILA BC, {host}",
            tuple(Remote(at + name, name) for name in ("eccv_18_annotations.tar.gz", "eccv_18_all_images_sm.tar.gz")),
        )
        for host, at in LILA
    ),
    "DomainNet": (
        Source(
            "Boston University",
            (
                DUPLICATES,
                Remote(f"{DOMAIN_NET}groundtruth/clipart.zip", "clipart.zip"),
                Remote(f"{DOMAIN_NET}infograph.zip", "infograph.zip"),
                Remote(f"{DOMAIN_NET}groundtruth/painting.zip", "painting.zip"),
                Remote(f"{DOMAIN_NET}quickdraw.zip", "quickdraw.zip"),
                Remote(f"{DOMAIN_NET}real.zip", "real.zip"),
                Remote(f"{DOMAIN_NET}sketch.zip", "sketch.zip"),
            ),
        ),
        _hub("wltjr1007/DomainNet", DUPLICATES),
    ),
}

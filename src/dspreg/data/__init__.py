"""Data sets of several domains, and how they are split.

- Known: `Digits`, and the benchmarks `PACS`, `VLCS`, `OfficeHome`, `TerraIncognita`, `DomainNet`.
- Your own: `Folder` (domain/class/image), `Index` (a CSV), or a subclass of `DomainDataset`.
- Any map-style data sets, one per domain: `join_domains`.
- In memory: `TensorDomains`, images as tensors, with `split` into training and validation images.
- By name: `open_dataset`, `dataset_names`, `dataset_table`. Before training: `verify`, `fingerprint`, `open_cache`.
"""

from typing import TYPE_CHECKING, Any

from dspreg.data.base import DomainDataset, labels_of
from dspreg.data.benchmarks import BENCHMARKS, PACS, VLCS, DomainNet, OfficeHome, TerraIncognita
from dspreg.data.cache import Cache, open_cache
from dspreg.data.csv_index import Index
from dspreg.data.decode import BadImage, decode_image
from dspreg.data.digits import Digits
from dspreg.data.fingerprint import fingerprint
from dspreg.data.folders import Folder, ImageFolders
from dspreg.data.images import Images
from dspreg.data.joined import join_domains
from dspreg.data.registry import dataset_names, dataset_table, open_dataset
from dspreg.data.splits import split
from dspreg.data.verify import Verification, verify

if TYPE_CHECKING:
    from dspreg.data.tensors import TensorDomains

__all__ = [
    "BENCHMARKS",
    "PACS",
    "VLCS",
    "BadImage",
    "Cache",
    "Digits",
    "DomainDataset",
    "DomainNet",
    "Folder",
    "ImageFolders",
    "Images",
    "Index",
    "OfficeHome",
    "TensorDomains",
    "TerraIncognita",
    "Verification",
    "dataset_names",
    "dataset_table",
    "decode_image",
    "fingerprint",
    "join_domains",
    "labels_of",
    "open_cache",
    "open_dataset",
    "split",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name == "TensorDomains":  # the only one here that needs torch, which takes seconds to import
        from dspreg.data.tensors import TensorDomains

        return TensorDomains
    raise AttributeError(f"module 'dspreg.data' has no attribute {name!r}")

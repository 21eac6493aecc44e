"""Data sets of several domains, and how they are split.

- Known: `Digits`, and the benchmarks `PACS`, `VLCS`, `OfficeHome`, `TerraIncognita`, `DomainNet`.
- Your own: `Folder` (domain/class/image), `Index` (a CSV), or a subclass of `DomainDataset`.
- By name: `dataset_named`, `listing`. Before training: `verify`, `fingerprint`, `open_cache`.
"""

from dspreg.data.base import DomainDataset, labels_of
from dspreg.data.cache import Cache, open_cache
from dspreg.data.decoding import BadImage, decoded
from dspreg.data.digits import Digits
from dspreg.data.domain_net import DomainNet
from dspreg.data.fingerprint import fingerprint
from dspreg.data.folders import Folder, ImageFolders
from dspreg.data.images import Images
from dspreg.data.index import Index
from dspreg.data.named import dataset_named, listing
from dspreg.data.office_home import OfficeHome
from dspreg.data.pacs import PACS
from dspreg.data.report import Report
from dspreg.data.terra_incognita import TerraIncognita
from dspreg.data.verify import verify
from dspreg.data.vlcs import VLCS

__all__ = [
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
    "Report",
    "TerraIncognita",
    "dataset_named",
    "decoded",
    "fingerprint",
    "labels_of",
    "listing",
    "open_cache",
    "verify",
]

"""The five benchmarks of DomainBed, each in a file of its own."""

from dspreg.data.benchmarks.base import Benchmark
from dspreg.data.benchmarks.domain_net import DomainNet
from dspreg.data.benchmarks.office_home import OfficeHome
from dspreg.data.benchmarks.pacs import PACS
from dspreg.data.benchmarks.terra_incognita import TerraIncognita
from dspreg.data.benchmarks.vlcs import VLCS

BENCHMARKS: dict[str, type[Benchmark]] = {cls.name: cls for cls in (VLCS, PACS, OfficeHome, TerraIncognita, DomainNet)}

__all__ = ["BENCHMARKS", "PACS", "VLCS", "Benchmark", "DomainNet", "OfficeHome", "TerraIncognita"]
